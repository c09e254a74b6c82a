"""The driver's wall around real containers: engine, hook and cgroups are real, the driver is played.

On a machine that has booted with cgroup v1 the engine has the kernel's v2 tree all the same, without
controllers. What no test here sees is a driver that accounts, and Docker's systemd cgroup driver.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from gpushared.domain.leases.node_rules import MpsMode
from gpushared.domain.model.lease import ContainerId, Lease, MemoryWall
from gpushared.engine.docker_engine import DockerEngine
from gpushared.engine.processes import place_of
from gpushared.gpus.nvml import NvmlGpus
from gpushared.gpus.nvml_settings import NvmlMemoryLimits
from gpushared.ports import CgroupDriver, EditMount, Edits, Hook
from gpushared.sharing.cgroups import LeaseCgroups
from gpushared.sharing.driver_wall import DriverWall
from gpushared.sharing.mps import MpsSharing
from tests.bed.engine import UnifiedEngine
from tests.bed.parts import BUSYBOX_IMAGE
from tests.engine.containers import unique_name
from tests.gpus.drivers import close_and_join
from tests.gpus.fake_nvml import STATE_VARIABLE, FakeGpu, FakeMachine, fake_nvml_library
from tests.sharing.cgroups import real_root
from tests.sharing.samples import FIRST, GPUS, grant, lease

OWN_ROOT = f"/proc/{os.getpid()}/root"
LIMIT_BYTES = grant(FIRST).memory_bytes


@dataclass
class Node:
    """What a daemon on the engine's machine has; ``run`` does what the gate does."""

    engine: DockerEngine
    bed: UnifiedEngine
    sharing: MpsSharing
    machine: FakeMachine
    root: Path

    async def open(self, one: Lease) -> Edits:
        return await self.sharing.open(one, GPUS, await self.engine.probe())

    async def run(self, one: Lease, edits: Edits, *command: str) -> ContainerId:
        await self.engine.write_device(one.device_name, edits)
        words = ("--detach", "--network=none", f"--cgroup-parent={edits.cgroup_parent}")
        device = f"--device=gpushare.io/lease={one.device_name}"
        return ContainerId(self.bed.check("run", *words, device, BUSYBOX_IMAGE, *command))

    @property
    def limits(self) -> dict[str, int]:
        """By place in the tree."""
        found = self.machine.memory_limits()
        return {path.removeprefix(str(self.root)): hard for (_, path), (_, hard) in found.items()}


@pytest.fixture
async def node(
    unified_engine: UnifiedEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Node]:
    library, root = fake_nvml_library(tmp_path), real_root()
    machine = FakeMachine(tmp_path / "state", gpus=[FakeGpu(gpu) for gpu in GPUS], cgroups=root)
    monkeypatch.setenv(STATE_VARIABLE, str(machine.state))
    gpus = NvmlGpus(library=str(library))
    wall = DriverWall(
        NvmlMemoryLimits(gpus, cgroup_root=root), LeaseCgroups(root), environ=machine.environment(library)
    )
    engine = DockerEngine(unified_engine.url, simulated_gpus=True, spec_dir=unified_engine.spec_dir)
    # The engine sees /tmp under the same name, and MPS wants a short path.
    with TemporaryDirectory(prefix="gs-", dir="/tmp") as runtime_dir:
        sharing = MpsSharing(Path(runtime_dir), binary=None, mode=MpsMode.OFF, wall=wall)
        yield Node(engine, unified_engine, sharing, machine, root)
    await engine.close()
    await close_and_join(gpus)


@pytest.fixture
async def mine(node: Node) -> AsyncIterator[Lease]:
    one = lease(1, device_name=unique_name())
    yield one
    for container in node.bed.check("ps", "--all", "--quiet").split():
        node.bed.check("rm", "--force", container)
    await node.sharing.close_lease(one.id, one.device_name)


def as_the_machine(hook: Hook) -> Hook:
    """The hook with the machine's files around it: the engine's own root here has neither Python nor us."""
    words = ("sh", "-c", f'exec chroot {OWN_ROOT} "$@"', "sh", hook.path, *hook.args[1:])
    return replace(hook, args=words)


async def test_the_engine_says_how_it_makes_cgroups(node: Node) -> None:
    """The name of a parent depends on it."""
    facts = await node.engine.probe()
    assert (facts.cgroup_version, facts.cgroup_driver) == (2, CgroupDriver.CGROUPFS)


async def test_a_container_is_limited_from_its_first_instruction_on(node: Node, mine: Lease) -> None:
    """The parent's limit and its own cgroup's are set when its program starts: the program sees them."""
    edits = await node.open(mine)
    edits = replace(
        edits,
        hooks=tuple(map(as_the_machine, edits.hooks)),
        mounts=(EditMount(str(node.machine.state.parent), "/driver"),),
    )
    container = await node.run(mine, edits, "cat", "/driver/state.limits")
    node.bed.check("wait", container)
    rows = (line.split(" ", 3) for line in node.bed.check("logs", container).splitlines())
    seen = {cgroup: int(hard) for _, _, hard, cgroup in rows}
    parent = f"{node.root}{edits.cgroup_parent}"
    assert seen == {parent: LIMIT_BYTES, f"{parent}/{container}": LIMIT_BYTES}


async def test_a_hook_that_cannot_run_does_not_keep_a_container_from_starting(
    node: Node, mine: Lease
) -> None:
    """As with an engine that does not see our Python; the parent holds it, and the daemon does the rest."""
    edits = await node.open(mine)
    container = await node.run(mine, edits, "sleep", "600")
    assert node.limits == {edits.cgroup_parent: LIMIT_BYTES}
    facts = await node.engine.inspect(container)
    assert facts is not None
    place = place_of(facts.pid, container)
    assert place == f"{edits.cgroup_parent}/{container}"
    await node.sharing.hold(mine, place)
    assert node.limits == {edits.cgroup_parent: LIMIT_BYTES, place: LIMIT_BYTES}


async def test_the_hook_refuses_where_the_tree_is_not_v2_and_the_container_starts(
    node: Node, mine: Lease
) -> None:
    """As on a machine with v1, whose engine would not be told of a hook in the first place."""
    edits = await node.open(mine)
    said = node.machine.state.parent / "said"
    [hook] = map(as_the_machine, edits.hooks)
    args = [word.replace(str(node.root), "/nowhere") for word in hook.args]
    args[2] = f'chroot {OWN_ROOT} "$@" 2>{said}'
    container = await node.run(mine, replace(edits, hooks=(replace(hook, args=tuple(args)),)), "true")
    assert node.bed.check("wait", container) == "0"
    assert "/nowhere is not cgroup v2" in said.read_text()
    assert node.limits == {edits.cgroup_parent: LIMIT_BYTES}


async def test_after_the_container_nothing_of_the_lease_is_left(node: Node, mine: Lease) -> None:
    """While a container runs its cgroup stays; then it goes, and no limit is kept for it."""
    edits = await node.open(mine)
    container = await node.run(mine, edits, "sleep", "600")
    parent = node.root / edits.cgroup_parent.lstrip("/")
    await node.sharing.close_lease(mine.id, mine.device_name)
    assert parent.is_dir()
    node.bed.check("rm", "--force", container)
    # The tree is the machine's: other tests may be at work in it.
    others = {path.name for path in parent.parent.iterdir()} - {mine.device_name}
    await node.sharing.sweep(others)
    assert not parent.exists()
    assert node.limits == {}


async def test_the_lease_of_such_a_container_names_the_drivers_wall(node: Node) -> None:
    """With a device of its own name, as leases that a container is made for have."""
    edits = await node.open(lease(2))
    assert edits.walls.memory_wall is MemoryWall.DRIVER
    await node.sharing.close_lease(lease(2).id, lease(2).device_name)
