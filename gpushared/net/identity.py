"""Turn a socket's credentials into a ``Caller``, refuse subordinate ids, and look up a caller's account.

``adduser`` gives each user tens of thousands of ids (subuid(5)). A process in a user namespace can have any
of them in the kernel's view, and so in the credentials of a connection. Without this check their owner would
have every limit and quota that many times.
"""

from __future__ import annotations

import asyncio
import errno
import grp
import logging
import os
import pwd
import select
import socket
import struct
import time
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, TypeVar

from gpushared.daemon.clocks import boot_id
from gpushared.domain.model.errors import PermissionRefused, TimedOut
from gpushared.domain.model.request import Caller, Process
from gpushared.domain.model.units import shown
from gpushared.storage.audit.line import Origin, bounded

_UCRED = struct.Struct("i2I")
"""Read ``struct ucred`` of unix(7): pid, uid, gid; half of all ids would be negative as signed numbers."""

TICKS = os.sysconf("SC_CLK_TCK")
SO_PEERPIDFD = 77
"""The number is from asm-generic/socket.h; Python has no name for it."""
MAX_EXECUTABLE = 256
NAME_SERVICE_SECONDS = 3.0
REMEMBER_SECONDS = 60.0
MAX_REMEMBERED = 4096
"""A process may have any of thousands of groups (subgid(5)); beyond this the cache is emptied."""
log = logging.getLogger(__name__)

SUBUID: Final = Path("/etc/subuid")
MAX_FILE_BYTES: Final = 4 << 20
"""Read at most this much, a hundred thousand users' ranges; ignore later lines."""
LOOK_SECONDS: Final = 5.0
IDS_END: Final = 1 << 32
LOOKUP_SECONDS = 5.0
_NAME_THREADS = ThreadPoolExecutor(max_workers=16, thread_name_prefix="names")
_lookups: dict[tuple[object, ...], Future[Any]] = {}
"""These look-ups are under way."""
_Answer = TypeVar("_Answer")
_CallerCache = dict[tuple[int | str, ...], tuple[float, Caller]]
"""Callers by the arguments of their look-ups, with the time of the look-up."""


@dataclass(frozen=True, slots=True)
class Peer:
    """Identify the process that connected, as of the connect (SO_PEERCRED)."""

    pid: int
    uid: int
    gid: int


def peer_of(sock: socket.socket) -> Peer:
    """Return the credentials that the kernel noted when the peer connected (unix(7), SO_PEERCRED)."""
    return Peer(*_UCRED.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)))


def origin_of(sock: socket.socket, peer: Peer) -> Origin:
    """Return the process that connected, and the program that it runs now; no program if it is gone.

    The number may be another process's by now. Data below /proc counts only while a handle on the very
    process that connected proves that it still lives (SO_PEERPIDFD, Linux 6.5). Older kernels have no such
    handle: there the process with the number must have started before the connection and belong to the same
    user.
    """
    accepted_at = time.clock_gettime(time.CLOCK_BOOTTIME)
    try:
        handle = _handle_of(sock, peer)
    except OSError:
        return Origin(peer.pid)
    try:
        began = _began(peer.pid)
        executable = _executable(peer.pid)
        is_peer = handle.certain or (began / TICKS <= accepted_at and _is_of(peer))
        if is_peer and not has_ended(handle.fd):
            return Origin(peer.pid, bounded(executable, MAX_EXECUTABLE), began)
    except OSError:
        pass
    finally:
        os.close(handle.fd)
    return Origin(peer.pid)


def handle_on(process: Process) -> int | None:
    """Return a handle (pidfd_open(2)) that becomes readable at the process's end; None if it has ended.

    Raises OSError if there can be no handle now.
    """
    if process.boot_id != boot_id():
        return None
    try:
        handle = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return None
    try:
        if _began(process.pid) == process.started_ticks:
            return handle
    except (FileNotFoundError, ProcessLookupError):
        pass
    os.close(handle)
    return None


@dataclass(frozen=True, slots=True)
class _Handle:
    """Hold a handle.

    ``certain`` means that it is of the connected process, not only of one with its number.
    """

    fd: int
    certain: bool


def _handle_of(sock: socket.socket, peer: Peer) -> _Handle:
    try:
        return _Handle(sock.getsockopt(socket.SOL_SOCKET, SO_PEERPIDFD), certain=True)
    except OSError as error:
        if error.errno != errno.ENOPROTOOPT:
            raise
    return _Handle(os.pidfd_open(peer.pid), certain=False)


def has_ended(pidfd: int) -> bool:
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(0))


def _began(pid: int) -> int:
    """Return the start of the process with this number, in clock ticks since the boot. Raises OSError."""
    # proc(5): after the name in brackets come fields 3 and on; 22 is the start in ticks since the boot.
    text = Path(f"/proc/{pid}/stat").read_bytes()
    return int(text.rpartition(b")")[2].split()[19])


def _is_of(peer: Peer) -> bool:
    """Return True if the process with the peer's number now belongs to the peer's user."""
    return Path(f"/proc/{peer.pid}").stat().st_uid == peer.uid


def _executable(pid: int) -> str:
    """Return the process's program; empty if it is not visible."""
    try:
        return str(Path(f"/proc/{pid}/exe").readlink())
    except OSError:
        return ""


class Identities:
    """Remember users' names and groups for a minute, because name services may be slow or away."""

    def __init__(self, trusted_groups: Collection[str], subordinates: SubordinateIds | None = None) -> None:
        self.trusted_groups = frozenset(trusted_groups)
        self.subordinates = subordinates or SubordinateIds()
        self._callers: _CallerCache = {}
        self._account_callers: _CallerCache = {}
        self._boot_id = boot_id()
        self._accounts_in_ranges: set[int] = set()
        """These ids are in a user's range but are accounts themselves."""

    async def caller(self, peer: Peer) -> Caller:
        """Return the caller behind a peer; a user without a name goes by the number and is not trusted.

        Raises ``PermissionRefused`` if the id is another user's in a user namespace, and no account's.
        """
        if peer.uid == 0:
            # No range can give root to another user, and root must get in while the name services hang.
            return Caller(0, peer.gid, "root", trusted=True)
        caller = await self._remembered_caller(peer)
        if id_range := self.subordinates.range_of(peer.uid):
            if caller.name == str(peer.uid):
                raise _subordinate(peer.uid, id_range.owner_text)
            self._accounts_in_ranges.add(peer.uid)
        return caller

    async def caller_behind(self, peer: Peer, origin: Origin) -> Caller:
        """Return the caller, with the process behind the connection if that process is certain."""
        caller = await self.caller(peer)
        if not origin.started_ticks:
            return caller
        return replace(caller, process=Process(origin.pid, origin.started_ticks, self._boot_id))

    def counted_as(self, uid: int) -> int:
        """Return the uid that limits count: the first one of a range for its ids that are no accounts."""
        id_range = self.subordinates.range_of(uid)
        return uid if id_range is None or uid in self._accounts_in_ranges else id_range.first

    async def _remembered_caller(self, peer: Peer) -> Caller:
        try:
            caller = await self._recall(self._callers, look_up, peer.uid, peer.gid)
        except TimeoutError:
            caller = None
        return caller or Caller(peer.uid, peer.gid, str(peer.uid))

    async def account(self, key: int | str) -> Caller:
        """Return the account with this uid or name as a caller, with the rights that it has now.

        Raises PermissionRefused if there is no such account (any more), TimedOut if the name services hang.
        """
        try:
            caller = await self._recall(self._account_callers, look_up_account, key)
        except TimeoutError:
            raise TimedOut(f"the user database does not answer for {key}", hint="try again later") from None
        if caller is None:
            description = f"the name {shown(key)}" if isinstance(key, str) else f"uid {key}"
            raise PermissionRefused(
                f"no account of this machine has {description}",
                hint="was it removed? `getent passwd` shows accounts",
            )
        return caller

    async def _recall(
        self, cache: _CallerCache, look_up_names: Callable[..., Caller | None], *key: int | str
    ) -> Caller | None:
        """Return the caller from the cache, or look it up and remember it. Raises TimeoutError."""
        entry = cache.get(key)
        if entry is not None and time.monotonic() - entry[0] < REMEMBER_SECONDS:
            return entry[1]
        async with asyncio.timeout(NAME_SERVICE_SECONDS):
            caller = await ask_names(look_up_names, *key, self.trusted_groups)
        if caller is not None:
            if len(cache) >= MAX_REMEMBERED:
                cache.clear()
            cache[key] = (time.monotonic(), caller)
        return caller

    def forget(self) -> None:
        """Clear the cache, because groups may have changed."""
        self._callers.clear()
        self._account_callers.clear()
        self._accounts_in_ranges.clear()


def _subordinate(uid: int, owner: str) -> PermissionRefused:
    return PermissionRefused(
        f"uid {uid} is a subordinate id of {owner}", hint=f"connect as {owner}, outside of user namespaces"
    )


def look_up(uid: int, gid: int, trusted_groups: Collection[str]) -> Caller:
    """Look the caller up in the name services (getpwuid, getgrouplist)."""
    try:
        name = pwd.getpwuid(uid).pw_name
        groups = {_group_name(group_id) for group_id in os.getgrouplist(name, gid)}
    except KeyError:
        return Caller(uid, gid, str(uid))
    return Caller(uid, gid, name, trusted=not groups.isdisjoint(trusted_groups))


def look_up_account(key: int | str, trusted_groups: Collection[str]) -> Caller | None:
    """Look an account up in the name services, by its uid or its name; None if there is none.

    Two names of one uid are one account.
    """
    try:
        entry = pwd.getpwnam(key) if isinstance(key, str) else pwd.getpwuid(key)
    except (KeyError, ValueError):  # ValueError: a zero byte in the name
        return None
    if entry.pw_uid == 0:
        return Caller(0, entry.pw_gid, "root", trusted=True)
    return look_up(entry.pw_uid, entry.pw_gid, trusted_groups)


def _group_name(gid: int) -> str:
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)


@dataclass(frozen=True, slots=True)
class IdRange:
    """Give the ids from ``first`` to before ``end`` to ``owner``, a name or a uid as the file has it."""

    first: int
    end: int
    owner: str

    @property
    def owner_text(self) -> str:
        return f"uid {self.owner}" if self.owner.isdecimal() else self.owner


class SubordinateIds:
    """Keep the file's ranges in memory, so that a look-up of an id never waits for a disk."""

    def __init__(self, path: Path | None = SUBUID) -> None:
        """Read the file, if there is one. Another ``path``, or none, holds from the next look on."""
        self.path = path
        self._read_marks: tuple[object, ...] = ()
        self._firsts: list[int] = []
        self._ranges: list[IdRange] = []
        self.read_if_changed()

    def range_of(self, uid: int) -> IdRange | None:
        """Return the range in which an id lies, None if the id is nobody's subordinate."""
        index = bisect_right(self._firsts, uid) - 1
        if index < 0 or uid >= self._ranges[index].end:
            return None
        id_range = self._ranges[index]
        return None if id_range.owner == str(uid) else id_range

    def read_if_changed(self) -> None:
        """Read the file if it changed since the last look. A file that cannot be read changes nothing."""
        path = self.path
        try:
            marks = () if path is None else _marks(path)
            if marks == self._read_marks:
                return
            ranges = [] if path is None or not marks else list(_without_overlaps(_parsed(_read(path))))
        except OSError as error:
            log.warning("%s cannot be read: %s", path, error)
            return
        self._read_marks = marks
        self._firsts, self._ranges = [id_range.first for id_range in ranges], ranges

    async def keep(self) -> None:
        """Check the file repeatedly, off the event loop."""
        while True:
            await asyncio.to_thread(self.read_if_changed)
            await asyncio.sleep(LOOK_SECONDS)


def _marks(path: Path) -> tuple[object, ...]:
    """Return marks that tell one state of the file from another; nothing if there is no file."""
    try:
        status = path.stat()
    except FileNotFoundError:
        return ()
    return (path, status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)


def _read(path: Path) -> list[str]:
    with path.open("rb") as file:
        data = file.read(MAX_FILE_BYTES + 1)
    if len(data) > MAX_FILE_BYTES:
        log.warning("%s is longer than %d bytes: the rest is not read", path, MAX_FILE_BYTES)
        data = data[: data.rfind(b"\n", 0, MAX_FILE_BYTES) + 1]
    return data.decode(errors="replace").splitlines()


def _parsed(lines: Iterable[str]) -> Iterator[IdRange]:
    """Parse the file; lines that do not fit subuid(5) are skipped, as the system's own tools do."""
    for line in lines:
        owner, *numbers = line.strip().split(":")
        if not owner or owner.startswith("#") or len(numbers) != 2:  # noqa: PLR2004 - first, count
            continue
        if all(text.isascii() and text.isdecimal() and len(text) <= 10 for text in numbers):  # noqa: PLR2004 - 2^32
            first, count = map(int, numbers)
            yield IdRange(first, min(first + count, IDS_END), owner)


def _without_overlaps(ranges: Iterable[IdRange]) -> Iterator[IdRange]:
    """Yield the ranges in order and without overlaps, so that one search finds the range of an id."""
    end = 0
    for id_range in sorted(ranges, key=lambda id_range: (id_range.first, id_range.end)):
        if id_range.end > (first := max(id_range.first, end)):
            yield IdRange(first, id_range.end, id_range.owner)
            end = id_range.end


@dataclass(frozen=True, slots=True)
class Account:
    """Hold a caller with its supplementary groups and its home, which is empty if it has none."""

    caller: Caller
    groups: tuple[int, ...]
    home: str = ""


@dataclass(frozen=True, slots=True)
class NeededPath:
    """Name a path that a container must see."""

    path: str
    write: bool


async def ask_names(question: Callable[..., _Answer], *args: object) -> _Answer:
    """Run a look-up of the name services off the event loop.

    The name services can hang for minutes, so the look-up runs in threads for which nothing else waits.
    Callers of a look-up that is under way share its answer, so that one user's connections do not use all
    threads.
    """
    key = (question, *args)
    lookup = _lookups.get(key)
    if lookup is None:
        lookup = _lookups[key] = _NAME_THREADS.submit(question, *args)
        lookup.add_done_callback(lambda _: _lookups.pop(key, None))
    answer: _Answer = await asyncio.shield(asyncio.wrap_future(lookup))
    return answer


async def account_of(caller: Caller) -> Account:
    """Return the caller's account from the system's user database; without an entry it has only its ids.

    Raises ``TimedOut`` when the database (LDAP, for example) does not answer.
    """
    try:
        async with asyncio.timeout(LOOKUP_SECONDS):
            return await ask_names(_account_of, caller)
    except TimeoutError:
        raise TimedOut(
            f"the user database does not answer for uid {caller.uid}", hint="try again later"
        ) from None


def _account_of(caller: Caller) -> Account:
    try:
        entry = pwd.getpwuid(caller.uid)
    except KeyError:
        return Account(caller, ())
    groups = os.getgrouplist(entry.pw_name, caller.gid)
    return Account(caller, tuple(sorted(set(groups) - {caller.gid})), entry.pw_dir)
