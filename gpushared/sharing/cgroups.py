"""Locate cgroups, and keep one for each lease as a parent for its container, in the tree of cgroup v2."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from gpushared.daemon.programs import run_program
from gpushared.domain.model.errors import RequestError, SharingUnavailable
from gpushared.ports import CgroupDriver, EngineFacts

_log = logging.getLogger(__name__)

SYSTEMD_RUNS = Path("/run/systemd/system")
"""The path exists if systemd is the init, see sd_booted(3)."""
SYSTEMCTL = "systemctl"
SYSTEMCTL_SECONDS = 10.0
SLICE = ".slice"
ESCAPED_DASH = r"\x2d"
ROOT = Path("/sys/fs/cgroup")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}")
_CONTAINER = re.compile(r"[0-9a-f]{64}|(docker|libpod)-.*")
"""The engine gives such names to the cgroups of containers."""
_CONTROLLERS = ("dmem", "misc")
"""The driver accounts with these controllers: with the first on kernels that have it, else with its own entry
in the second."""


@dataclass(frozen=True, slots=True)
class CgroupPlace:
    """Name a cgroup by the names on the path to it from the top.

    With ``cgroupfs`` the names are directories. With ``systemd`` they are slices, each named after all before
    it, with systemd's escape for a dash in a name: a plain one leads into a slice (systemd.slice(5)).
    """

    names: tuple[str, ...]

    def within(self, *names: str) -> CgroupPlace:
        """Return a place below this one."""
        return CgroupPlace((*self.names, *names))

    def path(self, driver: CgroupDriver) -> str:
        """Return the path from the top of a tree, with a slash first, as the kernel writes it."""
        if driver is CgroupDriver.CGROUPFS:
            return f"/{'/'.join(self.names)}"
        slices = [slice_of(self.names[: length + 1]) for length in range(len(self.names))]
        return f"/{'/'.join(slices)}"

    def docker_name(self, driver: CgroupDriver) -> str:
        """Return the place's name as Docker's ``CgroupParent``."""
        return self.path(driver) if driver is CgroupDriver.CGROUPFS else slice_of(self.names)


def slice_of(names: tuple[str, ...]) -> str:
    """Return the slice of a place."""
    return f"{'-'.join(name.replace('-', ESCAPED_DASH) for name in names)}{SLICE}"


async def run_systemctl(systemctl: str, verb: str, unit: str, *arguments: str) -> None:
    """Run ``systemctl VERB UNIT ARGUMENTS``. Errors: ``SharingUnavailable``."""
    hint = f"`systemctl status {unit}` may tell why"
    options = ("--runtime",) if verb == "set-property" else ()
    try:
        result = await run_program(
            [systemctl, "--quiet", *options, verb, unit, *arguments], seconds=SYSTEMCTL_SECONDS
        )
    except TimeoutError:
        raise SharingUnavailable(f"systemd did not {verb} {unit} in time", hint=hint) from None
    except OSError as error:
        raise SharingUnavailable(f"{systemctl} cannot be run: {error.strerror}") from error
    if result.status != 0:
        raise SharingUnavailable(f"systemd did not {verb} {unit}: {result.errors.strip()}", hint=hint)


_HOME = CgroupPlace(("gpushare",))
"""The leases' cgroups are here, unless they are in their users' places."""


@dataclass(frozen=True, slots=True)
class LeaseCgroup:
    """Name a lease's cgroup: its full path, and its name as Docker's ``CgroupParent``."""

    path: str
    docker_name: str


class LeaseCgroups:
    """Keep the cgroups of leases, named after their devices.

    Docker's cgroup driver decides their place: the path ``/gpushare/<device>`` with ``cgroupfs``; with
    ``systemd`` the name of a slice, which systemd makes, as no other program may make cgroups there. Errors:
    ``SharingUnavailable``.
    """

    def __init__(
        self,
        root: Path = ROOT,
        *,
        systemctl: str = SYSTEMCTL,
        systemd_runs: Path = SYSTEMD_RUNS,
    ) -> None:
        self.root = root
        self.users: CgroupPlace | None = None
        """The parent of the users' cgroups, which may contain leases."""
        self._systemctl = systemctl
        self._systemd_runs = systemd_runs

    async def make(self, device_name: str, engine: EngineFacts | None, uid: int | None = None) -> LeaseCgroup:
        """Make the lease's cgroup; an existing one stays as it is, and in its place.

        ``uid``: the owner, in whose place the cgroup goes if there are ``users``.
        """
        if _NAME.fullmatch(device_name) is None:
            raise RequestError(f"{device_name!r} is not a device name")
        driver = self._driver(engine)
        existing = [path for path in await self.paths(device_name) if _made_for(path) is driver]
        home = _HOME if self.users is None or uid is None else self.users.within(str(uid))
        path = existing[0] if existing else f"{self.root}{home.within(device_name).path(driver)}"
        name = path.removeprefix(str(self.root))
        if driver is CgroupDriver.SYSTEMD:
            name = Path(path).name
            await run_systemctl(self._systemctl, "start", name)
        await asyncio.to_thread(self._make, Path(path))
        return LeaseCgroup(path, name)

    async def names(self) -> list[str]:
        """Return the devices that have a cgroup."""
        return await asyncio.to_thread(lambda: sorted({name for name, _ in self._device_cgroups()}))

    async def paths(self, device_name: str) -> list[str]:
        """Return the cgroups of this device: two if Docker's cgroup driver was changed in between."""
        return await asyncio.to_thread(
            lambda: [str(path) for name, path in self._device_cgroups() if name == device_name]
        )

    async def below(self, device_name: str) -> list[str]:
        """Return the cgroups of containers in the device's own cgroup."""

        def look() -> list[str]:
            parents = [path for name, path in self._device_cgroups() if name == device_name]
            return [str(path) for parent in parents for path in _directories(parent)]

        return await asyncio.to_thread(look)

    async def is_there(self, cgroup: str) -> bool:
        return await asyncio.to_thread(Path(cgroup).is_dir)

    async def remove(self, device_name: str) -> None:
        """Remove the device's cgroup, unless it has processes or containers."""
        for path in map(Path, await self.paths(device_name)):
            try:
                await asyncio.to_thread(path.rmdir)
            except OSError as error:
                _log.info("cgroup.stays path=%s why=%s", path, error.strerror)
                continue
            if _made_for(str(path)) is CgroupDriver.SYSTEMD:
                # The slice is empty by now: with a process in it, stopping the slice would end the process.
                with contextlib.suppress(SharingUnavailable):
                    await run_systemctl(self._systemctl, "stop", path.name)

    # --- helpers ---

    def _driver(self, engine: EngineFacts | None) -> CgroupDriver:
        """Return the engine's cgroup driver; before the engine answers, its default with cgroup v2."""
        if engine is not None:
            return engine.cgroup_driver
        return CgroupDriver.SYSTEMD if self._systemd_runs.is_dir() else CgroupDriver.CGROUPFS

    def _make(self, path: Path) -> None:
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise SharingUnavailable(f"cgroup {path} cannot be made: {error.strerror}") from error
        parents = [directory for directory in path.parents if directory.is_relative_to(self.root)]
        for directory in (*reversed(parents), path):
            _account_below(directory)

    def _device_cgroups(self) -> Iterator[tuple[str, Path]]:
        homes = [_HOME]
        if self.users is not None:
            # The names are those of the places themselves, because containers are below them too.
            homes += [self.users.within(str(uid)) for uid in self._uids(self.users)]
        for home in homes:
            for driver in CgroupDriver:
                for path in _directories(self.root / home.path(driver).lstrip("/")):
                    name = _device_of(path.name, home, driver)
                    if name is not None:
                        yield name, path

    def _uids(self, users: CgroupPlace) -> set[int]:
        names = {
            _device_of(path.name, users, driver)
            for driver in CgroupDriver
            for path in _directories(self.root / users.path(driver).lstrip("/"))
        }
        return {int(name) for name in names if name is not None and name.isdecimal()}


def _made_for(path: str) -> CgroupDriver:
    return CgroupDriver.SYSTEMD if path.endswith(SLICE) else CgroupDriver.CGROUPFS


def _device_of(name: str, home: CgroupPlace, driver: CgroupDriver) -> str | None:
    """Return the last name of a place in ``home``; None for a container's cgroup, and for foreign names."""
    if driver is CgroupDriver.CGROUPFS:
        return None if _CONTAINER.fullmatch(name) else name
    begin = f"{slice_of(home.names).removesuffix(SLICE)}-"
    if not (name.startswith(begin) and name.endswith(SLICE)):
        return None
    return name.removeprefix(begin).removesuffix(SLICE).replace(ESCAPED_DASH, "-")


def _directories(path: Path) -> list[Path]:
    try:
        return sorted(entry for entry in path.iterdir() if entry.is_dir())
    except OSError:
        return []


def _account_below(directory: Path) -> None:
    """Let the kernel count for the driver in the cgroups below.

    Where the kernel cannot, the driver will refuse.
    """
    with contextlib.suppress(OSError):
        available = (directory / "cgroup.controllers").read_text().split()
        enabled = (directory / "cgroup.subtree_control").read_text().split()
        for controller in _CONTROLLERS:
            if controller in available and controller not in enabled:
                (directory / "cgroup.subtree_control").write_text(f"+{controller}")
