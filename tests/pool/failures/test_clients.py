"""Clients of `gpushare run --pool` that end: what they wait for, or hold, is for others at once."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

import pytest

from tests.bed import parts
from tests.pool.failures.daemons import Json
from tests.pool.failures.machine import Program, wait_until
from tests.pool.failures.world import OVER, World

_NUMBERS = count(1)
ON_B = ("--gpu", "2", "--model", "4090")
"""Both GPUs of b."""


def client(world: World, *words: str, where: tuple[str, ...] = ON_B, docker: str = "") -> tuple[Program, str]:
    """`gpushare run --pool` on machine a; the process, and the id of its job.

    ``docker``: the folder of another program in the place of docker.
    """
    node, known = world.nodes["a"], set(world.coordinator.jobs())
    path = node.machine.run("printenv", "PATH").stdout.strip()
    program = node.machine.start(
        *(
            "env",
            f"PATH={docker}:{path}" if docker else f"PATH={path}",
            f"GPUSHARE_HOST=unix://{node.socket}",
        ),
        *("gpushare", "run", "--pool", *where, *words, parts.BUSYBOX_IMAGE, "sleep", "1000"),
        log=f"client-{next(_NUMBERS)}.log",
    )
    wait_until(lambda: set(world.coordinator.jobs()) - known, "the pool has the job")
    (job,) = set(world.coordinator.jobs()) - known
    return program, job


def with_a_lease(world: World, job: str) -> Json:
    """The job once its lease is there and no container yet."""

    def look() -> bool:
        shown = world.job(job)["parts"]
        return bool(shown) and shown[0]["state"] == "reserved"

    wait_until(look, "the job has its lease")
    return world.job(job)


@pytest.fixture
def idle_docker(world: World) -> str:
    """The folder of a docker that never makes a container."""
    folder = world.directory / "idle"
    folder.mkdir(exist_ok=True)
    (folder / "docker").write_text("#!/bin/sh\nexec sleep 1000\n")
    (folder / "docker").chmod(0o755)
    return str(folder)


def nothing(_: World) -> None:
    """All is well."""


def the_daemon_dies(world: World) -> None:
    world.nodes["a"].kill()


def the_coordinator_dies(world: World) -> None:
    world.coordinator.kill()


def the_cable_is_cut(world: World) -> None:
    world.cut("a")


def all_is_mended(world: World) -> None:
    world.heal()
    for one in (world.coordinator, world.nodes["a"]):
        assert one.program is not None
        if not one.program.running:
            one.start()


FAULTS = [nothing, the_daemon_dies, the_coordinator_dies, the_cable_is_cut]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_a_client_that_is_gone_holds_nothing_and_waits_for_nothing(
    world: World, idle_docker: str, fault: Callable[[World], None]
) -> None:
    """Whatever failed meanwhile: neither a lease for a minute, nor a place in the pool's queue."""
    holds, reserved = client(world, docker=idle_docker)
    lease = with_a_lease(world, reserved)["parts"][0]["lease_id"]
    waits, queued = client(world)
    world.wait_state(queued, "queued")
    fault(world)
    for program in (waits, holds):
        program.kill()
    all_is_mended(world)
    for job in (queued, reserved):
        assert world.wait_state(job, *OVER)["state"] == "cancelled"
    wait_until(lambda: not world.nodes["b"].leases(), "nothing is held")
    shown = world.nodes["b"].call("Leases/Get", {"lease_id": lease})
    assert shown["outcome"]["kind"] == "stopped", "and not because its minute was over"


def test_a_container_of_the_pool_outlives_the_client_that_started_it_detached(
    world: World, idle_docker: str
) -> None:
    program, job = client(world, "-d")
    program.process.wait(60)
    world.wait_state(job, "running")
    holds, other = client(world, where=("--gpu", "1", "--model", "t4"), docker=idle_docker)
    with_a_lease(world, other)
    holds.kill()
    world.wait_state(other, "cancelled")
    assert world.job(job)["state"] == "running"
    world.screen("cancel", "--grace", "0", job)
    world.wait_state(job, *OVER)


def test_a_container_on_another_node_is_found_by_its_name(world: World) -> None:
    program, job = client(world, "-d", "--name", "trainer")
    program.process.wait(60)
    world.wait_state(job, "running")
    assert job in world.screen("why", "trainer")
    assert world.screen("logs", "trainer") == ""
    assert "trainer" in world.screen("jobs")
    assert job in world.screen("stop", "--grace", "0", "trainer")
    assert world.wait_state(job, *OVER)["name"] == "trainer"
    again, other = client(world, "-d", "--rm", "--name", "again")
    again.process.wait(60)
    world.wait_state(other, "running")
    world.screen("cancel", "--grace", "0", "--name", "again")
    world.wait_state(other, *OVER)
