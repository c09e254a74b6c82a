"""What users mount is held in place: on the real engines, with users who swap things behind our back."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import shutil
import signal
import socket
import stat
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from gpushared.domain.model.errors import PermissionRefused, Unavailable
from gpushared.gate.api.site import SitePolicy
from gpushared.gate.mounts.held_mounts import ROOT, HeldMounts
from gpushared.net.http_client import EngineSocket
from tests.bed.parts import BUSYBOX_TAR
from tests.gate.mounting import PATIENCE_SECONDS, Holding, account, give, mounted, until, wish, words
from tests.gate.serving import ALICE, BOB

pytestmark = pytest.mark.docker


# --- swapping ------------------------------------------------------------------------------------------


def swap_for_a_link(home: Path) -> None:
    (home / "own" / "d").rename(home / "own" / "old")
    (home / "own" / "d").symlink_to(home / "secret" / "d")


def swap_for_a_directory(home: Path) -> None:
    (home / "own" / "d").rename(home / "own" / "old")
    (home / "secret" / "d").rename(home / "own" / "d")


def swap_the_parent(home: Path) -> None:
    (home / "own").rename(home / "old")
    (home / "own").symlink_to(home / "secret")


def move_it_away(home: Path) -> None:
    (home / "own" / "d").rename(home / "own" / "old")


SWAPS: list[Callable[[Path], None]] = [
    swap_for_a_link,
    swap_for_a_directory,
    swap_the_parent,
    move_it_away,
]


@pytest.mark.parametrize("swap", SWAPS)
async def test_what_is_put_in_the_place_of_a_directory_is_not_what_the_engine_mounts(
    holding: Holding, swap: Callable[[Path], None]
) -> None:
    container = await holding.create(*words(holding, holding.own / "d", "cat", "/x/file"))
    swap(holding.home)
    assert await holding.output(container) == b"mine"


async def test_a_restart_by_the_engines_own_policy_mounts_what_was_checked(holding: Holding) -> None:
    policy = ("--restart", "always", "--init")
    shown = ("sh", "-c", "cat /x/file; echo; exec sleep 600")
    container = await holding.create(*policy, *words(holding, holding.own / "d", *shown))
    assert (await holding.alice("start", container)).code == 0

    async def said(times: int) -> bool:
        return (await holding.direct("logs", container)).out == b"mine\n" * times

    await until("it runs", lambda: said(1))
    swap_for_a_link(holding.home)
    os.kill((await holding.inspect(container))["State"]["Pid"], signal.SIGKILL)
    await until("the engine started it again", lambda: said(2))


FLIP = """
import ctypes, os, sys
libc, exchange = ctypes.CDLL(None), 2
os.setresgid(1000, 1000, 1000)
os.setresuid(1000, 1000, 1000)
a, b = (os.fsencode(word) for word in sys.argv[1:])
print(flush=True)
while True:
    libc.syscall(316, -100, a, -100, b, exchange)
"""


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="calls renameat2 by its number there")
async def test_however_fast_a_link_is_swapped_what_is_held_was_the_callers_to_open(holding: Holding) -> None:
    """A link that leads to a secret and a directory change places as fast as the machine can."""
    swap = holding.own / "link"
    swap.symlink_to(holding.home / "secret" / "d")
    pair = (str(swap), str(holding.own / "d"))
    async with running(sys.executable, "-c", FLIP, *pair):
        outcomes = {await seen(holding, holding.own / "d") for _ in range(40)}
    assert outcomes == {"mine", "refused"}


@asynccontextmanager
async def running(*command: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """A program that has said that it is ready, until it is killed."""
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    try:
        await process.stdout.readline()
        yield process
    finally:
        process.kill()
        await process.wait()


async def seen(holding: Holding, path: Path) -> str:
    """What the file in a new pin of this path says."""
    root = Path(f"/proc/{await holding.engine.peer_pid()}/root")
    try:
        async with holding.pins.hold(account(), [wish(path)]) as pin:
            return (root / pin.source(0).lstrip("/") / "file").read_text()
    except PermissionRefused:
        return "refused"


async def test_a_start_through_the_gate_mounts_what_is_there_by_then(holding: Holding) -> None:
    """As people who make a directory anew expect; the engine alone goes on with the old one."""
    container = await holding.create(*words(holding, holding.own / "d", "cat", "/x/file"))
    shutil.rmtree(holding.own / "d")
    give(holding.own).joinpath("d").mkdir()
    give(holding.own / "d").joinpath("file").write_text("new")
    give(holding.own / "d" / "file")
    done = await holding.alice("start", "--attach", container)
    assert (done.code, done.out) == (0, b"new"), done.err
    assert await holding.output(container) == b"new"


async def test_a_removed_directory_is_said_to_be_gone_at_a_start(holding: Holding) -> None:
    container = await holding.create(*words(holding, holding.own / "d", "ls", "/x"))
    shutil.rmtree(holding.own / "d")
    done = await holding.alice("start", "--attach", container)
    assert done.code == 1
    assert b"does not exist" in done.err
    assert (await holding.direct("start", container)).code == 1
    assert not (holding.own / "d").exists()


async def test_rights_that_were_taken_away_are_missed_at_the_next_start(holding: Holding) -> None:
    container = await holding.create(*words(holding, holding.own / "d", "ls", "/x"))
    holding.own.chmod(0o000)
    give(holding.own, 0)
    done = await holding.alice("start", "--attach", container)
    assert done.code == 1
    assert b"you may not see it" in done.err


# --- what is held --------------------------------------------------------------------------------------


async def test_no_program_gains_rights_and_no_device_works_in_what_is_mounted(holding: Holding) -> None:
    container = await holding.create(
        *words(holding, holding.own / "d", "grep", " /x ", "/proc/self/mountinfo")
    )
    options = (await holding.output(container)).decode().split(" - ")[0].split()[5].split(",")
    assert {"rw", "nosuid", "nodev"} <= set(options)


async def test_what_is_mounted_read_only_is_so_already_before_the_engine_mounts_it(holding: Holding) -> None:
    async with holding.pins.hold(account(), [wish(holding.own / "d")]) as pin:
        pid = await holding.engine.peer_pid()
        table = Path(f"/proc/{pid}/mountinfo").read_text().splitlines()
        (line,) = (line.split() for line in table if line.split()[4] == pin.source(0))
        assert "ro" in line[5].split(",")


async def test_a_file_is_held_as_a_directory_is(holding: Holding) -> None:
    mount = f"type=bind,source={holding.own}/d/file,target=/x/file,readonly"
    container = await holding.create(
        *("--label", f"test={holding.home.name}", "--mount", mount, holding.alice.image, "cat", "/x/file")
    )
    (holding.own / "d" / "file").rename(holding.own / "d" / "old")
    (holding.own / "d" / "file").symlink_to(holding.home / "secret" / "d" / "file")
    assert await holding.output(container) == b"mine"


async def test_nobody_else_gets_at_what_is_held(holding: Holding) -> None:
    """The mount itself is past the directories that keep others out."""
    async with holding.pins.hold(account(), [wish(holding.own / "d")]) as pin:
        pid = str(await holding.engine.peer_pid())
        for uid, readable in ((0, True), (ALICE.uid, False), (BOB.uid, False)):
            ids = ("setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups")
            listed = await asyncio.create_subprocess_exec(
                *("nsenter", "--mount", "--target", pid, *ids, "ls", pin.source(0)),
                stdout=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.DEVNULL,
            )
            assert (await listed.wait() == 0) is readable, uid


async def test_the_labels_that_name_pins_are_the_gates_alone(holding: Holding, name: str) -> None:
    """An image can bear any."""
    forged = ("--change", "LABEL gpushare.pins=others gpushare.host-paths=[{}]")
    assert (await holding.direct("import", *forged, str(BUSYBOX_TAR), name)).code == 0
    container = await holding.create("--label", f"test={holding.home.name}", name, "true")
    labels = (await holding.inspect(container))["Config"]["Labels"]
    assert (labels["gpushare.pins"], labels["gpushare.host-paths"]) == ("", "[]")
    assert (await holding.alice("start", container)).code == 0
    await holding.direct("rm", "-f", container)
    await holding.direct("rmi", name)


# --- what is never mounted -----------------------------------------------------------------------------

SYSTEM = ("/proc", "/sys", "/dev", "/run", "/var/lib/docker", "/")


@pytest.fixture
def lenient(docker_engine: str, home: Path, tmp_path: Path) -> HeldMounts:
    """Of a site that would allow everything: what is refused here is refused everywhere."""
    policy = SitePolicy(bind_prefixes=(str(home), *SYSTEM, "/var", "/tmp"))
    return HeldMounts(
        EngineSocket(docker_engine), lambda: policy, ledger=tmp_path, barred=[str(home / "secret")]
    )


async def refusal(pins: HeldMounts, path: Path | str) -> str:
    with pytest.raises(PermissionRefused) as refused:
        async with pins.hold(account(), [wish(path)]):
            pass
    return str(refused.value)


@pytest.mark.parametrize(
    "path",
    [
        *("/proc", "/proc/self", "/proc/self/root", "/proc/self/cwd", "/proc/self/fd/3", "/proc/1/root"),
        *("/proc/self/root/etc", "/sys/kernel", "/dev", "/dev/shm", "/dev/null", "/run", "/var/run"),
        *("/run/docker.sock", "/", "/proc/self/ns/mnt", "/proc/self/../../run"),
    ],
)
async def test_what_is_the_systems_own_is_refused_though_the_site_allowed_it(
    lenient: HeldMounts, path: str
) -> None:
    said = await refusal(lenient, path)
    assert path.partition("/../")[0] in said


def fifo(path: Path) -> None:
    os.mkfifo(path)


def bound_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))


def device(path: Path) -> None:
    os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, 3))


def link_into_proc(path: Path) -> None:
    path.symlink_to("/proc/self/root/etc")


def link_to_itself(path: Path) -> None:
    path.symlink_to(path)


def link_to_a_secret(path: Path) -> None:
    path.symlink_to(path.parent.parent / "secret" / "d")


@pytest.mark.parametrize(
    "make", [fifo, bound_socket, device, link_into_proc, link_to_itself, link_to_a_secret]
)
async def test_what_is_neither_file_nor_directory_of_the_callers_is_refused(
    lenient: HeldMounts, home: Path, make: Callable[[Path], None]
) -> None:
    make(home / "own" / "thing")
    assert "thing cannot be mounted" in await refusal(lenient, home / "own" / "thing")


async def test_a_directory_around_or_inside_one_of_the_daemons_is_refused(
    lenient: HeldMounts, home: Path
) -> None:
    (home / "secret").chmod(0o755)
    assert "for the system only" in await refusal(lenient, home)
    assert "for the system only" in await refusal(lenient, home / "secret" / "d")


@pytest.mark.parametrize("inside", ["", "/inner"])
async def test_the_systems_own_is_refused_under_other_names_too(
    lenient: HeldMounts, home: Path, inside: str
) -> None:
    """Mounted a second time below a directory of the caller's, or there itself."""
    place = give(home / "own" / "d")
    (place / "inner").mkdir()
    with mounted(Path(f"{place}{inside}"), "--bind", "/run"):
        assert "/run is for the system only" in await refusal(lenient, place)
    with mounted(Path(f"{place}{inside}"), "-t", "proc", "proc"):
        assert f"{place}{inside} is the kernel's own (proc)" in await refusal(lenient, place)


async def test_a_directory_of_another_mount_namespace_is_refused(lenient: HeldMounts, home: Path) -> None:
    """A process of the caller's own can show any directory under any name."""
    own = str(home / "own" / "d")
    show = ("sh", "-c", 'mount --bind /etc "$0" && echo && exec sleep 600', own)
    async with running("unshare", "--mount", "--propagation=private", *show) as process:
        assert "cannot be mounted" in await refusal(lenient, f"/proc/{process.pid}/root{own}")


async def test_a_name_with_a_line_end_is_mounted_where_a_link_leads_to_it(holding: Holding) -> None:
    (holding.own / "d").rename(holding.own / "a\nb")
    (holding.own / "d").symlink_to(holding.own / "a\nb")
    container = await holding.create(*words(holding, holding.own / "d", "cat", "/x/file"))
    assert await holding.output(container) == b"mine"


async def test_more_mounts_than_anybody_needs_are_refused(lenient: HeldMounts, home: Path) -> None:
    with pytest.raises(PermissionRefused, match="65 mounts are too many"):
        async with lenient.hold(account(), [wish(home / "own")] * 65):
            pass


# --- how long it is held -------------------------------------------------------------------------------


async def test_nothing_is_left_of_a_container_that_was_removed(holding: Holding) -> None:
    container = await holding.create(*words(holding, holding.own / "d", "true"))
    await holding.pins.sweep()
    assert len(await holding.names()) == 1
    await holding.alice("rm", container)
    await holding.pins.sweep()
    assert await holding.names() == []
    assert (holding.own / "d" / "file").read_text() == "mine"


async def test_removals_and_failed_creates_are_noticed_without_anybody_asking(holding: Holding) -> None:
    told: list[str] = []
    keeping = asyncio.create_task(holding.pins.keep(told.append))
    done = await holding.alice.run(*words(holding, holding.own / "d", "cat", "/x/file"))
    assert done.out == b"mine", done.err
    mount = ("-v", f"{holding.own}/d:/x")
    assert (await holding.alice("create", "--pull", "never", *mount, "no-such-image")).code == 1

    async def none_left() -> bool:
        return await holding.names() == []

    await until("no pin is left", none_left)
    keeping.cancel()
    await asyncio.gather(keeping, return_exceptions=True)
    assert (holding.pins.trouble, told) == ("", [""])


async def test_sweeping_goes_on_after_a_disk_that_fails(
    holding: Holding, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Both while the engine is followed and before that."""
    swept = asyncio.Event()
    sweeps, restores = iter([True, False]), iter([True, False])

    async def also_swept() -> None:
        if next(sweeps):
            raise OSError(errno.EIO, "Input/output error")
        swept.set()

    async def restore() -> str:
        if next(restores):
            raise OSError(errno.EIO, "Input/output error")
        return ""

    pins = holding.new_life()
    pins._also_swept = also_swept
    monkeypatch.setattr(pins, "restore", restore)
    keeping = asyncio.create_task(pins.keep(lambda _: None))

    async def warned() -> bool:
        return "pins not swept: [Errno 5] Input/output error" in caplog.text

    try:
        await until("the failure is told", warned)
        pins.unused()
        async with asyncio.timeout(PATIENCE_SECONDS):
            await swept.wait()
    finally:
        keeping.cancel()
        await asyncio.gather(keeping, return_exceptions=True)


async def test_the_daemons_next_life_keeps_what_containers_have(holding: Holding) -> None:
    container = await holding.create(*words(holding, holding.own / "d", "cat", "/x/file"))
    pins = holding.new_life()
    assert await pins.restore() == ""
    await pins.sweep()
    assert len(await holding.names()) == 1
    assert await holding.output(container) == b"mine"


async def test_after_a_reboot_all_is_held_again_before_the_engine_needs_it(holding: Holding) -> None:
    container = await holding.create(*words(holding, holding.own / "d", "cat", "/x/file"))
    await holding.reboot()
    assert (await holding.direct("start", container)).code == 1
    assert await holding.new_life().restore() == ""
    assert await holding.output(container) == b"mine"


async def test_what_leads_elsewhere_after_a_reboot_is_not_held_again(holding: Holding) -> None:
    (holding.home / "secret").chmod(0o755)
    container = await holding.create(*words(holding, holding.own / "d", "cat", "/x/file"))
    await holding.reboot()
    swap_for_a_link(holding.home)
    assert f"{holding.own}/d" in await holding.new_life().restore()
    assert (await holding.direct("start", container)).code == 1


async def test_a_start_through_the_gate_holds_again_what_is_not(holding: Holding) -> None:
    container = await holding.create(*words(holding, holding.own / "d", "cat", "/x/file"))
    await holding.reboot()
    done = await holding.alice("start", "--attach", container)
    assert done.out == b"mine", done.err


async def test_a_note_that_cannot_be_read_hides_no_other(holding: Holding, tmp_path: Path) -> None:
    container = await holding.create(*words(holding, holding.own / "d", "cat", "/x/file"))
    (tmp_path / "ledger" / "broken").write_text("{")
    await holding.reboot()
    assert await holding.new_life().restore() == ""
    assert await holding.output(container) == b"mine"


# --- where it cannot work ------------------------------------------------------------------------------


async def test_a_trial_tells_whether_the_engine_sees_what_is_held(holding: Holding) -> None:
    assert await holding.pins.trial() == ""
    assert await holding.names() == []


async def test_an_engine_that_does_not_see_what_is_held_is_found_out(
    docker_engine: str, cdi_engine: object, tmp_path: Path
) -> None:
    """One whose socket another process passes on, in another mount namespace."""
    del cdi_engine
    target = "/run/gpushared-bed/cdi/docker.sock"

    async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        theirs, ours = await asyncio.open_unix_connection(target)
        # Who listens is also asked without any request.
        with contextlib.suppress(asyncio.IncompleteReadError):
            ours.write(await reader.readuntil(b"\r\n\r\n") + await reader.read(65536))
            writer.write(await theirs.read())
        for each in (ours, writer):
            each.close()
            await each.wait_closed()

    relay = tmp_path / "s"
    async with await asyncio.start_unix_server(pass_on, relay):
        pins = HeldMounts(EngineSocket(str(relay)), SitePolicy)
        assert "does not see them" in await pins.trial()
        await pins.sweep()


async def test_without_an_engine_a_trial_says_so(tmp_path: Path) -> None:
    assert (
        "refused: the Docker engine does not answer"
        in await HeldMounts(EngineSocket(f"{tmp_path}/s"), SitePolicy).trial()
    )


async def test_where_nothing_can_be_noted_nothing_is_mounted(
    docker_engine: str, home: Path, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    policy = SitePolicy(bind_prefixes=(str(home),))
    pins = HeldMounts(EngineSocket(docker_engine), lambda: policy, ledger=tmp_path / "file")
    with pytest.raises(Unavailable, match="cannot be recorded"):
        async with pins.hold(account(), [wish(home / "own" / "d")]):
            pass
    await pins.sweep()
    assert not list(Path(ROOT).glob(f"{pins.beginning}*"))
