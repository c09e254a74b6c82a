"""What becomes of jobs when daemons, engines and whole machines of the pool go down."""

from __future__ import annotations

import shutil
import signal

import pytest

from tests.pool.failures.machine import BrokenBed, wait_until
from tests.pool.failures.world import World


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM], ids=["killed", "stopped"])
def test_a_job_runs_on_while_its_nodes_daemon_is_away(world: World, how: signal.Signals) -> None:
    """Containers are not its children; back, it finds them, and the pool hears how they ended meanwhile."""
    stays, ends = world.submit("--node", "b"), world.submit("--node", "b")
    world.wait_running(stays, ends)
    node = world.nodes["b"]
    assert node.program is not None
    node.program.end(how)
    world.wait_presence("b", "unknown")
    assert world.is_alive(stays)
    world.diary.end(ends)
    wait_until(lambda: ends not in node.engine.running(), "one ends unseen")
    node.start()
    world.wait_state(ends, "succeeded")
    world.wait_state(stays, "running")
    assert len(world.diary.runs(stays)) == 1


def test_jobs_of_a_machine_that_lost_its_power_run_again_when_it_tells_so(world: World) -> None:
    """Not before: it might run on behind a broken switch. What must not be run again fails instead."""
    again, never = world.submit("--node", "b"), world.submit("--node", "b", "--no-requeue")
    world.wait_running(again, never)
    node = world.nodes["b"]
    node.machine.cut_power()
    world.wait_presence("b", "unknown")
    assert world.job(again)["state"] == "unknown"
    assert not world.is_alive(again)
    node.boot()
    world.wait_runs(again, 2)
    failed = world.wait_state(never, "failed")
    assert "lost" in failed["reason"] or "went down" in failed["reason"]
    assert "again" in world.screen("why", again)


def test_jobs_of_a_reinstalled_machine_run_again_once_it_has_joined_anew(world: World) -> None:
    """It knows nothing of them. One that was cancelled meanwhile is over, and --no-requeue fails."""
    again, never, ended = (
        world.submit("--node", "b", *options, gpu="0.5") for options in ((), ("--no-requeue",), ())
    )
    world.wait_running(again, never, ended)
    node = world.nodes["b"]
    node.machine.cut_power()
    world.wait_presence("b", "unknown")
    world.screen("cancel", ended)
    shutil.rmtree(node.state_dir)
    node.boot()
    node.join(world.coordinator)
    world.wait_ready(["b"])
    world.wait_state(ended, "cancelled")
    world.wait_runs(again, 2)
    assert "has no record of it" in world.wait_state(never, "failed")["reason"]


def test_a_node_that_is_gone_for_ever_gives_back_its_jobs_on_an_administrators_word(world: World) -> None:
    """And on nothing less. A machine that comes back after all must join anew, and ends what it still ran."""
    job = world.submit("--model", "4090")
    flexible = world.submit("--node", "b", "--stop-after", "1h")
    world.wait_running(job, flexible)
    node = world.nodes["b"]
    node.machine.cut_power()
    world.wait_presence("b", "unknown")
    with pytest.raises(BrokenBed, match="give your word with --is-off"):
        world.screen("node", "forget", "b")
    assert "those that wait for another node now: 2" in world.screen("node", "forget", "b", "--is-off")
    assert "b" not in world.presences()
    waits = world.wait_state(job, "queued")
    assert waits["reason"]
    node.boot()
    wait_until(lambda: "was revoked" in node.gpushare("doctor", check=False), "b says why it is in no pool")
    node.join_anew(world.coordinator)
    world.wait_ready(["b"])
    world.wait_runs(job, 2)
    world.wait_runs(flexible, 2)


def test_a_node_that_was_called_off_and_was_not_ends_its_old_jobs_when_it_comes_back(world: World) -> None:
    """Nobody but who gave the word can know; for as long as it is cut off, and no longer, both run."""
    job = world.submit("--model", "4090,h100", through="c")
    where = world.wait_running(job)[0].node
    world.cut(where)
    world.wait_presence(where, "unknown")
    assert "forgotten" in world.screen("node", "forget", where, "--is-off", on="c")
    world.excused.append(job)
    assert world.wait_runs(job, 2)[1].node != where
    world.heal()
    world.nodes[where].restart()
    world.nodes[where].join_anew(world.coordinator)
    wait_until(lambda: job not in world.nodes[where].engine.running(), "the old copy ends")


@pytest.mark.parametrize("how", ["stopped", "killed"])
def test_a_job_runs_on_while_docker_is_away(world: World, how: str) -> None:
    """Its lease stays; what ended meanwhile is known when Docker is back."""
    stays, ends = world.submit("--node", "b"), world.submit("--node", "b")
    world.wait_running(stays, ends)
    node = world.nodes["b"]
    getattr(node.engine, {"stopped": "stop", "killed": "kill"}[how])()
    late = world.submit("--node", "b", gpu="0.1")
    world.diary.end(ends)
    wait_until(lambda: world.diary.runs(ends)[0].ended == "done", "one ends unseen")
    assert len(node.leases()) >= 2
    assert world.is_alive(stays)
    assert world.presences()["b"] == "ready"
    node.engine.start()
    world.wait_state(ends, "succeeded")
    world.wait_running(stays, late)
    assert len(world.diary.runs(stays)) == 1
