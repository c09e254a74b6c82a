"""Jobs on several nodes: all parts start or none, they find each other, and they end as one."""

from __future__ import annotations

import sys

import pytest

from gpushared.domain.jobs.orders import port_for
from gpushared.domain.model.lease import AttemptKey, JobId
from tests.pool.failures.machine import wait_until
from tests.pool.failures.world import World
from tests.pool.gangs.conftest import RESERVE_SECONDS, Gangs

pytestmark = pytest.mark.docker

MEET = r"""
cat >/tmp/told <<'END'
read rank
: >/tmp/ranks/$rank
until [ $(ls /tmp/ranks | wc -l) = $GPUSHARE_NNODES ]; do sleep 0.1; done
echo $(ls /tmp/ranks)
: >/tmp/answered/$rank
END
if [ $NODE_RANK = 0 ]; then
    mkdir /tmp/ranks /tmp/answered
    nc -ll -p $MASTER_PORT -e sh /tmp/told &
fi
ask() { echo $NODE_RANK | nc $MASTER_ADDR $MASTER_PORT >/tmp/all 2>/dev/null; }
until ask && [ -s /tmp/all ]; do sleep 0.1; done
echo "$NODE_RANK of $(cat /tmp/all), $WORLD_SIZE GPUs: $GPUSHARE_GPUS_BY_NODE, at $GPUSHARE_HOSTS"
[ $NODE_RANK != 0 ] || until [ $(ls /tmp/answered | wc -l) = $GPUSHARE_NNODES ]; do sleep 0.1; done
"""
"""Rank 0 listens, all tell it their numbers, and each is told those of all."""
LISTEN = """
import socket, sys, time
with socket.create_server(("", int(sys.argv[1]))):
    print("listens", flush=True)
    time.sleep(100)
"""
WAIT = "trap 'echo told; exit 0' TERM; sleep 1000 & wait"


@pytest.mark.parametrize(
    ("options", "gpus"),
    [(("--nodes", "2", "--gpu", "1"), [1, 1]), (("--gpu", "5", "--span"), [2, 2, 1])],
    ids=["so many nodes", "so many GPUs wherever they are"],
)
def test_the_parts_find_each_other_by_what_they_are_told(
    gangs: Gangs, options: tuple[str, ...], gpus: list[int]
) -> None:
    job = gangs.submit(*options, script=MEET)
    assert gangs.over(job)["state"] == "succeeded", gangs.story(job)
    nodes = [part["node"] for part in gangs.world.job(job)["parts"]]
    hosts = ",".join(gangs.world.nodes[node].machine.address for node in nodes)
    ranks = " ".join(str(rank) for rank in range(len(gpus)))
    shares = ",".join(map(str, gpus))
    for rank in range(len(gpus)):
        assert gangs.said(job, rank) == [f"{rank} of {ranks}, {sum(gpus)} GPUs: {shares}, at {hosts}"]


def test_two_that_need_the_same_nodes_run_one_after_the_other(gangs: Gangs) -> None:
    """Neither keeps a part of what the other needs."""
    jobs = [gangs.submit("--nodes", "3", "--gpu", "2", script=MEET, through=node) for node in ("a", "b")]
    assert [gangs.over(job)["state"] for job in jobs] == ["succeeded", "succeeded"]


def test_when_one_part_fails_the_others_are_told_to_stop_and_it_fails_with_that_code(gangs: Gangs) -> None:
    script = f"[ $NODE_RANK != 1 ] || exit 7; {WAIT}"
    job = gangs.submit("--nodes", "3", "--gpu", "1", script=script)
    done = gangs.over(job)
    assert (done["state"], done["exit_code"], done["attempt"]) == ("failed", 7, 1)
    assert "its part on node b ended (exit code 7), so the rest of it is ended" in gangs.story(job)


def test_when_one_part_fails_all_of_it_is_tried_again(gangs: Gangs) -> None:
    script = f"[ $GPUSHARE_ATTEMPT = 1 ] || exit 0; [ $NODE_RANK != 1 ] || exit 7; {WAIT}"
    job = gangs.submit("--nodes", "2", "--gpu", "1", "--retries", "1", script=script)
    done = gangs.over(job)
    assert (done["state"], done["attempt"]) == ("succeeded", 2), gangs.story(job)


def test_all_parts_of_one_that_is_cancelled_end(gangs: Gangs) -> None:
    job = gangs.submit("--nodes", "3", "--gpu", "1", script=f"echo began; {WAIT}")
    gangs.world.wait_state(job, "running")
    for rank in range(3):
        wait_until(lambda rank=rank: "began" in gangs.said(job, rank), f"{rank} begins")  # type: ignore[misc]
    gangs.world.nodes["b"].gpushare("cancel", job)
    assert gangs.over(job)["state"] == "cancelled"
    assert all("told" in gangs.said(job, rank) for rank in range(3))


def test_it_meets_elsewhere_where_its_port_is_in_use(gangs: Gangs) -> None:
    job = gangs.submit("--nodes", "2", "--gpu", "1", "--hold", script=MEET)
    machine = gangs.world.nodes["a"].machine
    port = port_for(AttemptKey(JobId(job), 1))
    squatter = machine.start(sys.executable, "-c", LISTEN, str(port), log="squatter.log")
    wait_until(lambda: "listens" in squatter.tail(), "somebody listens")
    gangs.world.nodes["a"].gpushare("unhold", job)
    done = gangs.over(job)
    squatter.kill()
    assert (done["state"], done["attempt"]) == ("succeeded", 2), gangs.story(job)
    assert f"port {port} of this node is in use" in gangs.story(job)


# --- between the reservation and the start ---------------------------------------------------------------


@pytest.fixture
def between(gangs: Gangs) -> str:
    """A job on a and b that is reserved on both, of which a cannot tell and b not be told."""
    job = gangs.working("--nodes", "2", "--model", "h100,rtx4090", "--hold", through="b")
    # A pool places nothing on a node that has been silent for a while, and a command takes seconds at times.
    gangs.world.cut("a", "up")
    gangs.world.coordinator.call("Jobs/Hold", {"job_id": job, "held": False})
    gangs.wait_reserved("a", "b")
    gangs.world.cut("b", "down")
    return job


def begun(world: World, job: str) -> list[tuple[str, int]]:
    return [(run.node, run.attempt) for run in world.diary.runs(job)]


def test_a_node_that_is_cut_off_before_the_start_joins_when_it_is_back(gangs: Gangs, between: str) -> None:
    """While its reservation lasts. That all may start was written first, so it is said again."""
    world = gangs.world
    world.cables.set("a")
    wait_until(lambda: begun(world, between) == [("a", 1)], "a begins alone")
    world.heal()
    world.wait_runs(between, 2)
    world.wait_state(between, "running")
    world.diary.end(between)
    assert gangs.over(between)["state"] == "succeeded"
    assert sorted(begun(world, between)) == [("a", 1), ("b", 1)]


def test_a_node_that_is_cut_off_for_longer_than_it_keeps_its_part_has_all_of_it_begun_anew(
    gangs: Gangs, between: str
) -> None:
    """Once those that began without it have ended."""
    world = gangs.world
    world.cables.set("a")
    wait_until(lambda: begun(world, between) == [("a", 1)], "a begins alone")
    wait_until(lambda: not gangs.leases("b"), "b gives its part back", 3 * RESERVE_SECONDS)
    world.heal()
    world.wait_runs(between, 3)
    world.diary.end(between)
    done = gangs.over(between)
    assert (done["state"], done["attempt"]) == ("succeeded", 2), gangs.story(between)
    assert sorted(begun(world, between)) == [("a", 1), ("a", 2), ("b", 2)]


def test_a_coordinator_that_dies_before_the_start_starts_it_in_its_next_life(
    gangs: Gangs, between: str
) -> None:
    """The reservations are there, and nobody starts before the new one has said so."""
    world = gangs.world
    world.coordinator.kill()
    world.heal()
    world.coordinator.start()
    world.wait_runs(between, 2)
    world.diary.end(between)
    assert gangs.over(between)["state"] == "succeeded"
    assert sorted(begun(world, between)) == [("a", 1), ("b", 1)]


# --- while it runs ---------------------------------------------------------------------------------------


def test_when_one_node_loses_its_power_the_others_are_stopped_and_all_of_it_is_begun_anew(
    gangs: Gangs,
) -> None:
    world = gangs.world
    job = gangs.working("--nodes", "2", "--model", "h100,rtx4090")
    world.wait_runs(job, 2)
    world.nodes["b"].machine.cut_power()
    world.nodes["b"].boot()
    world.wait_runs(job, 4)
    world.diary.end(job)
    done = gangs.over(job)
    assert (done["state"], done["attempt"]) == ("succeeded", 2), gangs.story(job)


def test_while_a_node_is_silent_its_job_runs_on(gangs: Gangs) -> None:
    """Its part may be well."""
    world = gangs.world
    job = gangs.working("--nodes", "2", "--model", "h100,rtx4090")
    world.wait_runs(job, 2)
    world.cut("b")
    world.wait_presence("b", "unknown")
    assert world.is_alive(job)
    world.heal()
    world.wait_ready(["b"])
    world.diary.end(job)
    done = gangs.over(job)
    assert (done["state"], done["attempt"]) == ("succeeded", 1)
