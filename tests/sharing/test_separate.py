"""Separate leases over real control daemons: each has its own, with its own limits, as long as it lasts."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from gpushared.domain.leases.node_rules import MpsMode
from gpushared.domain.model.gpu import MIB
from gpushared.domain.model.lease import (
    Active,
    ComputeCap,
    ContainerId,
    Grant,
    Lease,
    MemoryWall,
    Walls,
)
from gpushared.domain.model.request import Isolation, LeaseClass
from gpushared.sharing.control import DaemonLimits
from gpushared.sharing.daemon_pool import MpsTiming
from gpushared.sharing.mps import MpsSharing
from gpushared.testing.leases import SOME_TIME
from tests.sharing import daemons
from tests.sharing.samples import FIRST, GPUS, SECOND, leasable_gib, lease

SERVER_SIDE = Walls(MemoryWall.MPS_SERVER, ComputeCap.MPS_PERCENTAGE)
PERCENTAGE_QUESTION = "get_default_active_thread_percentage"

MakeSharing = Callable[..., MpsSharing]


@pytest.fixture
async def share(runtime_dir: Path) -> AsyncIterator[MakeSharing]:
    """Makes sharings in one runtime directory, and closes them."""
    made: list[MpsSharing] = []

    def make(
        binary: Path | None, *, mode: MpsMode = MpsMode.AUTO, watched: tuple[LeaseClass, ...] = ()
    ) -> MpsSharing:
        timing = MpsTiming(poll_seconds=0.05, linger_seconds=3600.0)
        made.append(MpsSharing(runtime_dir, binary=binary, mode=mode, watched=watched, timing=timing))
        return made[-1]

    yield make
    for sharing in made:
        await sharing.close(keep_running=False)


def separate(number: int, *grants: Grant, device_name: str | None = None) -> Lease:
    return lease(number, *grants, isolation=Isolation.SEPARATE, device_name=device_name)


def of_memory(gib: int, permille: int) -> Grant:
    """Whole GiB, which the control daemon shows as they are."""
    return Grant(FIRST, gib * 1024 * MIB, permille)


def socket_of(runtime_dir: Path, name: str) -> Path:
    return runtime_dir / "leases" / name / "mps" / "control"


async def told(binary: Path, runtime_dir: Path, name: str, gpus: int = 1) -> list[str]:
    """The limits that a container of this lease reads from its daemon."""
    questions = [f"get_default_device_pinned_mem_limit {gpu}" for gpu in range(gpus)]
    pipe_dir = socket_of(runtime_dir, name).parent
    return (await daemons.ask(binary, pipe_dir, *questions, PERCENTAGE_QUESTION)).split()


async def test_two_separate_leases_have_two_daemons_each_with_the_limits_of_its_lease(
    mps_control_binary: Path, share: MakeSharing, runtime_dir: Path
) -> None:
    sharing = share(mps_control_binary)
    opened = [
        await sharing.open(separate(1, of_memory(20, 250)), GPUS),
        await sharing.open(separate(2, of_memory(8, 125)), GPUS),
    ]
    assert [edits.walls for edits in opened] == [SERVER_SIDE, SERVER_SIDE]
    assert await told(mps_control_binary, runtime_dir, "l-1") == ["20G", "25.0"]
    assert await told(mps_control_binary, runtime_dir, "l-2") == ["8G", "12.5"]
    assert not socket_of(runtime_dir, "l-1").samefile(socket_of(runtime_dir, "l-2"))
    assert len(daemons.serving_under(runtime_dir)) == 2


@pytest.mark.parametrize("permille", [1, 7, 10, 333, 999])
async def test_any_share_of_the_compute_passes_the_read_back(
    mps_control_binary: Path, share: MakeSharing, runtime_dir: Path, permille: int
) -> None:
    await share(mps_control_binary).open(separate(1, of_memory(2, permille)), GPUS)
    assert await told(mps_control_binary, runtime_dir, "l-1") == ["2G", f"{permille / 10:.1f}"]


async def test_a_separate_lease_over_two_gpus_has_one_daemon_with_a_limit_for_each_gpu(
    mps_control_binary: Path, share: MakeSharing, runtime_dir: Path
) -> None:
    grants = (Grant(SECOND, 4096 * MIB, 500), of_memory(2, 250))
    await share(mps_control_binary).open(separate(1, *grants), GPUS)
    assert await told(mps_control_binary, runtime_dir, "l-1", gpus=2) == ["2G", "4G", "25.0"]
    assert len(daemons.serving_under(runtime_dir)) == 1


async def test_a_separate_and_a_shared_lease_of_one_user_stand_on_one_gpu_without_sharing_a_daemon(
    mps_control_binary: Path, share: MakeSharing, runtime_dir: Path
) -> None:
    sharing = share(mps_control_binary)
    await sharing.open(lease(1), GPUS)
    await sharing.open(separate(2, of_memory(8, 100)), GPUS)
    assert await told(mps_control_binary, runtime_dir, "l-1") == [f"{leasable_gib(FIRST)}G", "100.0"]
    assert await told(mps_control_binary, runtime_dir, "l-2") == ["8G", "10.0"]
    statuses = await sharing.status()
    assert [status.mode for status in statuses] == ["mps", "none", "none"]


async def test_the_end_of_a_separate_lease_is_the_end_of_its_daemon_and_of_no_other(
    mps_control_binary: Path, share: MakeSharing, runtime_dir: Path
) -> None:
    sharing = share(mps_control_binary)
    await sharing.open(separate(1), GPUS)
    (first,) = daemons.serving_under(runtime_dir)
    homes = {home.name for home in (runtime_dir / "mps").iterdir()}
    await sharing.open(separate(2), GPUS)
    await sharing.close_lease(separate(1).id, "l-1")
    assert await daemons.gone([first])
    (second,) = daemons.serving_under(runtime_dir)
    assert second != first
    await daemons.until(lambda: not homes & {home.name for home in (runtime_dir / "mps").iterdir()})
    assert not (runtime_dir / "leases" / "l-1").exists()
    assert socket_of(runtime_dir, "l-2").is_socket()


async def test_a_killed_daemon_of_a_separate_lease_is_started_again_with_the_limits_of_the_lease(
    mps_control_binary: Path, share: MakeSharing, runtime_dir: Path
) -> None:
    sharing = share(mps_control_binary)
    await sharing.open(separate(1, of_memory(20, 250)), GPUS)
    await sharing.open(separate(2, of_memory(8, 125)), GPUS)
    victim = next(
        pid for pid in daemons.serving_under(runtime_dir) if daemons.serves_socket(pid, runtime_dir, "l-2")
    )
    before = socket_of(runtime_dir, "l-2").stat().st_ino
    os.kill(victim, signal.SIGKILL)
    await daemons.until(lambda: socket_of(runtime_dir, "l-2").stat().st_ino != before)
    assert await told(mps_control_binary, runtime_dir, "l-2") == ["8G", "12.5"]
    assert await told(mps_control_binary, runtime_dir, "l-1") == ["20G", "25.0"]


async def test_a_daemon_of_a_separate_lease_is_found_again_by_the_next_life_and_limited_again(
    mps_control_binary: Path, share: MakeSharing, runtime_dir: Path
) -> None:
    first = share(mps_control_binary)
    await first.open(separate(1, of_memory(20, 250)), GPUS)
    kept = daemons.serving_under(runtime_dir)
    await first.close(keep_running=True)
    (home,) = [one for one in (runtime_dir / "mps").iterdir() if one.name.startswith("l-")]
    lost = "set_default_device_pinned_mem_limit 0 80G"
    await daemons.ask(mps_control_binary, home / "pipe", lost, "set_default_active_thread_percentage 100")
    second = share(mps_control_binary)
    await second.sweep({"l-1"})
    await second.open(separate(1, of_memory(20, 250)), GPUS)
    assert daemons.serving_under(runtime_dir) == kept
    assert await told(mps_control_binary, runtime_dir, "l-1") == ["20G", "25.0"]


async def test_a_sweep_ends_the_daemons_of_separate_leases_that_are_over(
    mps_control_binary: Path, share: MakeSharing, runtime_dir: Path
) -> None:
    first = share(mps_control_binary)
    await first.open(separate(1), GPUS)
    left = daemons.serving_under(runtime_dir)
    await first.open(separate(2), GPUS)
    await first.close(keep_running=True)
    await share(mps_control_binary).sweep({"l-2"})
    assert await daemons.gone(left)
    assert len(daemons.serving_under(runtime_dir)) == 1


async def test_another_size_changes_the_limits_of_the_daemon_that_serves(
    mps_control_binary: Path, share: MakeSharing, runtime_dir: Path
) -> None:
    sharing = share(mps_control_binary)
    await sharing.open(separate(1, of_memory(20, 250)), GPUS)
    serving = daemons.serving_under(runtime_dir)
    await sharing.open(separate(1, of_memory(8, 500)), GPUS)
    assert daemons.serving_under(runtime_dir) == serving
    assert await told(mps_control_binary, runtime_dir, "l-1") == ["8G", "50.0"]


async def test_a_container_that_is_started_again_gets_a_new_daemon_with_the_limits_of_its_new_lease(
    mps_control_binary: Path, share: MakeSharing, runtime_dir: Path
) -> None:
    """A server that still ran would keep the old ones."""
    sharing = share(mps_control_binary)
    await sharing.open(separate(1, of_memory(20, 250), device_name="c-5f3a"), GPUS)
    old = daemons.serving_under(runtime_dir)
    await sharing.close_lease(separate(1).id, "c-5f3a")
    await sharing.open(separate(2, of_memory(8, 500), device_name="c-5f3a"), GPUS)
    assert await daemons.gone(old)
    assert await told(mps_control_binary, runtime_dir, "c-5f3a") == ["8G", "50.0"]


@pytest.mark.parametrize(("watched", "wall"), [((), "none"), ((LeaseClass.TRAIN,), "watchdog")])
@pytest.mark.parametrize("mode", [MpsMode.OFF, MpsMode.AUTO])
async def test_without_mps_a_separate_lease_has_the_watchdog_at_most_and_says_so(
    share: MakeSharing,
    runtime_dir: Path,
    watched: tuple[LeaseClass, ...],
    wall: str,
    mode: MpsMode,
) -> None:
    edits = await share(None, mode=mode, watched=watched).open(separate(1), GPUS)
    assert edits.walls == Walls(MemoryWall(wall), ComputeCap.NONE)
    assert edits.env["GPUSHARE_MEMORY_WALL"] == wall
    written = json.loads((runtime_dir / "leases" / "l-1" / "lease.json").read_text())
    assert (written["isolation"], written["memory_wall"]) == ("separate", wall)


async def test_the_file_tells_of_the_walls_of_the_container_and_not_of_what_could_be_made_now(
    mps_control_binary: Path, share: MakeSharing, runtime_dir: Path
) -> None:
    """A container that was created without MPS has no limits, also where MPS works by now."""
    running = Active((of_memory(8, 500),), ContainerId("box"), SOME_TIME)
    unwalled = replace(separate(1), state=running, walls=Walls(MemoryWall.NONE, ComputeCap.NONE))
    await share(mps_control_binary).open(unwalled, GPUS)
    written = json.loads((runtime_dir / "leases" / "l-1" / "lease.json").read_text())
    assert (written["memory_wall"], written["compute_cap"]) == ("none", "none")


@pytest.mark.parametrize("percentage", [0.0, -1.0, 100.1])
def test_a_percentage_that_the_daemon_would_not_take_is_none(percentage: float) -> None:
    with pytest.raises(ValueError, match="not a thread percentage"):
        DaemonLimits((1024,), percentage)


async def test_a_daemon_that_hangs_holds_up_no_other_separate_lease(
    share: MakeSharing, mps_control_binary: Path, runtime_dir: Path
) -> None:
    sharing = share(mps_control_binary)
    await sharing.open(separate(1, of_memory(20, 250)), GPUS)
    (pid,) = daemons.serving_under(runtime_dir)
    os.kill(pid, signal.SIGSTOP)
    try:
        await sharing.open(separate(2, of_memory(8, 125)), GPUS)
        assert await told(mps_control_binary, runtime_dir, "l-2") == ["8G", "12.5"]
    finally:
        os.kill(pid, signal.SIGCONT)
