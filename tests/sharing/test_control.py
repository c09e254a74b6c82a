"""One control daemon, the real one: asked, limited, found again, ended."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import stat
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpushared.domain.model.errors import ConfigError, SharingUnavailable, TimedOut
from gpushared.domain.model.gpu import GpuId
from gpushared.sharing.control import ControlTiming, DaemonLimits, MpsControl, check_pipe_path
from gpushared.sharing.lease_directories import LeaseDirectories
from tests.sharing import daemons
from tests.sharing.samples import FIRST, SECOND, program

IMPATIENT = ControlTiming(command_seconds=0.3, start_seconds=0.6, quit_seconds=1.0, attempts=3)
NOBODY = 65534


def control(
    binary: Path, home: Path, gpus: tuple[GpuId, ...] = (FIRST,), timing: ControlTiming | None = None
) -> MpsControl:
    home.parent.mkdir(exist_ok=True)
    return MpsControl(binary, home, gpus, multiuser=False, timing=timing)


@pytest.fixture
async def daemon(mps_control_binary: Path, runtime_dir: Path) -> MpsControl:
    """A daemon that serves; the runtime directory's fixture ends it."""
    started = control(mps_control_binary, runtime_dir / "one")
    await started.start()
    return started


async def test_limits_are_set_so_that_another_client_reads_them(
    daemon: MpsControl, mps_control_binary: Path
) -> None:
    await daemon.set_limits(DaemonLimits((20480,), percentage=40))
    answer = await daemons.ask(
        mps_control_binary,
        daemon.pipe_dir,
        "get_default_device_pinned_mem_limit 0",
        "get_default_active_thread_percentage",
    )
    assert answer.split() == ["20G", "40.0"]


@pytest.mark.parametrize("mib", [1, 900, 1024, 1536, 20405, 81920, 200_000])
async def test_any_number_of_mib_passes_the_read_back(daemon: MpsControl, mib: int) -> None:
    await daemon.set_limits(DaemonLimits((mib,)))


async def test_each_gpu_of_a_daemon_has_its_own_limit(mps_control_binary: Path, runtime_dir: Path) -> None:
    both = control(mps_control_binary, runtime_dir / "both", (FIRST, SECOND))
    await both.start()
    await both.set_limits(DaemonLimits((2048, 4096)))
    answer = await both.ask(*(f"get_default_device_pinned_mem_limit {gpu}" for gpu in (0, 1)))
    assert answer == ["2G", "4G"]


@pytest.mark.parametrize("limits", [((0,), 100), ((-1,), 100), ((1,), 0), ((1,), 101)], ids=str)
def test_what_the_daemon_would_misread_is_never_sent(limits: tuple[tuple[int, ...], int]) -> None:
    with pytest.raises(ValueError, match=r"must be positive|not a thread percentage"):
        DaemonLimits(*limits)


async def test_twenty_commands_at_once_are_all_answered_rightly(daemon: MpsControl) -> None:
    """Without the lock the daemon drops most of them, some with exit code 0 and no output."""

    async def limit_and_read(gpu: int) -> list[str]:
        device = f"device_pinned_mem_limit {gpu}"
        return await daemon.ask(f"set_default_{device} {gpu + 1}M", f"get_default_{device}")

    answers = await asyncio.gather(*(limit_and_read(gpu) for gpu in range(20)))
    assert answers == [[f"{gpu + 1}M"] for gpu in range(20)]


@pytest.fixture
def chatter(daemon: MpsControl, mps_control_binary: Path) -> Iterator[None]:
    """Somebody else who talks to the daemon without a pause."""
    enough = threading.Event()

    def talk() -> None:
        while not enough.is_set():
            asyncio.run(daemons.ask(mps_control_binary, daemon.pipe_dir, "get_server_list"))

    thread = threading.Thread(target=talk)
    thread.start()
    yield
    enough.set()
    thread.join()


async def test_commands_come_through_beside_a_client_that_never_stops_talking(
    daemon: MpsControl, chatter: None
) -> None:
    for mib in range(1, 31):
        await daemon.set_limits(DaemonLimits((mib,)))


async def test_two_daemons_do_not_share_their_settings(mps_control_binary: Path, runtime_dir: Path) -> None:
    one, two = (control(mps_control_binary, runtime_dir / name) for name in ("one", "two"))
    await asyncio.gather(one.start(), two.start())
    await one.set_limits(DaemonLimits((1024,), percentage=10))
    await two.set_limits(DaemonLimits((2048,), percentage=20))
    question = "get_default_active_thread_percentage", "get_default_device_pinned_mem_limit 0"
    assert [await one.ask(*question), await two.ask(*question)] == [["10.0", "1G"], ["20.0", "2G"]]


async def test_a_second_adapter_takes_over_the_daemon_that_lives(
    daemon: MpsControl, mps_control_binary: Path, runtime_dir: Path
) -> None:
    await daemon.set_limits(DaemonLimits((3072,)))
    pid = daemon.pid
    daemon.let_go()
    heir = control(mps_control_binary, runtime_dir / "one")
    await heir.start()
    assert heir.pid == pid
    assert await heir.ask("get_default_device_pinned_mem_limit 0") == ["3G"]
    assert daemons.serving_under(runtime_dir) == [pid]


async def test_the_end_of_an_adopted_daemon_is_noticed(
    daemon: MpsControl, mps_control_binary: Path, runtime_dir: Path
) -> None:
    heir = control(mps_control_binary, runtime_dir / "one")
    await heir.start()
    assert heir.pid is not None
    os.kill(heir.pid, signal.SIGKILL)
    assert await heir.exits_within(20)
    assert heir.pid is None


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM])
async def test_files_of_a_dead_daemon_do_not_keep_the_next_from_starting(
    daemon: MpsControl, end: signal.Signals
) -> None:
    old = daemon.pid
    assert old is not None
    os.kill(old, end)
    assert await daemon.exits_within(20)
    assert daemon.socket.exists()
    await daemon.start()
    assert daemon.pid not in (None, old)
    await daemon.set_limits(DaemonLimits((1024,)))


async def test_quit_ends_the_daemon_and_leaves_nothing(daemon: MpsControl, runtime_dir: Path) -> None:
    pid = daemon.pid
    assert pid is not None
    await daemon.quit()
    assert await daemons.gone([pid])
    assert not daemon.home.exists()


async def test_quit_ends_a_daemon_of_an_earlier_life(
    daemon: MpsControl, mps_control_binary: Path, runtime_dir: Path
) -> None:
    pid = daemon.pid
    assert pid is not None
    daemon.let_go()
    await control(mps_control_binary, runtime_dir / "one").quit()
    assert await daemons.gone([pid])


async def test_a_daemon_that_does_not_listen_is_ended_by_force(
    mps_control_binary: Path, runtime_dir: Path
) -> None:
    deaf = control(mps_control_binary, runtime_dir / "deaf", timing=ControlTiming(1.0, 15.0, 1.0))
    await deaf.start()
    pid = deaf.pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    await deaf.quit()
    assert await daemons.gone([pid])


async def test_a_client_that_holds_the_line_times_others_out_until_it_hangs_up(
    mps_control_binary: Path, runtime_dir: Path
) -> None:
    daemon = control(mps_control_binary, runtime_dir / "one", timing=ControlTiming(1.0, 15.0, 1.0))
    await daemon.start()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as line:
        line.connect(str(daemon.socket))
        with pytest.raises(TimedOut):
            await daemon.servers()
    assert await daemon.servers() == ()


@pytest.mark.parametrize("user", [NOBODY, 0], ids=["an ordinary user", "even root"])
async def test_who_has_only_a_lease_directory_may_ask_but_neither_set_nor_quit(
    daemon: MpsControl, mps_control_binary: Path, runtime_dir: Path, user: int
) -> None:
    await daemon.set_limits(DaemonLimits((1024,), percentage=50))
    runtime_dir.chmod(0o711)
    directories = LeaseDirectories(runtime_dir / "leases")
    directories.link("l-1", daemon.socket)
    leased = directories.path("l-1") / "mps"
    assert daemons.names_in(leased) == ["control"]
    assert stat.S_IMODE(leased.parent.parent.stat().st_mode) == 0o700, "no way in for users of the host"
    # A container's mount begins behind the private folder; here the folder is opened to get there.
    leased.parent.parent.chmod(0o711)
    answer = await daemons.ask(
        mps_control_binary,
        leased,
        "set_default_active_thread_percentage 100",
        "set_default_device_pinned_mem_limit 0 80G",
        "quit",
        "get_default_active_thread_percentage",
        user=user,
    )
    assert answer.count(f"Insufficient privileges for UID {user}") == 2
    assert "Not enough privilege to execute quit command" in answer
    assert answer.splitlines()[-1] == "50.0"
    assert await daemon.ask("get_default_device_pinned_mem_limit 0") == ["1G"]


async def test_only_the_owner_may_enter_the_directory_of_a_daemon_for_all_users(
    mps_control_binary: Path, runtime_dir: Path
) -> None:
    """An older daemon lets anybody reach its servers; what can be set through it stays closed."""
    accepting = program(runtime_dir / "newer", f'exec "{mps_control_binary}" ${{1:+-f}}')
    shared = MpsControl(accepting, runtime_dir / "m", (FIRST,), multiuser=True)
    single = control(mps_control_binary, runtime_dir / "u")
    await asyncio.gather(shared.start(), single.start())

    def mode(path: Path) -> int:
        return stat.S_IMODE(path.stat().st_mode)

    assert mode(shared.pipe_dir) == 0o700
    assert mode(single.pipe_dir) == 0o711
    assert mode(single.pipe_dir / "control_privileged") == 0o700


async def test_a_flag_that_the_program_does_not_know_is_a_clear_error(
    mps_control_binary: Path, runtime_dir: Path
) -> None:
    shared = MpsControl(mps_control_binary, runtime_dir / "m", (FIRST,), multiuser=True)
    with pytest.raises(SharingUnavailable, match="ended at its start with status 1"):
        await shared.start()


async def test_the_longest_path_that_is_allowed_works(mps_control_binary: Path, runtime_dir: Path) -> None:
    short = runtime_dir / "x" / "pipe"
    home = runtime_dir / ("x" * (88 - len(str(short))))
    longest = control(mps_control_binary, home)
    assert len(str(longest.pipe_dir)) == 87
    await longest.start()
    assert await longest.servers() == ()


def test_a_longer_path_is_refused_with_its_length() -> None:
    with pytest.raises(ConfigError, match="is 88 bytes long, 87 are allowed"):
        check_pipe_path(Path("/" + "x" * 87))


async def test_a_missing_program_is_a_clear_error(runtime_dir: Path) -> None:
    with pytest.raises(SharingUnavailable, match="not found"):
        await control(runtime_dir / "nothing", runtime_dir / "one").start()


async def test_a_daemon_that_dies_at_once_leaves_its_last_words(runtime_dir: Path) -> None:
    dying = program(runtime_dir / "dying", "echo no device is there >&2; exit 7")
    with pytest.raises(SharingUnavailable, match="with status 7: no device is there"):
        await control(dying, runtime_dir / "one").start()


async def test_a_daemon_that_hangs_times_out_and_is_not_left_behind(runtime_dir: Path) -> None:
    """While it hangs the event loop goes on with other work."""
    hanging = program(runtime_dir / "hanging", "sleep 1000 & wait")
    start = asyncio.create_task(control(hanging, runtime_dir / "one", timing=IMPATIENT).start())
    turns = 0
    while not start.done():
        await asyncio.sleep(0)
        turns += 1
    with pytest.raises(TimedOut):
        await start
    assert turns > 100
    assert daemons.serving_under(runtime_dir) == []


async def test_a_daemon_that_only_pretends_to_take_limits_is_found_out(runtime_dir: Path) -> None:
    liar = program(
        runtime_dir / "liar", '[ "$1" = -f ] && exec sleep 1000\nwhile read line; do echo 100.0; done'
    )
    pretending = control(liar, runtime_dir / "one")
    await pretending.start()
    with pytest.raises(SharingUnavailable, match="did not take its limits"):
        await pretending.set_limits(DaemonLimits((1024,)))


async def test_a_daemon_that_hangs_up_is_asked_a_bounded_number_of_times(runtime_dir: Path) -> None:
    counting = program(runtime_dir / "counting", f'echo >> "{runtime_dir}/calls"\nexit 1')
    silent = control(counting, runtime_dir / "one", timing=IMPATIENT)
    with pytest.raises(SharingUnavailable, match="does not answer: no output"):
        await silent.ask("get_server_list")
    assert (runtime_dir / "calls").read_text() == "\n" * 3


async def test_the_log_is_cut_when_it_has_grown(daemon: MpsControl) -> None:
    with daemon.log.open("a") as log:
        log.write("x" * 2 * 1024 * 1024)
    daemon.trim_log()
    await daemon.servers()
    assert 0 < daemon.log.stat().st_size < 1024
