"""Keep one cgroup for each user, with limits for all of the user's containers together.

The engine puts the user's containers into it.
"""

from __future__ import annotations

import asyncio
import errno
import json
import logging
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from gpushared.daemon.files import write_durably
from gpushared.domain.model.errors import GpushareError, LimitReached, SharingUnavailable
from gpushared.ports import CgroupDriver, EngineFacts, UserBounds, UserUse
from gpushared.sharing.cgroups import SYSTEMCTL, CgroupPlace, run_systemctl
from gpushared.sharing.limit_files import ROOT, Limit, Trees

_log = logging.getLogger(__name__)

HOME = "gpushare_users"
TRIAL = "trial"
TRIAL_LIMITS = UserBounds(memory_bytes=1 << 30, cpus=1.0, pids=1024)
NONE_HINT = "`gpushare doctor` names what is missing"
VERIFIED_SECONDS = 10.0
"""For this long after the limits were verified it is enough that the cgroup exists. Each read in a thread waits
for the event loop, which a flood of another user keeps busy, and a start would wait for dozens of reads."""
_HAS_MORE = {errno.EBUSY, errno.EINVAL}
"""cgroup v1 answers with these errors to a limit below the present use, or below the CPUs that a container
has."""


@dataclass(frozen=True, slots=True)
class _CgroupKind:
    """Hold the facts of an engine that decide where cgroups are."""

    driver: CgroupDriver
    version: int

    @classmethod
    def of(cls, engine: EngineFacts) -> _CgroupKind:
        return cls(engine.cgroup_driver, engine.cgroup_version)


@dataclass(frozen=True, slots=True)
class _Verified:
    """Record the limits that were found or set in a cgroup; ``until`` is a time of ``time.monotonic``."""

    limits: UserBounds
    kind: _CgroupKind
    until: float

    def covers(self, limits: UserBounds, kind: _CgroupKind) -> bool:
        return (self.limits, self.kind) == (limits, kind) and time.monotonic() < self.until


class UserCgroups:
    """Keep the cgroups of users, ``/gpushare_users/NAME/UID``; with the cgroup driver ``systemd`` slices.

    The kernel keeps the limits, with or without this daemon. Cgroups vanish with a reboot: ``ledger`` is the
    file that names the earlier ones, so that they exist again before the engine starts containers. ``name``
    distinguishes them from those of other daemons on the machine.
    """

    def __init__(
        self, name: str, ledger: Path | None = None, *, root: Path = ROOT, systemctl: str = SYSTEMCTL
    ) -> None:
        self.home = CgroupPlace((HOME, name))
        self._ledger = ledger
        self._root = root
        self._systemctl = systemctl
        self._limits_by_uid: dict[int, UserBounds | None] = {}
        self._kind: _CgroupKind | None = None
        self._verified: dict[str, _Verified] = {}
        """The last verified limits by user."""
        self._trees: dict[int, Trees] = {}
        self._troubles: dict[str, str] = {}
        self._lock = asyncio.Lock()

    @property
    def trouble(self) -> str:
        """Return why there are no such cgroups, or which user's limits fail; empty if there is no trouble."""
        return self._troubles.get(TRIAL) or "; ".join(self._troubles[uid] for uid in sorted(self._troubles))

    def place_of(self, uid: int) -> CgroupPlace:
        return self.home.within(str(uid))

    def parent_of(self, uid: int, engine: EngineFacts) -> str:
        return self.place_of(uid).docker_name(engine.cgroup_driver)

    async def hold(self, uid: int, limits: UserBounds, engine: EngineFacts) -> None:
        async with self._lock:
            kind = _CgroupKind.of(engine)
            await self._record(uid, limits, kind)
            await self._hold(str(uid), limits, kind)

    async def join_files(self, uid: int, engine: EngineFacts) -> list[Path]:
        try:
            return await asyncio.to_thread(self._join_files, uid, _CgroupKind.of(engine))
        except (OSError, KeyError):
            return []

    async def use(self, uid: int, engine: EngineFacts) -> UserUse:
        try:
            return await asyncio.to_thread(self._use, uid, _CgroupKind.of(engine))
        except (OSError, KeyError, ValueError):
            return UserUse()

    async def restore(self, limits: UserBounds) -> None:
        """Restore the cgroups after a reboot, maybe before the engine has answered. Never raises."""
        async with self._lock:
            try:
                self._kind, uids = await asyncio.to_thread(self._read)
            except (OSError, ValueError, KeyError, TypeError) as error:
                _log.warning("users_limits.not_read error=%r", error)
                return
            self._limits_by_uid = {**dict.fromkeys(uids), **self._limits_by_uid}
            await self._hold_all(limits)

    async def on_engine_answer(self, limits: UserBounds, engine: EngineFacts) -> None:
        """Try if the cgroups work for this engine, and make those of all known users. Never raises."""
        async with self._lock:
            kind = self._kind = _CgroupKind.of(engine)
            self._trees.clear()
            self._verified.clear()
            try:
                await self._hold(TRIAL, TRIAL_LIMITS, kind)
                await self._remove(TRIAL, kind)
            except GpushareError:
                return
            await self._hold_all(limits)

    async def apply(self, limits: UserBounds) -> None:
        """Set other limits for all users from now on. Never raises: ``trouble`` has the error."""
        async with self._lock:
            await self._hold_all(limits)

    # --- helpers ---

    async def _hold_all(self, limits: UserBounds) -> None:
        if (kind := self._kind) is None:
            return
        for uid in list(self._limits_by_uid):
            try:
                await self._hold(str(uid), limits, kind)
                self._limits_by_uid[uid] = limits
            except GpushareError as error:
                _log.warning("users_limits.not_set uid=%d why=%s", uid, error)

    async def _hold(self, user: str, limits: UserBounds, kind: _CgroupKind) -> None:
        place = self.home.within(user)
        path, by_systemd = place.path(kind.driver), kind.driver is CgroupDriver.SYSTEMD
        verified = self._verified.get(user)
        is_verified = verified is not None and verified.covers(limits, kind)
        try:
            if is_verified and await asyncio.to_thread(self._is_there, path, kind):
                return
            if not await asyncio.to_thread(self._is_held, path, limits, kind):
                if by_systemd:
                    await self._ensure_slice(place.docker_name(kind.driver), limits)
                await asyncio.to_thread(self._set, path, limits, kind, by_systemd=by_systemd)
        except KeyError as error:
            trouble = f"this machine has no cgroups for {error.args[0]}"
            self._fail(user, SharingUnavailable(trouble, hint=NONE_HINT))
        except OSError as error:
            self._fail(user, _error_of(user, error))
        except SharingUnavailable as error:
            self._fail(user, error)
        self._troubles.pop(user, None)
        self._verified[user] = _Verified(limits, kind, time.monotonic() + VERIFIED_SECONDS)

    def _find(self, kind: _CgroupKind) -> Trees:
        """Return the trees; raises OSError."""
        trees = self._trees.get(kind.version)
        if trees is None:
            trees = self._trees[kind.version] = Trees.find(kind.version, self._root)
        return trees

    def _is_there(self, path: str, kind: _CgroupKind) -> bool:
        return all(directory.is_dir() for directory in self._find(kind).directories(path))

    def _fail(self, user: str, error: GpushareError) -> None:
        self._verified.pop(user, None)
        self._troubles[user] = error.message
        raise error

    def _is_held(self, path: str, limits: UserBounds, kind: _CgroupKind) -> bool:
        try:
            return all(limit.is_set() for limit in self._find(kind).limits(path, limits))
        except FileNotFoundError:
            return False

    def _set(self, path: str, limits: UserBounds, kind: _CgroupKind, *, by_systemd: bool) -> None:
        trees = self._find(kind)
        if not by_systemd:
            trees.make(path)
        missing = [limit for limit in trees.limits(path, limits) if not limit.is_set()]
        if by_systemd and missing:
            raise SharingUnavailable(
                f"systemd did not set {missing[0].path} to {missing[0].value}", hint=NONE_HINT
            )
        # A limit that a user exceeds already must not keep the other limits from holding.
        if refused := [error for limit in missing if (error := _refusal(limit)) is not None]:
            raise refused[0]

    async def _ensure_slice(self, unit: str, limits: UserBounds) -> None:
        """Let systemd make the slice: on any reload systemd undoes other programs' writes in its tree."""
        properties = [
            *(f"{kind}Accounting=yes" for kind in ("CPU", "Memory", "Tasks")),
            f"MemoryMax={limits.memory_bytes or 'infinity'}",
            f"MemorySwapMax={0 if limits.memory_bytes else 'infinity'}",
            f"CPUQuota={f'{round(limits.cpus * 100)}%' if limits.cpus else ''}",
            "CPUQuotaPeriodSec=100ms",
            f"TasksMax={limits.pids or 'infinity'}",
        ]
        await run_systemctl(self._systemctl, "set-property", unit, *properties)
        await run_systemctl(self._systemctl, "start", unit)

    async def _remove(self, user: str, kind: _CgroupKind) -> None:
        place, driver = self.home.within(user), kind.driver
        if driver is CgroupDriver.SYSTEMD:
            await run_systemctl(self._systemctl, "stop", place.docker_name(driver))
            return
        try:
            trees = await asyncio.to_thread(self._find, kind)
            await asyncio.to_thread(trees.remove, place.path(driver))
            if not self._limits_by_uid:
                await asyncio.to_thread(trees.remove, self.home.path(driver))
        except OSError as error:
            _log.info("users_limits.stays user=%s why=%s", user, error.strerror)

    def _join_files(self, uid: int, kind: _CgroupKind) -> list[Path]:
        return self._find(kind).join_files(self.place_of(uid).path(kind.driver))

    def _use(self, uid: int, kind: _CgroupKind) -> UserUse:
        return self._find(kind).use(self.place_of(uid).path(kind.driver))

    # --- the ledger ---

    async def _record(self, uid: int, limits: UserBounds, kind: _CgroupKind) -> None:
        is_new = uid not in self._limits_by_uid or self._kind != kind
        self._kind, self._limits_by_uid[uid] = kind, limits
        if not is_new or self._ledger is None:
            return
        try:
            await asyncio.to_thread(self._write, self._ledger, sorted(self._limits_by_uid), kind)
        except OSError as error:
            # The limits hold all the same; only a reboot would remove them until the user's next container.
            _log.warning("users_limits.not_noted error=%r", error)

    def _write(self, ledger: Path, uids: Iterable[int], kind: _CgroupKind) -> None:
        text = json.dumps({"cgroup_driver": kind.driver, "cgroup_version": kind.version, "uids": list(uids)})
        write_durably(ledger, text.encode())

    def _read(self) -> tuple[_CgroupKind | None, list[int]]:
        if self._ledger is None or not self._ledger.exists():
            return None, []
        record = json.loads(self._ledger.read_text())
        kind = _CgroupKind(CgroupDriver(record["cgroup_driver"]), int(record["cgroup_version"]))
        return kind, [int(uid) for uid in record["uids"]]


def _refusal(limit: Limit) -> OSError | None:
    """Write a limit; return the kernel's error, or None if it has taken the limit."""
    try:
        limit.write()
    except OSError as error:
        return OSError(error.errno, error.strerror, str(limit.path))
    return None


def _error_of(user: str, error: OSError) -> GpushareError:
    if error.errno in _HAS_MORE and user != TRIAL:
        return LimitReached(
            f"the containers of user {user} have more than a user may have here by now",
            hint="end some of them",
        )
    return SharingUnavailable(
        f"the limits of users cannot be kept: {error.filename}: {error.strerror}", hint=NONE_HINT
    )
