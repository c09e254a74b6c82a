"""What becomes of jobs while cables are cut, slow, lose some and say things twice."""

from __future__ import annotations

import pytest

from tests.pool.failures.machine import wait_until
from tests.pool.failures.world import World

BAD = {"lost": 0.05, "doubled": 0.3, "delay_seconds": 0.05, "jitter_seconds": 0.2}
"""A cable on which frames come late, out of order, twice, or not."""
UP, DOWN = "up", "down"


def test_jobs_run_where_there_is_room_and_once(world: World) -> None:
    """The other tests rest on this one: what a job asks for it gets, wherever it was submitted."""
    jobs = [world.submit(), world.submit("--model", "h100"), world.submit("--model", "t4", through="b")]
    runs = world.wait_running(*jobs)
    assert (runs[1].node, runs[2].node) == ("a", "c")


@pytest.mark.parametrize("ways", [(UP, DOWN), (UP,), (DOWN,)], ids=["both ways", "from it", "to it"])
def test_a_job_on_a_node_that_is_cut_off_runs_on_and_is_shown_as_believed(
    world: World, ways: tuple[str, ...]
) -> None:
    """Silence is not taken for death; when the cable is whole again, all is as it was."""
    job = world.submit("--node", "b")
    world.wait_running(job)
    world.cut("b", *ways)
    world.wait_presence("b", "unknown")
    assert world.job(job)["state"] == "unknown"
    assert "b is silent for" in world.screen("nodes")
    assert "gpushare node forget b --is-off" in world.screen("nodes")
    assert "unknown" in world.screen("jobs")
    assert "believed" in world.screen("why", job) or "silent" in world.screen("why", job)
    assert world.is_alive(job)
    world.heal()
    world.wait_ready(["b"])
    world.wait_state(job, "running")
    assert len(world.diary.runs(job)) == 1


def test_what_was_ordered_of_a_node_that_is_cut_off_is_done_once_when_it_is_heard_of_again(
    world: World,
) -> None:
    """A placement and a cancellation that got lost on the way."""
    runs, waits = world.submit("--node", "b"), world.submit("--node", "b")
    world.wait_running(runs, waits)
    world.cut("b", DOWN)
    world.screen("cancel", runs)
    world.wait_state(runs, "cancelling")
    late = world.submit("--node", "b")
    assert world.is_alive(runs)
    world.heal()
    world.wait_state(runs, "cancelled")
    world.wait_running(late, waits)


def test_a_node_that_is_cut_off_serves_its_own_users_and_keeps_what_they_give_to_the_pool(
    world: World,
) -> None:
    """Local jobs start; those for the pool wait in the outbox, over a restart too, and then run."""
    world.cut("b")
    world.wait_presence("b", "unknown")
    theirs = world.submit(through="b")
    mine = world.submit_here("b")
    wait_until(lambda: world.diary.runs(mine), "the local job runs")
    world.nodes["b"].kill()
    world.nodes["b"].start()
    screen = world.screen("jobs", on="b")
    assert theirs in screen
    assert "does not answer" in screen
    assert world.is_alive(mine)
    assert theirs not in world.coordinator.jobs()
    world.heal()
    world.wait_running(theirs)
    world.diary.end(mine)
    assert "succeeded" in world.screen("wait", mine, on="b") + world.screen("jobs", "--ended", on="b")


def test_frames_that_are_late_lost_or_doubled_make_no_job_run_twice_or_not_at_all(world: World) -> None:
    """Placements, ends, cancellations and retries over cables of the worst kind."""
    for node in world.nodes:
        world.cables.set(node, up=BAD, down=BAD)
    gang = world.submit("--nodes", "2", gpu="0.5")
    jobs = [world.submit(through=name) for name in ("a", "b", "c", "b")]
    world.wait_running(*jobs, gang)
    world.screen("cancel", jobs[0])
    world.diary.end(*jobs[1:])
    world.wait_state(jobs[0], "cancelled")
    for job in jobs[1:]:
        world.wait_state(job, "succeeded")


@pytest.mark.parametrize("asleep", [False, True], ids=["cut off", "asleep"])
def test_a_node_ends_what_is_to_stop_without_the_pool_and_only_that(world: World, *, asleep: bool) -> None:
    """It counts by itself, also over a sleep; the job then runs elsewhere, but no moment before its end."""
    stops, keeps = world.submit("--model", "4090,h100", "--stop-after", "60s", through="c"), world.submit()
    where = world.wait_running(stops, keeps)[0].node
    world.cut(where)
    world.wait_presence(where, "unknown")
    if asleep:
        world.coordinator.machine.sleep(50)
        assert world.is_alive(stops)
    world.nodes[where].machine.sleep(61)
    wait_until(lambda: world.diary.runs(stops)[0].ended == "stopped", "its own node stops it")
    assert len(world.diary.runs(stops)) == 1
    assert world.is_alive(keeps)
    world.coordinator.machine.sleep(100)
    second = world.wait_runs(stops, 2)[1]
    assert second.node != where
    assert second.began > world.diary.runs(stops)[0].last
    assert len(world.diary.runs(keeps)) == 1
