"""What all containers of a user have together, on the real engine and the kernel's own limits."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest

from gpushared.domain.model.errors import SharingUnavailable
from gpushared.gate.api.site import SitePolicy
from gpushared.gate.docker_gate import Gate
from gpushared.sharing.user_cgroups import UserCgroups
from tests.bed.cgroups import remove_users
from tests.gate.docker import Docker, DockerClients, docker_clients
from tests.gate.lease_services import FakeLeaseService
from tests.gate.serving import ALICE, serving_gate

pytestmark = pytest.mark.docker

MIB = 1 << 20
POLICY = SitePolicy(memory_per_user=64 * MIB, cpus_per_user=0.5, pids_per_user=40)
HOLDS = "dd if=/dev/zero of=/dev/shm/x bs=1M count={} 2>/dev/null && echo held && sleep 600"
FORKS = "for i in $(seq {}); do sleep 600 & done; echo forked; wait"


@dataclass
class LimitedClients(DockerClients):
    """Clients before a gate that limits what all containers of a user have together."""

    walls: UserCgroups

    def __post_init__(self) -> None:
        self._name = f"together-{uuid.uuid4().hex[:8]}"
        self._made = 0

    async def starts(self, docker: Docker, script: str, *options: str) -> str:
        """A container that runs; comes back when its script has said something."""
        self._made += 1
        name = f"{self._name}-{self._made}"
        words = ("-d", "--init", "--network", "none", "--shm-size", "256m", "--name", name, *options)
        done = await docker("run", *words, docker.image, "sh", "-c", script)
        assert done.code == 0, done.err
        await self.says(docker, name)
        return name

    async def says(self, docker: Docker, name: str) -> None:
        process = await docker.start("logs", "-f", name)
        assert process.stdout is not None
        async with asyncio.timeout(60):
            await process.stdout.readline()
        with contextlib.suppress(ProcessLookupError):
            process.kill()  # what is read to its end has ended
        await process.communicate()

    async def shown(self, container: str, what: str) -> str:
        return (await self.root("inspect", "-f", "{{" + what + "}}", container)).out.decode().strip()

    async def clear(self) -> None:
        names = [f"{self._name}-{number + 1}" for number in range(self._made)]
        if names:
            await self.root("rm", "-f", *names)


@pytest.fixture
async def clients(
    lease_service: FakeLeaseService,
    docker_engine: str,
    docker_environment: dict[str, str],
    busybox_image: str,
) -> AsyncIterator[LimitedClients]:
    walls = UserCgroups(f"test-{uuid.uuid4().hex[:8]}")
    gate = Gate(docker_engine, lease_service, POLICY, walls=walls)
    async with docker_clients(gate, docker_engine, docker_environment, busybox_image) as unlimited:
        clients = LimitedClients(**vars(unlimited), walls=walls)
        yield clients
        await clients.clear()
    remove_users(walls.home)


async def test_processes_of_all_containers_of_a_user_are_counted_together(clients: LimitedClients) -> None:
    """The kernel refuses the next, be it in another container; others' are not counted."""
    first = await clients.starts(clients.alice, FORKS.format(20))
    second = await clients.starts(clients.alice, f"({FORKS.format(30)}) || echo full; sleep 600")
    assert b"can't fork" in (await clients.alice("logs", second)).err
    await clients.alice("exec", "-d", first, "sh", "-c", FORKS.format(12))
    third = await clients.alice.run(clients.alice.image, "true")
    assert third.code == 125
    assert b"of the 40 processes that a user may have here" in third.err
    assert (await clients.bob.run(clients.bob.image, "true")).code == 0


async def test_memory_of_all_containers_of_a_user_is_counted_together(clients: LimitedClients) -> None:
    """Without a word of memory in any of them: what does not fit is killed, and only with its owner."""
    first = await clients.starts(clients.alice, HOLDS.format(40))
    bobs = await clients.starts(clients.bob, HOLDS.format(40))
    second = await clients.alice.run("--shm-size", "256m", clients.alice.image, "sh", "-c", HOLDS.format(40))
    running = await clients.shown(first, ".State.Running")
    assert second.code == 137 or running == "false"
    assert await clients.shown(bobs, ".State.Running") == "true"


async def test_a_start_that_would_find_no_memory_is_refused_in_a_sentence(clients: LimitedClients) -> None:
    await clients.starts(clients.alice, HOLDS.format(56))
    done = await clients.alice.run(clients.alice.image, "true")
    assert done.code == 125
    assert b"of the 64 MiB of memory that a user may have here" in done.err


TOO_MUCH = {
    "memory": (("--memory", "1g"), "more than all containers of a user may have here"),
    "cpus": (("--cpus", "2"), "more CPUs than all containers of a user may have here"),
    "quota": (("--cpu-quota", "200000"), "more CPUs than all containers of a user may have here"),
}


@pytest.mark.parametrize("case", TOO_MUCH)
async def test_one_container_asks_for_no_more_than_all_may_have(clients: LimitedClients, case: str) -> None:
    """Neither when it is created nor by an update."""
    options, sentence = TOO_MUCH[case]
    created = await clients.alice.run(*options, clients.alice.image, "true")
    assert (created.code, sentence in created.err.decode()) == (125, True), created.err
    own = await clients.starts(clients.alice, "echo up; sleep 600")
    updated = await clients.alice("update", *options, own)
    assert (updated.code, sentence in updated.err.decode()) == (1, True), updated.err


async def test_a_raised_limit_of_a_container_raises_nothing_of_its_users(clients: LimitedClients) -> None:
    own = await clients.starts(clients.alice, "echo up; sleep 600", "--pids-limit", "5")
    updated = await clients.alice("update", "--pids-limit", "4000", "--memory", "0", own)
    assert updated.code == 0, updated.err
    assert await clients.shown(own, ".HostConfig.PidsLimit") == "40"
    inside = await clients.alice("exec", own, "sh", "-c", FORKS.format(60))
    assert b"can't fork" in inside.err


async def test_what_the_engine_starts_again_is_bounded_as_before(clients: LimitedClients) -> None:
    """A restart policy asks nobody here."""
    await clients.starts(clients.alice, FORKS.format(25))
    again = await clients.starts(
        clients.alice, f"echo up; {FORKS.format(30)} & sleep 1", "--restart", "always"
    )
    process = await clients.root.start("events", "--filter", f"container={again}", "--filter", "event=start")
    assert process.stdout is not None
    await process.stdout.readline()
    process.kill()
    await process.communicate()
    parent = await clients.shown(again, ".HostConfig.CgroupParent")
    assert parent == clients.walls.parent_of(
        ALICE.uid, clients.gate._handler_context.lease_service.engine_facts()
    )
    assert b"can't fork" in (await clients.alice("logs", again)).err


async def test_who_is_trusted_is_bounded_only_where_everybody_is_judged(clients: LimitedClients) -> None:
    free = await clients.starts(clients.root, FORKS.format(60))
    assert await clients.shown(free, ".HostConfig.CgroupParent") == ""
    clients.gate.policy = SitePolicy(pids_per_user=40, everybody_confined=True)
    held = await clients.starts(clients.root, FORKS.format(60))
    assert b"can't fork" in (await clients.root("logs", held)).err


async def test_other_limits_hold_for_what_runs(
    clients: LimitedClients, lease_service: FakeLeaseService
) -> None:
    own = await clients.starts(clients.alice, "echo up; sleep 600")
    await clients.walls.apply(SitePolicy(pids_per_user=10).user_bounds)
    inside = await clients.alice("exec", own, "sh", "-c", FORKS.format(20))
    assert b"can't fork" in inside.err


async def test_a_user_with_more_than_a_lowered_limit_gets_no_more_containers(clients: LimitedClients) -> None:
    """Cgroup v1 keeps its old limit then; v2 ends what is too much."""
    await clients.starts(clients.alice, HOLDS.format(50))
    clients.gate.policy = SitePolicy(memory_per_user=16 * MIB)
    done = await clients.alice.run(clients.alice.image, "true")
    assert done.code == 125, (done.out, done.err)
    assert b"a user may have here" in done.err


async def test_a_container_with_more_cpus_than_a_lowered_limit_says_how_to_start_it(
    clients: LimitedClients,
) -> None:
    own = await clients.starts(clients.alice, "echo up; sleep 600", "--cpus", "0.5")
    await clients.alice("stop", "-t", "0", own)
    clients.gate.policy = SitePolicy(cpus_per_user=0.2)
    done = await clients.alice("start", own)
    assert b"this container has 0.5 CPUs, and all of a user may have 0.2" in done.err
    assert b"docker update --cpus 0.2" in done.err
    assert (await clients.alice("update", "--cpus", "0.2", own)).code == 0
    assert (await clients.alice("start", own)).code == 0


class BrokenUserCgroups(UserCgroups):
    """A machine on which no cgroup can be made."""

    async def hold(self, *_: object) -> None:
        raise SharingUnavailable("the limits of users cannot be kept: /sys/fs/cgroup: Read-only file system")


async def test_limits_that_the_site_set_are_not_passed_over_where_they_cannot_be_kept(
    docker_engine: str,
    lease_service: FakeLeaseService,
    docker_environment: dict[str, str],
    busybox_image: str,
) -> None:
    """Those of a preset are: else nobody could use such a machine. The doctor says so."""
    gate = Gate(docker_engine, lease_service, SitePolicy(pids_per_user=40), walls=BrokenUserCgroups("none"))
    async with serving_gate(gate, ALICE) as served:
        alice = Docker(served.url, docker_environment, busybox_image)
        assert (await alice.run(busybox_image, "true")).code == 0
        gate.policy = SitePolicy(pids_per_user=40, configured_fields=frozenset({"pids_per_user"}))
        done = await alice.run(busybox_image, "true")
    assert done.code == 125
    assert b"the limits of users cannot be kept" in done.err
