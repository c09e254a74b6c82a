"""Leases behind the driver's limits: MPS's adapter and NVML's over the fake library, in a tree of cgroups."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from gpushared.domain.leases.node_rules import MpsMode
from gpushared.domain.model.errors import SharingUnavailable
from gpushared.domain.model.lease import (
    Active,
    ComputeCap,
    ContainerId,
    Lease,
    MemoryWall,
    Reserved,
    Walls,
)
from gpushared.domain.model.request import Request
from gpushared.gpus.nvml import NvmlGpus
from gpushared.gpus.nvml_settings import NvmlMemoryLimits
from gpushared.ports import CgroupDriver, DeviceMechanism, Edits, EngineFacts
from gpushared.sharing.cgroups import LeaseCgroups
from gpushared.sharing.driver_wall import DriverWall
from gpushared.sharing.mps import MpsSharing
from tests.gpus.drivers import close_and_join
from tests.gpus.fake_nvml import NO_MEMORY_LIMITS, STATE_VARIABLE, FakeGpu, FakeMachine, fake_nvml_library
from tests.sharing import cgroups
from tests.sharing.samples import FIRST, GPUS, SECOND, grant, lease, program

SET = NO_MEMORY_LIMITS[0]
QUARTER_BYTES = grant(FIRST).memory_bytes
HALF_BYTES = grant(FIRST, 500).memory_bytes
UNKNOWN_ERROR = 999
BEHIND = Walls(MemoryWall.DRIVER, ComputeCap.NONE)


def engine(driver: CgroupDriver = CgroupDriver.CGROUPFS, *, lease_devices: bool = True) -> EngineFacts:
    return EngineFacts("29.1.3", "1.52", lease_devices, DeviceMechanism.CDI, 2, driver)


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fake_nvml_library(tmp_path_factory.mktemp("nvml"))


@dataclass
class NodeWithWall:
    """A node with the driver's wall, and the daemons that run on it one after the other."""

    root: Path
    machine: FakeMachine
    library: Path
    runtime_dir: Path
    systemctl: str = "false"
    opened: list[NvmlGpus] = field(default_factory=list)

    def start(self, *, retry_seconds: float = 3600.0) -> MpsSharing:
        gpus = NvmlGpus(library=str(self.library), retry_seconds=0.0)
        self.opened.append(gpus)
        wall = DriverWall(
            NvmlMemoryLimits(gpus, cgroup_root=self.root),
            LeaseCgroups(self.root, systemctl=self.systemctl, systemd_runs=self.root / "none"),
            retry_seconds=retry_seconds,
        )
        return MpsSharing(self.runtime_dir, binary=None, mode=MpsMode.OFF, wall=wall)

    @property
    def limits(self) -> dict[tuple[str, str], int]:
        """The hard limits by GPU and place in the tree; there never is a guarantee."""
        found = self.machine.memory_limits()
        assert all(soft == 0 for soft, _ in found.values())
        return {(gpu, path.removeprefix(str(self.root))): hard for (gpu, path), (_, hard) in found.items()}

    def make(self, place: str) -> None:
        """As the engine does for a container."""
        (self.root / place.lstrip("/")).mkdir(parents=True)

    def remove(self, place: str) -> None:
        (self.root / place.lstrip("/")).rmdir()

    def break_driver(self, *, broken: bool = True) -> None:
        self.machine.errors = {SET: UNKNOWN_ERROR} if broken else {}
        self.machine.write()


@pytest.fixture
async def node(
    tmp_path: Path, runtime_dir: Path, library: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[NodeWithWall]:
    root = cgroups.tree(tmp_path / "cgroup")
    machine = FakeMachine(tmp_path / "state", gpus=[FakeGpu(gpu) for gpu in GPUS], cgroups=root)
    monkeypatch.setenv(STATE_VARIABLE, str(machine.state))
    made = NodeWithWall(root, machine, library, runtime_dir)
    # Plays systemd: a slice that is started has its cgroup.
    made.systemctl = str(
        program(
            tmp_path / "systemctl",
            f'echo "$2" "$3" >> {tmp_path}/told\n'
            f'if [ "$2" = start ]; then mkdir -p "{root}/gpushare.slice/$3"; fi',
        )
    )
    yield made
    for gpus in made.opened:
        await close_and_join(gpus)


def running(one: Lease, walls: Walls | None = BEHIND) -> Lease:
    return replace(one, state=Active(one.grants, ContainerId("box"), 0.0), walls=walls)


def resized(one: Lease, permille: int) -> Lease:
    grants = tuple(grant(each.gpu, permille) for each in one.grants)
    assert isinstance(one.state, Reserved | Active)
    return replace(one, state=replace(one.state, grants=grants))


async def test_the_limit_is_there_before_the_container(node: NodeWithWall) -> None:
    """On a cgroup of the lease's own, in which the engine is told to put the container."""
    edits = await node.start().open(lease(1), GPUS, engine())
    name = lease(1).device_name
    assert edits.cgroup_parent == f"/gpushare/{name}"
    assert edits.walls == Walls(MemoryWall.DRIVER, ComputeCap.NONE)
    assert edits.env["GPUSHARE_MEMORY_WALL"] == "driver"
    assert node.limits == {(FIRST, f"/gpushare/{name}"): QUARTER_BYTES}


async def test_with_systemd_the_cgroup_is_a_slice_that_systemd_makes(
    node: NodeWithWall, tmp_path: Path
) -> None:
    """Docker takes nothing else there; a dash in the name would mean a slice within a slice."""
    sharing = node.start()
    edits = await sharing.open(lease(1, device_name="l-7f3k"), GPUS, engine(CgroupDriver.SYSTEMD))
    unit = r"gpushare-l\x2d7f3k.slice"
    assert edits.cgroup_parent == unit
    assert node.limits == {(FIRST, f"/gpushare.slice/{unit}"): QUARTER_BYTES}
    await sharing.close_lease(lease(1).id, "l-7f3k")
    assert node.limits == {}
    assert (tmp_path / "told").read_text().splitlines() == [f"start {unit}", f"stop {unit}"]


async def test_each_gpu_of_a_lease_has_its_limit(node: NodeWithWall) -> None:
    """As it is leased there."""
    both = lease(1, grant(FIRST), grant(SECOND, 500))
    edits = await node.start().open(both, GPUS, engine())
    place = edits.cgroup_parent
    assert node.limits == {(FIRST, place): QUARTER_BYTES, (SECOND, place): grant(SECOND, 500).memory_bytes}


async def test_a_running_container_gets_the_limit_on_its_own_cgroup(node: NodeWithWall) -> None:
    """Only then do programs in it see it as the GPU's total."""
    sharing = node.start()
    edits = await sharing.open(lease(1), GPUS, engine())
    leaf = f"{edits.cgroup_parent}/box"
    node.make(leaf)
    assert sharing.holds(lease(1))
    await sharing.hold(lease(1), leaf)
    assert node.limits == {(FIRST, edits.cgroup_parent): QUARTER_BYTES, (FIRST, leaf): QUARTER_BYTES}


async def test_another_size_holds_at_once_for_what_runs(node: NodeWithWall) -> None:
    """On the lease's cgroup and on the containers in it, and on one that was put elsewhere."""
    sharing = node.start()
    edits = await sharing.open(lease(1), GPUS, engine())
    below, elsewhere = f"{edits.cgroup_parent}/box", "/docker/other"
    node.make(below)
    node.make(elsewhere)
    await sharing.hold(lease(1), elsewhere)
    await sharing.open(resized(lease(1), 500), GPUS, engine())
    assert node.limits == {(FIRST, place): HALF_BYTES for place in (edits.cgroup_parent, below, elsewhere)}


async def test_the_end_of_a_lease_takes_limits_and_cgroup_away(node: NodeWithWall) -> None:
    """The limits first: the driver would not find a cgroup that is gone."""
    sharing = node.start()
    edits = await sharing.open(lease(1), GPUS, engine())
    node.make("/docker/other")
    await sharing.hold(lease(1), "/docker/other")
    await sharing.close_lease(lease(1).id, lease(1).device_name)
    assert node.limits == {}
    assert not (node.root / edits.cgroup_parent.lstrip("/")).exists()
    assert not sharing.holds(lease(1))


async def test_a_cgroup_in_use_is_left_for_later(node: NodeWithWall) -> None:
    """What the engine has not cleared away yet is taken down by a later sweep."""
    sharing = node.start()
    edits = await sharing.open(lease(1), GPUS, engine())
    leaf = f"{edits.cgroup_parent}/box"
    node.make(leaf)
    await sharing.close_lease(lease(1).id, lease(1).device_name)
    assert (node.root / leaf.lstrip("/")).exists()
    node.remove(leaf)
    await sharing.sweep(())
    assert not (node.root / edits.cgroup_parent.lstrip("/")).exists()


@pytest.mark.parametrize("driver", CgroupDriver)
async def test_the_next_daemon_takes_down_what_is_left_of_leases_that_are_over(
    node: NodeWithWall, driver: CgroupDriver
) -> None:
    """And keeps what leases and containers use, with its limits."""
    first = node.start()
    stays, goes = lease(1, device_name="l-1"), lease(2, device_name="l-2")
    kept = await first.open(stays, GPUS, engine(driver))
    await first.open(goes, GPUS, engine(driver))
    second = node.start()
    await second.open(stays, GPUS, engine(driver))
    await second.sweep({"l-1"})
    place = kept.cgroup_parent if driver is CgroupDriver.CGROUPFS else f"/gpushare.slice/{kept.cgroup_parent}"
    assert node.limits == {(FIRST, place): QUARTER_BYTES}
    assert len(list((node.root / place.lstrip("/")).parent.iterdir())) == 1


async def test_a_whole_gpu_needs_no_such_wall(node: NodeWithWall) -> None:
    """Nobody else is on it."""
    whole = replace(lease(1, grant(FIRST, 1000)), request=Request(compute_permille=1000))
    sharing = node.start()
    edits = await sharing.open(whole, GPUS, engine())
    assert (edits.walls.memory_wall, edits.cgroup_parent, edits.hooks) == (MemoryWall.WHOLE_GPU, "", ())
    assert node.limits == {}
    assert not sharing.holds(whole)


async def test_a_lease_that_grows_to_a_whole_gpu_is_not_kept_to_its_old_size(node: NodeWithWall) -> None:
    """Its container is still in the cgroup that was limited."""
    sharing = node.start()
    part = await sharing.open(lease(1), GPUS, engine())
    grown = await sharing.open(resized(running(lease(1)), 1000), GPUS, engine())
    assert grown.walls.memory_wall is MemoryWall.WHOLE_GPU
    assert node.limits == {(FIRST, part.cgroup_parent): GPUS[FIRST].leasable_bytes}


async def test_simulated_gpus_have_no_driver_that_limits_anything(runtime_dir: Path) -> None:
    """Nothing is tried, nothing is given."""
    sharing = MpsSharing(runtime_dir, binary=None, mode=MpsMode.OFF, simulated=True)
    edits = await sharing.open(lease(1), GPUS, engine())
    assert (edits.walls.memory_wall, edits.cgroup_parent, edits.hooks) == (MemoryWall.NONE, "", ())
    assert not sharing.holds(lease(1))
    await sharing.hold(lease(1), "/docker/box")
    await sharing.sweep(())


async def test_where_the_trial_fails_leases_go_without(node: NodeWithWall) -> None:
    """A driver that lacks the limits is no trouble, so none is shown with the GPUs."""
    node.machine.cgroups = None
    node.machine.write()
    sharing = node.start()
    edits = await sharing.open(lease(1), GPUS, engine())
    assert (edits.walls.memory_wall, edits.cgroup_parent, edits.hooks) == (MemoryWall.NONE, "", ())
    assert all("memory limits" not in str(one.trouble) for one in await sharing.status())


async def test_what_became_possible_is_found_by_the_next_trial(node: NodeWithWall) -> None:
    """It is made again after a while, not with each lease."""
    node.machine.cgroups = None
    node.machine.write()
    patient, eager = node.start(), node.start(retry_seconds=0.0)
    for sharing in (patient, eager):
        await sharing.open(lease(1), GPUS, engine())
    node.machine.cgroups = node.root
    node.machine.write()
    assert (await patient.open(lease(2), GPUS, engine())).walls.memory_wall is MemoryWall.NONE
    assert (await eager.open(lease(3), GPUS, engine())).walls.memory_wall is MemoryWall.DRIVER


async def test_a_driver_that_fails_is_told_of_and_tried_again_with_the_next_lease(node: NodeWithWall) -> None:
    """The lease that met it goes without; nothing claims a wall that is not there."""
    sharing = node.start()
    await sharing.open(lease(1), GPUS, engine())
    node.break_driver()
    edits = await sharing.open(lease(2), GPUS, engine())
    assert (edits.walls.memory_wall, edits.cgroup_parent) == (MemoryWall.NONE, "")
    assert any(f"error {UNKNOWN_ERROR}" in str(one.trouble) for one in await sharing.status())
    node.break_driver(broken=False)
    assert (await sharing.open(lease(3), GPUS, engine())).walls.memory_wall is MemoryWall.DRIVER
    assert all(f"error {UNKNOWN_ERROR}" not in str(one.trouble) for one in await sharing.status())


async def test_another_size_that_the_driver_does_not_take_is_asked_for_again(node: NodeWithWall) -> None:
    """The container is behind the wall at its old size, and must not be told another."""
    sharing = node.start()
    mine = running(lease(1))
    await sharing.open(mine, GPUS, engine())
    node.machine.hang = None
    node.machine.gpus[0].errors = {SET: UNKNOWN_ERROR}
    node.machine.write()
    with pytest.raises(SharingUnavailable, match=f"error {UNKNOWN_ERROR}"):
        await sharing.open(resized(mine, 500), GPUS, engine())
    node.machine.gpus[0].errors = {}
    node.machine.write()
    await sharing.open(resized(mine, 500), GPUS, engine())
    assert set(node.limits.values()) == {HALF_BYTES}


async def test_a_container_that_cannot_be_limited_itself_keeps_the_limit_above(node: NodeWithWall) -> None:
    """The error says so, and the next look tries again."""
    sharing = node.start()
    edits = await sharing.open(lease(1), GPUS, engine())
    with pytest.raises(SharingUnavailable, match="own cgroup has no limit"):
        await sharing.hold(lease(1), f"{edits.cgroup_parent}/gone")
    assert node.limits == {(FIRST, edits.cgroup_parent): QUARTER_BYTES}


async def test_a_container_of_an_earlier_lease_is_limited_but_promised_nothing(node: NodeWithWall) -> None:
    """It may have been made outside of its lease's cgroup, where only its own can be limited once it runs."""
    again = lease(2, device_name="l-older")
    edits = await node.start().open(again, GPUS, engine())
    assert edits.walls.memory_wall is MemoryWall.NONE
    assert node.limits == {(FIRST, "/gpushare/l-older"): QUARTER_BYTES}


async def test_a_slice_that_systemd_does_not_make_leaves_the_lease_without(node: NodeWithWall) -> None:
    """As where the daemon may not speak to it."""
    node.systemctl = "false"
    edits = await node.start().open(lease(1), GPUS, engine(CgroupDriver.SYSTEMD))
    assert edits.walls.memory_wall is MemoryWall.NONE


async def test_a_hook_is_given_where_the_engine_runs_hooks(node: NodeWithWall) -> None:
    """Only engines that apply lease devices do."""
    sharing = node.start()
    assert (await sharing.open(lease(1), GPUS, engine())).hooks
    assert not (await sharing.open(lease(2), GPUS, engine(lease_devices=False))).hooks


async def run_hook(edits: Edits, environment: dict[str, str], pid: int) -> tuple[int | None, str]:
    [hook] = edits.hooks
    process = await asyncio.create_subprocess_exec(
        *(hook.path, *hook.args[1:]),
        stdin=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=environment,
    )
    _, said = await process.communicate(f'{{"pid": {pid}}}'.encode())
    return process.returncode, said.decode()


async def test_the_hook_limits_a_real_cgroup_as_the_runtime_would_call_it(
    node: NodeWithWall, library: Path
) -> None:
    """In the tree of this machine's kernel, below the cgroup that the wall made there."""
    node.root = cgroups.real_root()
    node.machine.cgroups = node.root
    node.machine.write()
    sharing = node.start()
    mine = lease(1, device_name="l-hooked")
    edits = await sharing.open(mine, GPUS, engine())
    leaf = f"{edits.cgroup_parent}/box"
    with cgroups.process_in(node.root / leaf.lstrip("/")) as pid:
        answer = await run_hook(edits, node.machine.environment(library), pid)
        assert answer == (0, "")
        assert node.limits == {(FIRST, edits.cgroup_parent): QUARTER_BYTES, (FIRST, leaf): QUARTER_BYTES}
    await sharing.close_lease(mine.id, "l-hooked")
    assert not (node.root / "gpushare" / "l-hooked").exists()


async def test_a_wall_that_is_gone_after_a_boot_is_not_claimed_any_more() -> None:
    """The driver may be an older one by now; MPS's limits are in the container's own settings."""
    behind = running(lease(1), Walls(MemoryWall.DRIVER, ComputeCap.MPS_PERCENTAGE))
    without = Walls(MemoryWall.MPS_CLIENT, ComputeCap.MPS_PERCENTAGE)
    assert behind.walls_with(without) == without
    assert behind.walls_with(behind.walls or without) == behind.walls
    outside = running(lease(1), without)
    assert outside.walls_with(Walls(MemoryWall.DRIVER, ComputeCap.MPS_PERCENTAGE)) == without
