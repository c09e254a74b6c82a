"""Hold the files that callers mount, as pins, for their containers' lives.

A pin is a directory of mounts, one for each bind mount of one container, made of the files that the caller
opened. The engine gets these mounts as sources. Even if the owner puts another directory in the place of one
afterwards, the engine's next start of the container, by its own restart policy too, finds the checked one.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import h11

from gpushared.daemon.files import write_durably
from gpushared.daemon.tasks import within
from gpushared.domain.model.errors import (
    EngineUnavailable,
    GpushareError,
    PermissionRefused,
    TimedOut,
    Unavailable,
)
from gpushared.domain.model.request import Caller
from gpushared.gate.api.body import serialise
from gpushared.gate.api.site import HOME, SitePolicy
from gpushared.gate.mounts.helper_process import HELPER_SECONDS, UserSlots, run_helper
from gpushared.net.http_client import EngineAnswer, EngineSocket
from gpushared.net.identity import Account, NeededPath, account_of

log = logging.getLogger(__name__)

ROOT = "/run/gpushare-pins"
LABEL_PINS = "gpushare.pins"
"""This label has the name of a container's pin."""
SYSTEMS_OWN = ("/proc", "/sys", "/dev", "/run", "/var/lib/docker", "/var/lib/containerd")
MOST_PATHS = 64
AT_ONCE = 4
"""A user may have this many helpers at one time: file systems that hang keep helpers, some for ever, and other
users must not wait for them."""
MACHINE = 1
OK, NOT_FOUND = 200, 404
RETRY_SECONDS = 2.0
GATHER_SECONDS = 1.0
SWEEP_SECONDS = 600.0


@dataclass(frozen=True, slots=True)
class HeldMount:
    """Hold the resolved paths of an owner's wishes; ``source`` is the path at which the engine finds each."""

    name: str
    wishes: tuple[NeededPath, ...]

    def source(self, number: int) -> str:
        return f"{ROOT}/{self.name}/{number}"


class HeldMounts:
    """Make, keep and remove pins.

    ``owner`` distinguishes the pins of several daemons; without one they end with this process. ``policy``
    returns the site's current rules. ``also_swept`` is called after each sweep, to remove other files that
    are kept for containers.
    """

    def __init__(
        self,
        engine: EngineSocket,
        policy: Callable[[], SitePolicy],
        *,
        owner: str = "",
        ledger: Path | None = None,
        barred: Sequence[str] = (),
        patience_seconds: float = HELPER_SECONDS,
        also_swept: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self._engine = engine
        self._policy = policy
        self._ledger = HeldPathsLog(ledger)
        owner = owner or secrets.token_hex(8)
        self.beginning = hashlib.sha256(owner.encode()).hexdigest()[:8] + "-"
        """The names of all pins of this daemon begin with this text."""
        self._barred = [*SYSTEMS_OWN, engine.path, *barred]
        self._patience_seconds = patience_seconds
        self._also_swept = also_swept
        self._making: set[str] = set()
        self._slots = UserSlots(AT_ONCE, patience_seconds)
        self._wake = asyncio.Event()
        self.trouble = ""
        """The newest trial's finding, empty if no trial has failed, and before the first trial."""

    # --- for requests ------------------------------------------------------------------------------

    @asynccontextmanager
    async def hold(self, account: Account, wishes: Sequence[NeededPath]) -> AsyncIterator[HeldMount]:
        """Make a new pin for a container that the block makes; without a container the next sweep removes it.

        Raises ``PermissionRefused`` for a path that the caller may not mount, ``TimedOut``, ``Unavailable``.
        """
        name = self.beginning + secrets.token_hex(6)
        self._making.add(name)
        try:
            pin = HeldMount(name, tuple(await self._hold(name, account, wishes)))
            caller = account.caller
            await self._ledger.write(name, HeldPaths(caller.uid, caller.gid, caller.name, pin.wishes))
            yield pin
        except BaseException:
            self._wake.set()
            raise
        finally:
            self._making.discard(name)

    async def hold_again(self, name: str, account: Account, wishes: Sequence[NeededPath]) -> None:
        """Hold, before a start, the directories at the paths now, if they changed or nothing is held.

        With an empty name only look. Raises as ``hold`` does, and ``PermissionRefused`` if a path leads
        elsewhere by now.
        """
        resolved = await self._hold(name, account, wishes, fixed=True)
        for before, now in zip(wishes, resolved, strict=True):
            if before.path != now.path:
                raise PermissionRefused(
                    f"{before.path} was no link when the container was created, and leads to {now.path} now",
                    hint="create the container anew",
                )

    def unused(self) -> None:
        """Let the next sweep come soon, because a pin may have no container any more."""
        self._wake.set()

    # --- for the daemon ----------------------------------------------------------------------------

    async def restore(self) -> str:
        """Hold recorded pins that are not held, as after a reboot; return the failures in a sentence."""
        missing = await self._missing()
        errors = await asyncio.gather(*(self._restore(name, entry) for name, entry in missing.items()))
        failed = [error for error in errors if error]
        return f"mounts of {len(failed)} containers could not be made again: {failed[0]}" if failed else ""

    async def sweep(self) -> None:
        """Drop the pins without a container. Raises ``EngineUnavailable``, ``Unavailable``, ``TimedOut``."""
        names = {*await self._names(), *await self._ledger.read()}
        # A finished pin has its container, unless the create failed.
        spared = set(self._making)
        if not names - spared:
            return
        used = await self._used()
        await self._drop(sorted(names - spared - used))

    async def keep(self, report: Callable[[str], None]) -> None:
        """Follow the engine for ever. ``report`` gets the sentence of ``restore`` when the engine is back."""
        while True:
            try:
                await self._follow(report)
            except (GpushareError, OSError) as error:
                log.debug("pins: %s", error)
            await asyncio.sleep(RETRY_SECONDS)

    async def trial(self) -> str:
        """Test that the engine sees held files; return the hindrance in a sentence, or an empty text."""
        name = f"{self.beginning}trial"
        order = {"wishes": [_wish("/etc")], "prefixes": ["/etc"], "barred": [], "name": name}
        try:
            looked = await self._help(deed="hold", uid=0, gid=0, groups=[], **order)
            if trouble := looked["found"][0]["trouble"]:
                return f"bind mounts of users who are not trusted are refused: {trouble}"
            answer = await self._engine.call("POST", b"/containers/create", _trial_body(name))
            await self._drop([name])
        except (Unavailable, GpushareError) as error:
            return f"bind mounts of users who are not trusted are refused: {error}"
        # The engine looks for the sources of mounts before it looks for the image, which does not exist.
        if answer.status == NOT_FOUND:
            return ""
        message = answer.json().get("message", "")
        return f"bind mounts of users who are not trusted will fail, the engine does not see them: {message}"

    # --- parts -------------------------------------------------------------------------------------

    async def _hold(
        self, name: str, account: Account, wishes: Sequence[NeededPath], *, fixed: bool = False
    ) -> list[NeededPath]:
        if len(wishes) > MOST_PATHS:
            raise PermissionRefused(f"{len(wishes)} mounts are too many", hint=f"{MOST_PATHS} are the most")
        prefixes = [account.home if each == HOME else each for each in self._policy().bind_prefixes]
        caller, engine = account.caller, await self._engine_pid()
        order = {
            "deed": "hold",
            "name": name,
            "uid": caller.uid,
            "gid": caller.gid,
            "groups": account.groups,
            "prefixes": [each for each in prefixes if each],
            "barred": self._barred,
            "wishes": [{**asdict(wish), "fixed": fixed} for wish in wishes],
        }
        answer = await run_helper(
            {**order, "engine": engine, "root": ROOT},
            gone=await self._take_slot(caller.uid),
            seconds=self._patience_seconds,
        )
        findings = zip(wishes, answer["found"], strict=True)
        return [_usable(wish, finding, prefixes) for wish, finding in findings]

    async def _take_slot(self, uid: int) -> Callable[[], None]:
        """Take a slot, which is given back when no process of the look is left. Raises ``TimedOut``."""
        try:
            return await self._slots.take(uid)
        except TimeoutError:
            raise TimedOut(
                f"{AT_ONCE} looks at paths of yours have not come to an end",
                hint="a file system of yours does not answer; unmount it, or end what serves it",
            ) from None

    async def _help(self, **order: Any) -> dict[str, Any]:
        return await run_helper({**order, "engine": await self._engine_pid(), "root": ROOT})

    async def _engine_pid(self) -> int:
        """Return the engine's process; for an engine that is down, the machine's first process.

        The engine will be in the first process's namespace.
        """
        try:
            return await self._engine.peer_pid()
        except EngineUnavailable:
            return MACHINE

    async def _names(self) -> list[str]:
        answer = await self._help(deed="names", beginning=self.beginning)
        return [str(name) for name in answer["names"]]

    async def _drop(self, names: Sequence[str]) -> None:
        if names:
            await self._help(deed="drop", names=names)
            await self._ledger.forget(names)
            log.info("pins dropped names=%s", ",".join(names))

    async def _missing(self) -> dict[str, HeldPaths]:
        if not (recorded := await self._ledger.read()):
            return {}
        held_names = set(await self._names())
        return {name: entry for name, entry in recorded.items() if name not in held_names | self._making}

    async def _restore(self, name: str, entry: HeldPaths) -> str:
        try:
            await self.hold_again(name, await account_of(entry.caller), entry.wishes)
        except GpushareError as error:
            return str(error)
        return ""

    async def _used(self) -> set[str]:
        answer = await list_labelled(self._engine, LABEL_PINS)
        if answer.status != OK:
            raise EngineUnavailable("the Docker engine does not list its containers")
        return {(container.get("Labels") or {}).get(LABEL_PINS, "") for container in answer.json()}

    async def _follow(self, report: Callable[[str], None]) -> None:
        """Follow the removal of containers with pins until the engine goes away."""
        filters = quote(json.dumps({"type": ["container"], "event": ["destroy"], "label": [LABEL_PINS]}))
        connection = await self._engine.connect()
        watching: asyncio.Task[None] | None = None
        try:
            target = f"/events?filters={filters}".encode()
            await connection.send(
                h11.Request(method="GET", target=target, headers=[(b"Host", b"docker")]), h11.EndOfMessage()
            )
            await connection.response()
            self.trouble = await self.trial()
            report(await self.restore())
            self._wake.set()
            watching = asyncio.create_task(self._sweep_when_woken())
            async for _ in connection.chunks():
                self._wake.set()
        except ConnectionError as error:
            raise EngineUnavailable("the Docker engine hung up") from error
        finally:
            if watching is not None:
                watching.cancel()
                await asyncio.gather(watching, return_exceptions=True)
            connection.close()

    async def _sweep_when_woken(self) -> None:
        while True:
            await within(self._wake, SWEEP_SECONDS)
            await asyncio.sleep(GATHER_SECONDS)  # many containers often go together
            self._wake.clear()
            try:
                await self.sweep()
                if self._also_swept is not None:
                    await self._also_swept()
            except (GpushareError, OSError) as error:
                log.warning("pins not swept: %s", error)


async def list_labelled(engine: EngineSocket, label: str) -> EngineAnswer:
    """Ask for all containers with a label (``NAME`` or ``NAME=VALUE``), running or not."""
    filters = quote(json.dumps({"label": [label]}))
    return await engine.call("GET", f"/containers/json?all=1&filters={filters}".encode())


def _wish(path: str) -> dict[str, object]:
    return {"path": path, "write": False, "fixed": False}


def _trial_body(name: str) -> bytes:
    mount = {"Type": "bind", "Source": f"{ROOT}/{name}/0", "Target": "/x", "ReadOnly": True}
    image = f"gpushared.invalid/none:{secrets.token_hex(8)}"
    return serialise({"Image": image, "HostConfig": {"Mounts": [mount]}})


def _usable(wish: NeededPath, finding: dict[str, str], prefixes: Sequence[str]) -> NeededPath:
    if finding.get("outside"):
        where = ", ".join(filter(None, prefixes)) or "nowhere, for you"
        raise PermissionRefused(f"{wish.path} may not be mounted", hint=f"mounts may come from: {where}")
    if finding["trouble"]:
        raise PermissionRefused(
            f"{wish.path} cannot be mounted: {finding['trouble']}", hint="see `ls -ld` on it"
        )
    return replace(wish, path=finding["path"])


@dataclass(frozen=True, slots=True)
class HeldPaths:
    """List the paths that a pin holds, in the order of their numbers, and the caller who may use them."""

    uid: int
    gid: int
    user: str
    wishes: tuple[NeededPath, ...]

    @property
    def caller(self) -> Caller:
        return Caller(self.uid, self.gid, self.user)


class HeldPathsLog:
    """Keep one file for each pin, in a directory that only root can read.

    Without a directory keep nothing.
    """

    def __init__(self, directory: Path | None) -> None:
        self._directory = directory

    async def write(self, name: str, entry: HeldPaths) -> None:
        """Write an entry; it is on disk when the call returns. Raises ``Unavailable``."""
        try:
            await asyncio.to_thread(self._write, name, entry)
        except OSError as error:
            raise Unavailable(f"the mounted paths cannot be recorded: {error.strerror}") from error

    async def read(self) -> dict[str, HeldPaths]:
        """Return all entries by name; an unreadable file is left out, and its name is logged."""
        return await asyncio.to_thread(self._read)

    async def forget(self, names: Sequence[str]) -> None:
        await asyncio.to_thread(self._forget, names)

    def _write(self, name: str, entry: HeldPaths) -> None:
        if self._directory is None:
            return
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_durably(self._directory / name, json.dumps(asdict(entry)).encode())

    def _read(self) -> dict[str, HeldPaths]:
        entries = {}
        for path in self._directory.glob("[!.]*") if self._directory is not None else ():
            try:
                record = json.loads(path.read_text())
                wishes = tuple(NeededPath(**wish) for wish in record.pop("wishes"))
                entries[path.name] = HeldPaths(**record, wishes=wishes)
            except (OSError, ValueError, KeyError, TypeError) as error:
                log.warning("pin not read name=%s error=%r", path.name, error)
        return entries

    def _forget(self, names: Sequence[str]) -> None:
        if self._directory is None:
            return
        for name in names:
            try:
                (self._directory / name).unlink(missing_ok=True)
            except OSError as error:
                log.warning("pin not forgotten name=%s error=%r", name, error)
