"""The Sharing port over real control daemons: which daemon serves which lease, for how long."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from gpushared.domain.leases.node_rules import MpsMode
from gpushared.domain.model.errors import ConfigError, SharingUnavailable, TimedOut
from gpushared.domain.model.lease import (
    ComputeCap,
    Grant,
    MemoryWall,
    Walls,
)
from gpushared.domain.model.request import Isolation
from gpushared.ports import Sharing, SharingStatus
from gpushared.sharing.control import ControlTiming
from gpushared.sharing.daemon_pool import MpsTiming
from gpushared.sharing.mps import MpsSharing
from tests.sharing import daemons
from tests.sharing.samples import FIRST, GPUS, SECOND, grant, leasable_gib, lease, program

LIMITED = Walls(MemoryWall.MPS_CLIENT, ComputeCap.MPS_PERCENTAGE)
NOTHING = Walls(MemoryWall.NONE, ComputeCap.NONE)
IMPATIENT = ControlTiming(command_seconds=0.3, start_seconds=0.6, quit_seconds=1.0, attempts=3)
LIMIT_QUESTION = "get_default_device_pinned_mem_limit 0"

MakeSharing = Callable[..., MpsSharing]


@pytest.fixture
async def share(runtime_dir: Path) -> AsyncIterator[MakeSharing]:
    """Makes sharings in one runtime directory, and closes them."""
    made: list[MpsSharing] = []

    def make(
        binary: Path | None,
        *,
        mode: MpsMode = MpsMode.AUTO,
        simulated: bool = False,
        linger_seconds: float = 3600.0,
        control: ControlTiming | None = None,
    ) -> MpsSharing:
        timing = MpsTiming(control or ControlTiming(), poll_seconds=0.05, linger_seconds=linger_seconds)
        sharing = MpsSharing(runtime_dir, binary=binary, mode=mode, simulated=simulated, timing=timing)
        made.append(sharing)
        return sharing

    yield make
    for sharing in made:
        await sharing.close(keep_running=False)


@pytest.fixture
def newer_binary(mps_control_binary: Path, runtime_dir: Path) -> Path:
    """The real program behind one that knows the flag for several users, as newer drivers' do."""
    return program(runtime_dir / "newer", f'exec "{mps_control_binary}" ${{1:+-f}}')


def leased(runtime_dir: Path, name: str) -> Path:
    return runtime_dir / "leases" / name / "mps"


async def status_of(sharing: MpsSharing, index: int = 0) -> SharingStatus:
    return (await sharing.status())[index]


async def until_status(sharing: MpsSharing, condition: Callable[[SharingStatus], bool]) -> None:
    async with asyncio.timeout(30):
        while not condition(await status_of(sharing)):  # noqa: ASYNC110  # the port offers a look, no event
            await asyncio.sleep(0)


async def test_a_shared_lease_gets_its_socket_and_its_walls(
    mps_control_binary: Path, share: MakeSharing, runtime_dir: Path
) -> None:
    sharing: Sharing = share(mps_control_binary)
    edits = await sharing.open(lease(1), GPUS)
    assert edits.walls == LIMITED
    assert [mount.source for mount in edits.mounts] == [str(leased(runtime_dir, "l-1").parent)]
    assert daemons.names_in(leased(runtime_dir, "l-1")) == ["control"]
    answer = await daemons.ask(mps_control_binary, leased(runtime_dir, "l-1"), LIMIT_QUESTION)
    assert answer.split() == [f"{leasable_gib(FIRST)}G"]
    statuses = await sharing.status()
    assert statuses == (
        SharingStatus(FIRST, "mps"),
        *(SharingStatus(gpu, "none") for gpu in GPUS if gpu != FIRST),
    )


async def test_opening_again_gives_the_same_and_starts_nothing(
    mps_control_binary: Path, share: MakeSharing, runtime_dir: Path
) -> None:
    sharing = share(mps_control_binary)
    first = await sharing.open(lease(1), GPUS)
    serving = daemons.serving_under(runtime_dir)
    assert await sharing.open(lease(1), GPUS) == first
    assert daemons.serving_under(runtime_dir) == serving


@pytest.mark.parametrize(
    ("grants", "isolation"),
    [((grant(FIRST),), Isolation.EXCLUSIVE), ((grant(FIRST, 1000), grant(SECOND, 1000)), Isolation.SHARED)],
    ids=["exclusive", "whole"],
)
async def test_whole_gpus_start_no_daemon(
    mps_control_binary: Path,
    share: MakeSharing,
    runtime_dir: Path,
    grants: tuple[Grant, ...],
    isolation: Isolation,
) -> None:
    edits = await share(mps_control_binary).open(lease(1, *grants, isolation=isolation), GPUS)
    assert edits.walls == Walls(MemoryWall.WHOLE_GPU, ComputeCap.WHOLE_GPU)
    assert daemons.names_in(leased(runtime_dir, "l-1").parent) == ["lease.json"]
    assert daemons.serving_under(runtime_dir) == []


async def test_leases_opened_at_once_share_one_daemon(
    mps_control_binary: Path, share: MakeSharing, runtime_dir: Path
) -> None:
    sharing = share(mps_control_binary)
    await asyncio.gather(*(sharing.open(lease(number), GPUS) for number in range(1, 5)))
    assert len(daemons.serving_under(runtime_dir)) == 1


async def test_an_older_program_gets_one_daemon_for_each_user_of_a_gpu(
    mps_control_binary: Path, share: MakeSharing, runtime_dir: Path
) -> None:
    """Its server admits one user at a time, so others would wait for the end of the first one's work."""
    sharing = share(mps_control_binary)
    await sharing.open(lease(1, owner_uid=1000), GPUS)
    await sharing.open(lease(2, owner_uid=1001), GPUS)
    await sharing.open(lease(3, owner_uid=1000), GPUS)
    sockets = [leased(runtime_dir, f"l-{number}").joinpath("control").stat().st_ino for number in (1, 2, 3)]
    assert sockets[0] == sockets[2] != sockets[1]
    assert len(daemons.serving_under(runtime_dir)) == 2


async def test_a_newer_program_serves_all_users_of_a_gpu_by_one_daemon(
    newer_binary: Path, share: MakeSharing, runtime_dir: Path
) -> None:
    sharing = share(newer_binary)
    await sharing.open(lease(1, owner_uid=1000), GPUS)
    await sharing.open(lease(2, owner_uid=1001), GPUS)
    assert len(daemons.serving_under(runtime_dir)) == 1


async def test_a_lease_over_two_gpus_gets_a_daemon_over_exactly_those(
    newer_binary: Path, mps_control_binary: Path, share: MakeSharing, runtime_dir: Path
) -> None:
    sharing = share(newer_binary)
    await sharing.open(lease(1), GPUS)
    await sharing.open(lease(2, grant(SECOND), grant(FIRST)), GPUS)
    of_both = leased(runtime_dir, "l-2")
    questions = [f"get_default_device_pinned_mem_limit {gpu}" for gpu in range(3)]
    answer = await daemons.ask(mps_control_binary, of_both, *questions)
    assert answer.split() == [f"{leasable_gib(FIRST)}G", f"{leasable_gib(SECOND)}G"]
    assert len(daemons.serving_under(runtime_dir)) == 2
    assert [status.mode for status in await sharing.status()] == ["mps", "mps", "none"]


async def test_a_lease_is_written_down_for_its_container_until_it_ends(
    mps_control_binary: Path, share: MakeSharing, runtime_dir: Path
) -> None:
    sharing = share(mps_control_binary)
    directory = runtime_dir / "leases" / "l-1"
    edits = await sharing.open(lease(1, grant(SECOND, 125), grant(FIRST)), GPUS)
    told = json.loads((directory / "lease.json").read_text())
    assert [gpu["uuid"] for gpu in told["gpus"]] == list(edits.gpus) == [FIRST, SECOND]
    assert [gpu["compute_percent"] for gpu in told["gpus"]] == [25, 12.5]
    assert (told["memory_wall"], told["compute_cap"]) == ("mps-client", "mps-percentage")
    await sharing.close_lease(lease(1).id, "l-1")
    assert not directory.exists()


async def test_a_lease_that_mps_fails_for_a_moment_keeps_the_directory_that_its_container_has_mounted(
    mps_control_binary: Path, share: MakeSharing, runtime_dir: Path
) -> None:
    """As when our daemon is started again and the control daemon is not there yet."""
    first = share(mps_control_binary)
    await first.open(lease(1), GPUS)
    before = leased(runtime_dir, "l-1").stat().st_ino
    await first.close(keep_running=True)
    with pytest.raises(SharingUnavailable):
        await share(program(runtime_dir / "dying", "exit 100")).open(lease(1), GPUS)
    await share(mps_control_binary).open(lease(1), GPUS)
    assert leased(runtime_dir, "l-1").stat().st_ino == before
    assert daemons.names_in(leased(runtime_dir, "l-1")) == ["control"]


async def test_the_last_lease_takes_its_daemon_with_it(
    mps_control_binary: Path, share: MakeSharing, runtime_dir: Path
) -> None:
    sharing = share(mps_control_binary, linger_seconds=0.0)
    await sharing.open(lease(1), GPUS)
    await sharing.open(lease(2), GPUS)
    serving = daemons.serving_under(runtime_dir)
    await sharing.close_lease(lease(1).id, "l-1")
    assert not leased(runtime_dir, "l-1").exists()
    assert await sharing.open(lease(2), GPUS)
    assert daemons.serving_under(runtime_dir) == serving
    await sharing.close_lease(lease(2).id, "l-2")
    assert await daemons.gone(serving)


async def test_a_lease_that_comes_soon_finds_the_daemon_of_the_last_one(
    mps_control_binary: Path, share: MakeSharing, runtime_dir: Path
) -> None:
    sharing = share(mps_control_binary)
    await sharing.open(lease(1), GPUS)
    serving = daemons.serving_under(runtime_dir)
    await sharing.close_lease(lease(1).id, "l-1")
    await sharing.open(lease(2), GPUS)
    assert daemons.serving_under(runtime_dir) == serving


async def test_a_lease_that_comes_while_its_daemon_is_ended_gets_a_new_one(
    mps_control_binary: Path, share: MakeSharing, runtime_dir: Path
) -> None:
    sharing = share(mps_control_binary, linger_seconds=0.0)
    await sharing.open(lease(1), GPUS)
    old = daemons.serving_under(runtime_dir)
    await sharing.close_lease(lease(1).id, "l-1")
    await until_status(sharing, lambda status: status.mode == "none")
    await sharing.open(lease(2), GPUS)
    assert await daemons.gone(old)
    answer = await daemons.ask(mps_control_binary, leased(runtime_dir, "l-2"), LIMIT_QUESTION)
    assert answer.split() == [f"{leasable_gib(FIRST)}G"]


async def test_closing_what_was_never_opened_is_no_error(
    share: MakeSharing, mps_control_binary: Path
) -> None:
    await share(mps_control_binary).close_lease(lease(9).id, "l-9")


async def test_daemons_with_leases_outlive_the_adapter_and_are_found_by_the_next(
    mps_control_binary: Path, share: MakeSharing, runtime_dir: Path
) -> None:
    first = share(mps_control_binary)
    await first.open(lease(1), GPUS)
    await first.open(lease(2, grant(SECOND)), GPUS)
    await first.close_lease(lease(2).id, "l-2")
    (kept,) = [pid for pid in daemons.serving_under(runtime_dir) if daemons.sees(pid, FIRST)]
    await first.close(keep_running=True)
    assert daemons.serving_under(runtime_dir) == [kept]
    socket = leased(runtime_dir, "l-1").joinpath("control").stat().st_ino
    second = share(mps_control_binary)
    await second.open(lease(1), GPUS)
    assert daemons.serving_under(runtime_dir) == [kept]
    assert leased(runtime_dir, "l-1").joinpath("control").stat().st_ino == socket
    assert (await status_of(second)).mode == "mps"


async def test_closing_for_good_ends_every_daemon_and_leaves_no_lease_directory(
    mps_control_binary: Path, share: MakeSharing, runtime_dir: Path
) -> None:
    sharing = share(mps_control_binary)
    await sharing.open(lease(1), GPUS)
    await sharing.open(lease(2, grant(SECOND)), GPUS)
    serving = daemons.serving_under(runtime_dir)
    await sharing.close(keep_running=False)
    assert await daemons.gone(serving)
    assert list((runtime_dir / "leases").iterdir()) == []


async def test_a_sweep_ends_what_no_live_lease_uses_and_nothing_else(
    mps_control_binary: Path, share: MakeSharing, runtime_dir: Path
) -> None:
    first = share(mps_control_binary)
    await first.open(lease(1), GPUS)
    await first.open(lease(2, grant(SECOND)), GPUS)
    (kept,) = [pid for pid in daemons.serving_under(runtime_dir) if daemons.sees(pid, FIRST)]
    await first.close(keep_running=True)
    await share(mps_control_binary).sweep({"l-1"})
    assert daemons.serving_under(runtime_dir) == [kept]
    assert daemons.names_in(leased(runtime_dir, "l-1")) == ["control"]
    assert not leased(runtime_dir, "l-2").exists()


async def test_a_container_made_before_its_lease_keeps_its_directory_name(
    mps_control_binary: Path, share: MakeSharing, runtime_dir: Path
) -> None:
    edits = await share(mps_control_binary).open(lease(1, device_name="c-5f3a"), GPUS)
    assert [mount.source for mount in edits.mounts] == [str(leased(runtime_dir, "c-5f3a").parent)]


async def test_a_user_who_moves_to_another_daemon_leaves_the_first(
    mps_control_binary: Path, share: MakeSharing, runtime_dir: Path
) -> None:
    sharing = share(mps_control_binary, linger_seconds=0.0)
    await sharing.open(lease(1), GPUS)
    old = daemons.serving_under(runtime_dir)
    await sharing.open(lease(1, grant(SECOND)), GPUS)
    assert await daemons.gone(old)
    (now,) = daemons.serving_under(runtime_dir)
    assert daemons.sees(now, SECOND)


# --- without MPS ---


@pytest.mark.parametrize(
    ("mode", "simulated"),
    [(MpsMode.AUTO, False), (MpsMode.AUTO, True), (MpsMode.OFF, False), (MpsMode.OFF, True)],
)
async def test_where_mps_is_not_installed_leases_go_without_walls_and_status_says_so(
    share: MakeSharing, runtime_dir: Path, mode: MpsMode, simulated: bool
) -> None:
    sharing = share(None, mode=mode, simulated=simulated)
    edits = await sharing.open(lease(1), GPUS)
    assert edits.walls == NOTHING
    assert daemons.names_in(leased(runtime_dir, "l-1").parent) == ["lease.json"]
    status = await status_of(sharing)
    assert status.mode == "none"
    assert "nothing but the watchdog holds parts of GPUs" in (status.trouble or "")


async def test_where_mps_is_off_its_program_is_not_even_started(
    share: MakeSharing, mps_control_binary: Path, runtime_dir: Path
) -> None:
    edits = await share(mps_control_binary, mode=MpsMode.OFF).open(lease(1), GPUS)
    assert edits.walls == NOTHING
    assert not (runtime_dir / "mps").exists()


@pytest.mark.parametrize("simulated", [True, False])
async def test_where_mps_is_required_no_lease_goes_without(share: MakeSharing, simulated: bool) -> None:
    sharing = share(None, mode=MpsMode.REQUIRED, simulated=simulated)
    with pytest.raises(SharingUnavailable, match="not installed"):
        await sharing.open(lease(1), GPUS)


async def test_a_daemon_that_does_not_start_refuses_leases_on_a_real_gpu_and_bares_them_on_a_simulated_one(
    share: MakeSharing, runtime_dir: Path
) -> None:
    dying = program(runtime_dir / "dying", "echo no CUDA driver; exit 100")
    real, simulated = share(dying), share(dying, simulated=True)
    with pytest.raises(SharingUnavailable, match="status 100: no CUDA driver"):
        await real.open(lease(1), GPUS)
    assert (await simulated.open(lease(1), GPUS)).walls == NOTHING
    for sharing in (real, simulated):
        assert "no CUDA driver" in ((await status_of(sharing)).trouble or "")


async def test_a_program_that_hangs_times_out_once_and_holds_up_nobody_else(
    share: MakeSharing, runtime_dir: Path
) -> None:
    """The first lease waits for the time-out, the loop meanwhile turns; the next is told at once."""
    hanging = program(runtime_dir / "hanging", f'echo >> "{runtime_dir}/calls"\nexec sleep 1000')
    sharing = share(hanging, control=IMPATIENT)
    opening = asyncio.create_task(sharing.open(lease(1), GPUS))
    turns = 0
    while not opening.done():
        await asyncio.sleep(0)
        turns += 1
    with pytest.raises(TimedOut):
        await opening
    assert turns > 100
    calls = (runtime_dir / "calls").read_text()
    with pytest.raises(TimedOut):
        await sharing.open(lease(2), GPUS)
    assert (runtime_dir / "calls").read_text() == calls
    assert "did not answer" in ((await status_of(sharing)).trouble or "")


async def test_a_probe_left_behind_by_a_killed_daemon_does_not_answer_for_the_flag(
    mps_control_binary: Path, share: MakeSharing, runtime_dir: Path
) -> None:
    """It was started without the flag; taken over, it would make the flag look known."""
    pipe_dir = runtime_dir / "mps" / "probe" / "pipe"
    pipe_dir.mkdir(parents=True)
    left = await asyncio.create_subprocess_exec(
        mps_control_binary, "-f", env=daemons.environment(pipe_dir), stdout=asyncio.subprocess.DEVNULL
    )
    await daemons.until((pipe_dir / "control_privileged").exists)
    sharing = share(mps_control_binary)
    await sharing.open(lease(1, owner_uid=1000), GPUS)
    await sharing.open(lease(2, owner_uid=1001), GPUS)
    await left.wait()
    assert len(daemons.serving_under(runtime_dir)) == 2


async def test_status_tells_when_the_daemon_of_a_gpu_does_not_answer(
    mps_control_binary: Path, share: MakeSharing, runtime_dir: Path
) -> None:
    sharing = share(mps_control_binary, control=ControlTiming(command_seconds=0.5, quit_seconds=1.0))
    await sharing.open(lease(1), GPUS)
    (pid,) = daemons.serving_under(runtime_dir)
    os.kill(pid, signal.SIGSTOP)
    await until_status(sharing, lambda status: status.trouble is not None)
    assert (await status_of(sharing)).mode == "mps"
    os.kill(pid, signal.SIGCONT)


def test_a_runtime_directory_with_too_long_a_name_is_refused_at_once() -> None:
    with pytest.raises(ConfigError, match="bytes long"):
        MpsSharing(Path("/run") / ("x" * 60), binary=None)
