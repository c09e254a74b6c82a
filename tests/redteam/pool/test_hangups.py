"""Clients that ask another node of the pool for GPUs and end: what they asked for leaves that node's queue.

Each attack is by a user who may do what the client begins. Beside it waits a job of the pool, which the node
refuses as long as it keeps its room for the client's request, and which must run soon after the client's end.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Final

import pytest

from tests.bed import parts
from tests.pool.failures.daemons import Coordinator, Json, Node
from tests.pool.failures.machine import Program, wait_until
from tests.pool.failures.world import World

CLIENT: Final = Path(__file__).with_name("hanging_client.py")
GONE_SECONDS: Final = 30.0
CABLE_SECONDS: Final = 30.0
"""A cable that is cut without a word is noticed after so long."""
RUNS_SECONDS: Final = 60.0
"""Longer than a job waits that was refused, before it is offered again."""
MANY: Final = 20
_NUMBERS = count(1)


@pytest.fixture(scope="module")
def pool(docker_cli: Path, docker_engine: str) -> Iterator[World]:
    made = World()
    try:
        made.build()
        yield made
    finally:
        made.dispose()


@pytest.fixture
def world(pool: World) -> Iterator[World]:
    yield pool
    pool.heal()
    daemons: list[Coordinator | Node] = [pool.coordinator, *pool.nodes.values()]
    for one in daemons:
        assert one.program is not None
        if not one.program.running:
            one.start()
    pool.judge()


@pytest.fixture
def docker_host(world: World) -> str:
    """Where machine a reaches the gate of node b, on which a job holds one of two GPUs for an hour at most.

    Only because of that limit b keeps its other GPU for a client that asks for both.
    """
    job = world.submit("--node", "b", "--time", "1h")
    world.wait_running(job)
    return world.nodes["a"].gpushare("docker-host", job).strip().removeprefix("unix://")


def client(world: World, *words: str) -> Program:
    return world.nodes["a"].machine.start(*words, log=f"client-{next(_NUMBERS)}.log")


def bare(world: World, docker_host: str, how: str = "waits") -> Program:
    """A client that asks for both GPUs of b."""
    return client(world, sys.executable, str(CLIENT), docker_host, how)


def queued(world: World) -> list[Json]:
    return [lease for lease in world.nodes["b"].leases().values() if lease["state"] == "queued"]


def waits(world: World, number: int = 1) -> None:
    wait_until(lambda: len(queued(world)) == number, f"{number} wait in the queue of b")


def left(world: World, seconds: float = GONE_SECONDS) -> None:
    wait_until(lambda: not queued(world), "nothing waits in the queue of b", seconds)


def notices(world: World) -> list[str]:
    """Which nodes are tried last, and why."""
    found: list[str] = world.coordinator.call("Jobs/Nodes").get("notices", [])
    return found


def refused(world: World) -> str:
    """A job for b, which b has refused so often that it is tried last."""
    job = world.submit("--node", "b")
    wait_until(lambda: notices(world), "b is tried last")
    (notice,) = notices(world)
    assert "b keeps room for its own queue" in notice
    return job


def runs(world: World, job: str) -> None:
    """The ordinary task: it has room at last, and b is as good as any other node."""
    wait_until(lambda: not notices(world), "no node is tried last")
    wait_until(lambda: world.job(job)["state"] == "running", f"job {job} runs", RUNS_SECONDS)


def test_docker_that_is_killed_while_it_waits(world: World, docker_host: str) -> None:
    words = ("run", "--rm", "--network", "none", "--gpus", "2", parts.BUSYBOX_IMAGE, "true")
    program = client(world, str(parts.DOCKER), "-H", f"unix://{docker_host}", *words)
    waits(world)
    job = refused(world)
    program.kill()
    left(world)
    runs(world, job)


def test_a_client_that_says_no_more_and_is_killed_afterwards(world: World, docker_host: str) -> None:
    program = bare(world, docker_host, "half")
    waits(world)
    job = refused(world)
    assert queued(world), "the end of what it sends is not its own end"
    program.kill()
    left(world)
    runs(world, job)


def test_a_client_whose_end_stands_behind_what_nobody_reads(world: World, docker_host: str) -> None:
    program = bare(world, docker_host, "floods")
    waits(world)
    job = world.submit("--node", "b")
    program.kill()
    left(world)
    runs(world, job)


def test_a_client_that_goes_on_sending_hides_its_end_and_does_not_wait(
    world: World, docker_host: str
) -> None:
    program = bare(world, docker_host, "floods")
    waits(world)
    left(world)
    wait_until(lambda: not program.running, "nobody takes what it sends")
    runs(world, world.submit("--node", "b"))


def test_a_client_whose_own_daemon_is_killed_and_stays_away(world: World, docker_host: str) -> None:
    program = bare(world, docker_host)
    waits(world)
    job = refused(world)
    world.nodes["a"].kill()
    left(world)
    runs(world, job)
    program.kill()


def test_a_client_whose_machine_is_cut_off_without_a_word(world: World, docker_host: str) -> None:
    program = bare(world, docker_host)
    waits(world)
    job = refused(world)
    world.cut("a")
    left(world, CABLE_SECONDS + GONE_SECONDS)
    runs(world, job)
    world.heal()
    wait_until(lambda: "was broken for too long" in program.tail(), "the client reads why")
    program.kill()


def test_a_client_that_is_killed_while_the_coordinator_is_away(world: World, docker_host: str) -> None:
    program = bare(world, docker_host)
    waits(world)
    world.coordinator.kill()
    program.kill()
    world.coordinator.start()
    left(world)
    runs(world, world.submit("--node", "b"))


def test_many_clients_that_are_killed_at_once(world: World, docker_host: str) -> None:
    programs = [bare(world, docker_host, "half" if number % 2 else "waits") for number in range(MANY)]
    waits(world, MANY)
    job = refused(world)
    for program in programs:
        program.kill()
    left(world)
    runs(world, job)


# --- what is no attack ---------------------------------------------------------------------------------


def test_a_client_that_waits_has_its_room_in_the_end_though_the_coordinator_died_meanwhile(
    world: World, docker_host: str
) -> None:
    """One that has said all it had to say is no client that is gone."""
    programs = [bare(world, docker_host, how) for how in ("waits", "half")]
    waits(world, len(programs))
    world.coordinator.kill()
    time.sleep(5.0)
    world.coordinator.start()
    time.sleep(GONE_SECONDS)
    assert len(queued(world)) == len(programs)
    world.diary.end(*world.submitted)
    wait_until(lambda: any("HTTP/1.1 201" in program.tail() for program in programs), "one has its room")
    for program in programs:
        program.kill()
    node = world.nodes["b"]
    for lease in node.leases():
        node.gpushare("stop", lease, check=False)


def test_the_end_of_a_programs_input_is_not_the_end_of_its_client(world: World, docker_host: str) -> None:
    words = ("run", "-i", "--rm", "--network", "none", parts.BUSYBOX_IMAGE)
    script = "sh -c 'cat; sleep 5; echo said after the end'"
    host = f"{parts.DOCKER} -H unix://{docker_host}"
    done = world.nodes["a"].machine.run("sh", "-c", f"echo hello | {host} {' '.join(words)} {script}")
    assert done.stdout.split("\n") == ["hello", "said after the end", ""]


def test_a_node_that_keeps_room_for_its_own_users_is_as_good_as_others_when_they_have_gone(
    world: World, docker_host: str
) -> None:
    node = world.nodes["b"]
    lease = node.call("Leases/Request", {"gpu": "2"})["id"]
    waits(world)
    job = refused(world)
    node.call("Leases/Release", {"lease_id": lease})
    runs(world, job)
