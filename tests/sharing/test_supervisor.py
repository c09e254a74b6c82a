"""A control daemon kept alive."""

from __future__ import annotations

import os
import signal
import stat
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from gpushared.domain.model.errors import RequestError, SharingUnavailable, TimedOut
from gpushared.sharing.control import ControlTiming, DaemonLimits, MpsControl
from gpushared.sharing.lease_directories import LeaseDirectories
from gpushared.sharing.supervisor import Supervisor, restart_seconds
from tests.sharing import daemons
from tests.sharing.daemons import names_in, until
from tests.sharing.samples import FIRST, ScriptedControl, program

LIMITS = DaemonLimits((20480,))
LIMITS_READ = "20G"
NEVER_AGAIN_SECONDS = 3600.0

MakeSupervisor = Callable[..., Supervisor]


@pytest.fixture
async def supervise(runtime_dir: Path) -> AsyncIterator[MakeSupervisor]:
    """Makes supervisors, and stops them."""
    made: list[Supervisor] = []

    def make(binary: Path, *, poll_seconds: float = 0.05, timing: ControlTiming | None = None) -> Supervisor:
        control = MpsControl(binary, runtime_dir / "one", (FIRST,), multiuser=False, timing=timing)
        supervisor = Supervisor(
            control,
            LIMITS,
            LeaseDirectories(runtime_dir / "leases"),
            poll_seconds=poll_seconds,
            backoff=lambda failures: 0.0 if failures < 3 else NEVER_AGAIN_SECONDS,
        )
        made.append(supervisor)
        return supervisor

    yield make
    for supervisor in made:
        await supervisor.stop()


def leased(runtime_dir: Path, name: str) -> Path:
    return runtime_dir / "leases" / name / "mps"


async def test_a_killed_daemon_is_started_again_limited_again_and_linked_again(
    mps_control_binary: Path, supervise: MakeSupervisor, runtime_dir: Path
) -> None:
    supervisor = supervise(mps_control_binary)
    await supervisor.attach("l-1")
    await supervisor.attach("l-2")
    old = supervisor.control.pid
    before = leased(runtime_dir, "l-1").stat().st_ino
    assert old is not None
    os.kill(old, signal.SIGKILL)
    await until(lambda: supervisor.starts == 2)
    assert daemons.serving_under(runtime_dir) == [supervisor.control.pid] != [old]
    for name in ("l-1", "l-2"):
        directory = leased(runtime_dir, name)
        assert names_in(directory) == ["control"]
        answer = await daemons.ask(mps_control_binary, directory, "get_default_device_pinned_mem_limit 0")
        assert answer.split() == [LIMITS_READ]
    # It may be mounted in a container, so it must be the same directory.
    assert leased(runtime_dir, "l-1").stat().st_ino == before
    assert supervisor.trouble is None


async def test_a_lease_that_comes_while_the_daemon_is_started_again_waits_for_it(
    mps_control_binary: Path, supervise: MakeSupervisor, runtime_dir: Path
) -> None:
    supervisor = supervise(mps_control_binary)
    await supervisor.attach("l-1")
    assert supervisor.control.pid is not None
    os.kill(supervisor.control.pid, signal.SIGKILL)
    await until(lambda: not supervisor.serving)
    await supervisor.attach("l-2")
    assert leased(runtime_dir, "l-2").joinpath("control").samefile(supervisor.control.socket)


class RelimitedControl(MpsControl):
    """Set other limits in the moment in which the first ones were set."""

    supervisor: Supervisor

    async def set_limits(self, limits: DaemonLimits) -> None:
        await super().set_limits(limits)
        await self.supervisor.relimit(DaemonLimits((4096,), 12.5))


async def test_limits_that_change_while_the_daemon_is_being_started_are_not_lost(
    mps_control_binary: Path, runtime_dir: Path
) -> None:
    control = RelimitedControl(mps_control_binary, runtime_dir / "one", (FIRST,), multiuser=False)
    supervisor = Supervisor(control, LIMITS, LeaseDirectories(runtime_dir / "leases"), poll_seconds=0.05)
    control.supervisor = supervisor
    await supervisor.attach("l-1")
    questions = ("get_default_device_pinned_mem_limit 0", "get_default_active_thread_percentage")
    assert await control.ask(*questions) == ["4G", "12.5"]
    await supervisor.stop()


async def test_attaching_again_heals_a_lost_link(
    mps_control_binary: Path, supervise: MakeSupervisor, runtime_dir: Path
) -> None:
    supervisor = supervise(mps_control_binary)
    await supervisor.attach("l-1")
    leased(runtime_dir, "l-1").joinpath("control").unlink()
    await supervisor.attach("l-1")
    assert leased(runtime_dir, "l-1").joinpath("control").samefile(supervisor.control.socket)


async def test_a_daemon_that_stops_answering_is_reported_left_alone_and_welcomed_back(
    mps_control_binary: Path, supervise: MakeSupervisor
) -> None:
    """Killing it would harm the containers that compute through it."""
    timing = ControlTiming(command_seconds=1.0)
    supervisor = supervise(mps_control_binary, timing=timing)
    await supervisor.attach("l-1")
    pid = supervisor.control.pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    try:
        await until(lambda: supervisor.trouble is not None)
        assert "did not answer" in (supervisor.trouble or "")
        with pytest.raises(TimedOut):
            await supervisor.attach("l-2")
    finally:
        os.kill(pid, signal.SIGCONT)
    await until(lambda: supervisor.trouble is None)
    await supervisor.attach("l-2")
    assert (supervisor.control.pid, supervisor.starts) == (pid, 1)


async def test_a_daemon_that_keeps_dying_is_tried_a_few_times_and_then_with_pauses(
    supervise: MakeSupervisor, runtime_dir: Path
) -> None:
    dying = program(
        runtime_dir / "dying", f'[ "$1" = -f ] && echo >> "{runtime_dir}/starts"\necho no GPU; exit 1'
    )
    supervisor = supervise(dying)
    with pytest.raises(SharingUnavailable, match="no GPU"):
        await supervisor.attach("l-1")
    with pytest.raises(SharingUnavailable, match="no GPU"):
        await supervisor.attach("l-2")
    assert (runtime_dir / "starts").read_text() == "\n" * 3
    assert "no GPU" in (supervisor.trouble or "")


async def test_the_clients_of_all_its_servers_are_known(supervise: MakeSupervisor, runtime_dir: Path) -> None:
    scripted = ScriptedControl(runtime_dir / "played")
    scripted.serve(71, "100\n101\n")
    scripted.serve(72, "102\n")
    supervisor = supervise(scripted.binary)
    before = time.monotonic()
    await supervisor.attach("l-1")
    await until(lambda: supervisor.clients_at is not None)
    assert (supervisor.servers, supervisor.clients) == ((71, 72), frozenset({100, 101, 102}))
    assert (supervisor.clients_at or 0) > before


@pytest.mark.parametrize("answer", ["0\n", "100\n0\n", "no such command\n"])
async def test_an_answer_that_does_not_name_the_clients_leaves_them_unknown(
    supervise: MakeSupervisor, runtime_dir: Path, answer: str
) -> None:
    """A control daemon in a PID namespace of its own shows clients as process 0."""
    scripted = ScriptedControl(runtime_dir / "played")
    scripted.serve(71, "100\n")
    supervisor = supervise(scripted.binary)
    await supervisor.attach("l-1")
    await until(lambda: supervisor.clients_at is not None)
    scripted.serve(72, answer)
    await until(lambda: supervisor.clients_at is None)
    assert supervisor.clients == frozenset()


async def test_it_looks_at_its_clients_at_once_when_asked(
    supervise: MakeSupervisor, runtime_dir: Path
) -> None:
    scripted = ScriptedControl(runtime_dir / "played")
    supervisor = supervise(scripted.binary, poll_seconds=NEVER_AGAIN_SECONDS)
    await supervisor.attach("l-1")
    assert supervisor.clients_at is None
    scripted.serve(71, "100\n")
    supervisor.look_soon()
    supervisor.look_soon()
    await until(lambda: supervisor.clients_at is not None)
    assert (supervisor.clients, scripted.asked("get_server_list")) == (frozenset({100}), 1)


async def test_a_daemon_that_was_found_alive_tells_its_servers_at_once(
    mps_control_binary: Path, supervise: MakeSupervisor
) -> None:
    """They would be taken for strangers on the GPU until then."""
    before = supervise(mps_control_binary)
    await before.attach("l-1")
    await before.let_go()
    supervisor = supervise(mps_control_binary, poll_seconds=NEVER_AGAIN_SECONDS)
    await supervisor.attach("l-1")
    await until(lambda: supervisor.clients_at is not None)


async def test_the_clients_of_a_daemon_that_died_are_not_known(
    supervise: MakeSupervisor, runtime_dir: Path
) -> None:
    scripted = ScriptedControl(runtime_dir / "played")
    scripted.serve(71, "100\n")
    supervisor = supervise(scripted.binary, poll_seconds=NEVER_AGAIN_SECONDS)
    await supervisor.attach("l-1")
    supervisor.look_soon()
    await until(lambda: supervisor.clients_at is not None)
    assert supervisor.control.pid is not None
    os.kill(supervisor.control.pid, signal.SIGKILL)
    await until(lambda: supervisor.starts == 2)
    assert (supervisor.clients, supervisor.clients_at) == (frozenset(), None)


@pytest.mark.parametrize(
    ("failures", "seconds"), [(0, 0.0), (1, 0.1), (2, 0.2), (5, 1.6), (10, 51.2), (11, 60.0), (10**6, 60.0)]
)
def test_pauses_double_up_to_a_minute(failures: int, seconds: float) -> None:
    assert restart_seconds(failures) == pytest.approx(seconds)


@pytest.mark.parametrize("name", ["", "..", ".hidden", "a/b", "../x", "a\0b", "a" * 129, "l-1\n"])
def test_a_name_that_could_lead_elsewhere_is_no_device_name(runtime_dir: Path, name: str) -> None:
    with pytest.raises(RequestError, match="is not a device name"):
        LeaseDirectories(runtime_dir).path(name)


def test_removing_a_lease_directory_leaves_what_is_not_ours(runtime_dir: Path) -> None:
    (runtime_dir / "socket").touch()
    directories = LeaseDirectories(runtime_dir / "leases")
    directories.link("l-1", runtime_dir / "socket")
    foreign = runtime_dir / "leases" / "l-1" / "note"
    foreign.touch()
    directories.remove("l-1")
    directories.remove("l-1")
    assert foreign.exists()
    assert names_in(directories.path("l-1")) == ["note"]


def test_a_lease_directory_that_a_container_has_mounted_stays_while_its_files_change(
    runtime_dir: Path,
) -> None:
    (runtime_dir / "socket").touch()
    directories = LeaseDirectories(runtime_dir / "leases")
    directories.link("l-1", runtime_dir / "socket")
    directories.write("l-1", "old")
    path = directories.path("l-1")
    before = (path.stat().st_ino, (path / "mps").stat().st_ino)
    directories.unlink("l-1")
    directories.link("l-1", runtime_dir / "socket")
    directories.write("l-1", "new")
    assert (path.stat().st_ino, (path / "mps").stat().st_ino) == before
    assert (names_in(path), (path / "lease.json").read_text()) == (["lease.json", "mps"], "new")


def test_what_a_lease_says_of_itself_can_be_read_by_every_user_in_its_container(runtime_dir: Path) -> None:
    mask = os.umask(0o077)
    try:
        directories = LeaseDirectories(runtime_dir / "leases")
        directories.write("l-1", "{}")
    finally:
        os.umask(mask)
    path = directories.path("l-1")
    modes = [stat.S_IMODE(one.stat().st_mode) for one in (path.parent, path, path / "lease.json")]
    assert modes == [0o700, 0o755, 0o644]


def test_a_lease_directory_that_cannot_be_made_is_a_refusal(runtime_dir: Path) -> None:
    (runtime_dir / "leases").write_text("in the way")
    with pytest.raises(SharingUnavailable, match="the lease's file cannot be put into"):
        LeaseDirectories(runtime_dir / "leases").write("l-1", "{}")
