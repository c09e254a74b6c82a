"""Clients taken off their servers, servers in a fault, servers taken away, and lines that somebody holds."""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from gpushared.domain.leases.node_rules import MpsMode
from gpushared.domain.model.errors import TimedOut
from gpushared.domain.model.request import Isolation
from gpushared.ports import ServerFault, SharingStatus
from gpushared.sharing.connection_holder import is_own
from gpushared.sharing.control import ControlTiming
from gpushared.sharing.daemon_pool import MpsTiming
from gpushared.sharing.mps import MpsSharing
from gpushared.sharing.server_watch import culprit_of
from tests.sharing import daemons
from tests.sharing.fake_mps import FakeMps
from tests.sharing.samples import FIRST, GPUS, leasable_gib, lease

IMPATIENT = ControlTiming(command_seconds=0.5, start_seconds=15.0, quit_seconds=1.0, attempts=3)
NEVER_SECONDS = 3600.0

MakeSharing = Callable[..., MpsSharing]


@pytest.fixture
def mps(runtime_dir: Path) -> FakeMps:
    return FakeMps(runtime_dir / "fake")


@pytest.fixture
async def share(runtime_dir: Path, mps: FakeMps) -> AsyncIterator[MakeSharing]:
    """Makes sharings over the fake program, and closes them."""
    made: list[MpsSharing] = []

    def make(
        binary: Path | None = None,
        *,
        recycle_seconds: float = NEVER_SECONDS,
        control: ControlTiming | None = None,
        detach_seconds: float = 3.0,
        poll_seconds: float = 0.05,
    ) -> MpsSharing:
        timing = MpsTiming(
            control or ControlTiming(),
            poll_seconds=poll_seconds,
            recycle_seconds=recycle_seconds,
            detach_seconds=detach_seconds,
        )
        made.append(
            MpsSharing(runtime_dir, binary=binary or mps.binary, mode=MpsMode.REQUIRED, timing=timing)
        )
        return made[-1]

    yield make
    for sharing in made:
        await sharing.close(keep_running=False)


class StatusReader:
    """Read the newest status of the first GPU, or wait for one."""

    def __init__(self, sharing: MpsSharing) -> None:
        self._sharing = sharing

    async def now(self) -> SharingStatus:
        return next(one for one in await self._sharing.status() if one.gpu == FIRST)

    async def until(self, condition: Callable[[SharingStatus], object]) -> SharingStatus:
        async with asyncio.timeout(30):
            while not condition(status := await self.now()):  # noqa: ASYNC110 - the port offers a look
                await asyncio.sleep(0.01)
        return status


# --- parting ---------------------------------------------------------------------------------------------


async def test_only_the_named_processes_are_taken_off_their_server(share: MakeSharing, mps: FakeMps) -> None:
    sharing = share()
    await sharing.open(lease(1), GPUS)
    mps.serve(71, 100, 101, 102)
    assert await sharing.detach_clients(lease(1), {100, 102, 999}) == 2
    assert mps.clients(71) == [101]
    assert mps.told("terminate_client") == ["terminate_client 71 100", "terminate_client 71 102"]


async def test_processes_that_are_no_clients_are_no_error(share: MakeSharing, mps: FakeMps) -> None:
    sharing = share()
    assert await sharing.detach_clients(lease(1), {100}) == 0
    await sharing.open(lease(1), GPUS)
    mps.serve(71, 101)
    assert await sharing.detach_clients(lease(1), {100}) == 0
    assert mps.told("terminate_client") == []


async def test_a_daemon_that_does_not_answer_holds_up_nobody_whom_it_does_not_serve(
    share: MakeSharing, mps: FakeMps, runtime_dir: Path
) -> None:
    """Of those that it serves it is said in time that they are still there."""
    sharing = share(detach_seconds=0.5, control=IMPATIENT)
    await sharing.open(lease(1), GPUS)
    mps.serve(71, 100)
    status_reader = StatusReader(sharing)
    await status_reader.until(lambda status: status.clients == (100,))
    with held(runtime_dir):
        await status_reader.until(lambda status: status.trouble)
        assert await sharing.detach_clients(lease(1), {200}) == 0
        with pytest.raises(TimedOut, match=r"MPS did not let go of its clients in 0\.5 s"):
            await sharing.detach_clients(lease(1), {100})
    assert mps.clients(71) == [100]


async def test_a_daemon_that_somebody_keeps_from_answering_holds_up_no_lease_of_another(
    share: MakeSharing, mps: FakeMps, runtime_dir: Path
) -> None:
    """Also before anybody has noticed."""
    sharing = share(detach_seconds=NEVER_SECONDS, poll_seconds=NEVER_SECONDS)
    await sharing.open(lease(1), GPUS)
    with held(runtime_dir):
        await sharing.open(lease(2, isolation=Isolation.SEPARATE), GPUS)
        mps.serve(71, 200)
        async with asyncio.timeout(30):
            assert await sharing.detach_clients(lease(2), {200}) == 1


# --- faults ----------------------------------------------------------------------------------------------

MEMORY_FAULT = "[2026-04-28 18:20:41.704 Server 71] Memory fault by client {PID: 100, Context ID: 1}\n"


@pytest.mark.parametrize("log", ["server.log", "control.log"])
async def test_a_fault_names_whom_it_hit_and_who_caused_it_until_they_are_gone(
    share: MakeSharing, mps: FakeMps, runtime_dir: Path, log: str
) -> None:
    """Servers write into a log of their own or, with release 580, into their daemon's output."""
    sharing = share()
    await sharing.open(lease(1), GPUS)
    mps.serve(71, 100, 101)
    status_reader = StatusReader(sharing)
    await status_reader.until(lambda status: status.clients == (100, 101))
    with (directory(runtime_dir) / "log" / log).open("a") as written:
        written.write(MEMORY_FAULT)
    mps.serve(71, 101, state="FAULT")
    status = await status_reader.until(lambda status: status.faults)
    assert status.faults == (ServerFault(71, (100, 101), 100),)
    status = await status_reader.until(lambda status: status.faults[0].clients == (101,))
    assert "1 of its clients are still there" in (status.trouble or "")
    mps.serve(71)
    status = await status_reader.until(lambda status: not status.faults)
    assert status.trouble is None


@pytest.mark.parametrize(
    ("log", "culprit"),
    [
        ("Memory fault by client {PID: 100, Context ID: 1}", 100),
        ("Fault on {100, 1}\nFault on {100, 1}", 100),
        ("Fault on {100, 1}\nFault on {101, 1}", None),
        ("Fault on {999, 1}", None),
        ("Client {PID: 100, Context ID: 0} connected", None),
        ("Fault", None),
        ("", None),
    ],
)
def test_a_culprit_is_named_only_where_the_log_leaves_no_doubt(log: str, culprit: int | None) -> None:
    assert culprit_of(log.splitlines(), {100, 101}) == culprit


@pytest.mark.parametrize(
    ("stubborn", "told"),
    [(False, ["shutdown_server 71"]), (True, ["shutdown_server 71", "shutdown_server 71 -f"])],
    ids=["that goes when told", "that needs force"],
)
async def test_a_server_that_stays_in_its_fault_without_clients_is_taken_away(
    share: MakeSharing, mps: FakeMps, stubborn: bool, told: list[str]
) -> None:
    sharing = share(recycle_seconds=0.1)
    await sharing.open(lease(1), GPUS)
    mps.serve(71, 100, state="FAULT", stubborn=stubborn)
    status_reader = StatusReader(sharing)
    await status_reader.until(lambda status: status.faults)
    mps.serve(71, state="FAULT", stubborn=stubborn)
    await status_reader.until(lambda status: not status.faults)
    assert mps.told("shutdown_server") == told


async def test_a_server_that_no_command_takes_away_goes_with_its_daemon_and_the_limits_come_back(
    share: MakeSharing, mps: FakeMps, runtime_dir: Path
) -> None:
    sharing = share(recycle_seconds=0.1)
    await sharing.open(lease(1), GPUS)
    status_reader = StatusReader(sharing)
    (old,) = daemons.serving_under(runtime_dir)
    mps.serve(71, state="FAULT", undying=True)
    await status_reader.until(lambda status: status.faults)
    await daemons.until(lambda: daemons.serving_under(runtime_dir) not in ([], [old]))
    await status_reader.until(lambda status: status.trouble is None and status.mode == "mps")
    question = "get_default_device_pinned_mem_limit 0"
    linked = runtime_dir / "leases" / "l-1" / "mps"
    assert (await daemons.ask(mps.binary, linked, question)).split() == [f"{leasable_gib(FIRST)}G"]


async def test_a_server_in_a_fault_is_left_alone_while_it_has_clients(
    share: MakeSharing, mps: FakeMps
) -> None:
    sharing = share(recycle_seconds=0.0)
    await sharing.open(lease(1), GPUS)
    mps.serve(71, 100, state="FAULT")
    await StatusReader(sharing).until(lambda status: status.faults)
    seen = len(mps.told("get_server_list"))
    await daemons.until(lambda: len(mps.told("get_server_list")) > seen + 3)
    assert mps.told("shutdown_server") == []


# --- a held line -----------------------------------------------------------------------------------------


async def test_who_holds_the_line_is_named_new_leases_are_refused_and_it_heals_at_the_end(
    mps_control_binary: Path, share: MakeSharing, runtime_dir: Path
) -> None:
    """The real daemon: it serves nobody while somebody is connected and says nothing."""
    sharing = share(mps_control_binary, control=IMPATIENT)
    await sharing.open(lease(1), GPUS)
    status_reader = StatusReader(sharing)
    holder = await hold_in_another_process(runtime_dir)
    try:
        status = await status_reader.until(lambda status: "holds its line" in (status.trouble or ""))
        assert f"process {holder.pid} (python" in (status.trouble or "")
        assert ", since " in (status.trouble or "")
        with pytest.raises(TimedOut):
            await sharing.open(lease(2), GPUS)
    finally:
        holder.kill()
        await holder.wait()
    await status_reader.until(lambda status: status.trouble is None)
    await sharing.open(lease(2), GPUS)


@pytest.mark.parametrize(
    ("name", "cgroup", "own"),
    [
        ("nvidia-cuda-mps", "0::/system.slice/gpushared.service\n", True),
        ("nvidia-cuda-mps", "0::/system.slice/docker-0123.scope\n", False),
        ("python3", "0::/system.slice/gpushared.service\n", False),
    ],
    ids=["a server", "a program in a container that calls itself one", "another program"],
)
def test_a_name_alone_makes_nobody_one_of_mps(tmp_path: Path, name: str, cgroup: str, own: bool) -> None:
    for pid, comm, place in (
        (1, "nvidia-cuda-mps", "0::/system.slice/gpushared.service\n"),
        (2, name, cgroup),
    ):
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "comm").write_text(f"{comm}\n")
        (tmp_path / str(pid) / "cgroup").write_text(place)
    assert is_own(2, 1, tmp_path) is own


def directory(runtime_dir: Path) -> Path:
    """Of the one daemon that serves."""
    (found,) = [one for one in (runtime_dir / "mps").iterdir() if one.name != "probe"]
    return found


async def hold_in_another_process(runtime_dir: Path) -> asyncio.subprocess.Process:
    path = directory(runtime_dir) / "pipe" / "control"
    code = (
        "import socket,sys; line=socket.socket(socket.AF_UNIX,socket.SOCK_SEQPACKET);"
        f"line.connect({str(path)!r}); print('held',flush=True); sys.stdin.read()"
    )
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", code, stdin=pipe, stdout=pipe)
    assert process.stdout is not None
    assert await process.stdout.readline() == b"held\n"
    return process


def held(runtime_dir: Path) -> socket.socket:
    line = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    line.connect(str(directory(runtime_dir) / "pipe" / "control"))
    return line
