"""One cgroup a lease, as a place to put its container in, in the tree of cgroup v2."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from gpushared.domain.errors import RequestError, SharingUnavailable
from gpushared.ports import CgroupDriver, EngineFacts

_log = logging.getLogger(__name__)

ROOT = Path("/sys/fs/cgroup")
SYSTEMD_RUNS = Path("/run/systemd/system")
"""There where systemd is the init, see sd_booted(3)."""
SYSTEMCTL = "systemctl"
SYSTEMCTL_SECONDS = 10.0

_HOME = "gpushare"
_SLICE = ".slice"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}")
_CONTROLLERS = ("dmem", "misc")
"""Those that the driver accounts with: the first on kernels that have it, its own in the second elsewhere."""


@dataclass(frozen=True, slots=True)
class Parent:
    """A lease's cgroup: its full path, and its name as Docker's ``CgroupParent``."""

    path: str
    docker_name: str


class LeaseCgroups:
    """The cgroups of leases, named after their devices.

    Docker's cgroup driver decides where they are: by a path, ``/gpushare/<device>``, with ``cgroupfs``; with
    ``systemd`` by the name of a slice, which is made through systemd, as nobody else may make cgroups there.
    Errors: ``SharingUnavailable``.
    """

    def __init__(
        self,
        root: Path = ROOT,
        *,
        systemctl: str = SYSTEMCTL,
        systemd_runs: Path = SYSTEMD_RUNS,
    ) -> None:
        self.root = root
        self._systemctl = systemctl
        self._systemd_runs = systemd_runs

    async def make(self, device_name: str, engine: EngineFacts | None) -> Parent:
        """Have the lease's cgroup; one that is there stays as it is."""
        if _NAME.fullmatch(device_name) is None:
            raise RequestError(f"{device_name!r} is not a device name")
        if self._driver(engine) is CgroupDriver.SYSTEMD:
            name = _slice_of(device_name)
            await self._tell_systemd("start", name)
            parent = Parent(str(self.root / (_HOME + _SLICE) / name), name)
        else:
            parent = Parent(str(self.root / _HOME / device_name), f"/{_HOME}/{device_name}")
        await asyncio.to_thread(self._make, Path(parent.path))
        return parent

    async def names(self) -> list[str]:
        """The devices that have a cgroup."""
        return await asyncio.to_thread(lambda: sorted({name for name, _ in self._found()}))

    async def paths(self, device_name: str) -> list[str]:
        """The cgroups of this device: two where Docker's cgroup driver was changed meanwhile."""
        return await asyncio.to_thread(
            lambda: [str(path) for name, path in self._found() if name == device_name]
        )

    async def below(self, device_name: str) -> list[str]:
        """The cgroups of containers in the device's own."""

        def look() -> list[str]:
            parents = [path for name, path in self._found() if name == device_name]
            return [str(path) for parent in parents for path in _directories(parent)]

        return await asyncio.to_thread(look)

    async def is_there(self, cgroup: str) -> bool:
        return await asyncio.to_thread(Path(cgroup).is_dir)

    async def remove(self, device_name: str) -> None:
        """Remove the device's cgroup; one with processes or containers in it stays."""
        for path in map(Path, await self.paths(device_name)):
            try:
                await asyncio.to_thread(path.rmdir)
            except OSError as error:
                _log.info("cgroup.stays path=%s why=%s", path, error.strerror)
                continue
            if path.name.endswith(_SLICE):
                # It is empty by now: to stop a slice ends whatever is in it.
                with contextlib.suppress(SharingUnavailable):
                    await self._tell_systemd("stop", path.name)

    # --- helpers ---

    def _driver(self, engine: EngineFacts | None) -> CgroupDriver:
        """As the engine says; before it has answered, what it chooses with cgroup v2 if nobody tells it."""
        if engine is not None:
            return engine.cgroup_driver
        return CgroupDriver.SYSTEMD if self._systemd_runs.is_dir() else CgroupDriver.CGROUPFS

    def _make(self, path: Path) -> None:
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise SharingUnavailable(f"cgroup {path} cannot be made: {error.strerror}") from error
        for place in (self.root, path.parent, path):
            _account_below(place)

    def _found(self) -> Iterator[tuple[str, Path]]:
        for path in _directories(self.root / _HOME):
            yield path.name, path
        for path in _directories(self.root / (_HOME + _SLICE)):
            name = _device_of(path.name)
            if name is not None:
                yield name, path

    async def _tell_systemd(self, verb: str, unit: str) -> None:
        try:
            process = await asyncio.create_subprocess_exec(
                *(self._systemctl, "--quiet", verb, unit),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.PIPE,
            )
        except OSError as error:
            raise SharingUnavailable(f"{self._systemctl} cannot be run: {error.strerror}") from error
        try:
            async with asyncio.timeout(SYSTEMCTL_SECONDS):
                _, said = await process.communicate()
        except TimeoutError:
            raise SharingUnavailable(f"systemd did not {verb} {unit} in time") from None
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        if process.returncode != 0:
            raise SharingUnavailable(
                f"systemd did not {verb} {unit}: {said.decode(errors='replace').strip()}"
            )


def _slice_of(device_name: str) -> str:
    """The slice of a lease, with systemd's escape for the dash, which otherwise means a slice within one."""
    escaped = device_name.replace("-", r"\x2d")
    return f"{_HOME}-{escaped}{_SLICE}"


def _device_of(slice_name: str) -> str | None:
    begin = f"{_HOME}-"
    if not (slice_name.startswith(begin) and slice_name.endswith(_SLICE)):
        return None
    return slice_name.removeprefix(begin).removesuffix(_SLICE).replace(r"\x2d", "-")


def _directories(path: Path) -> list[Path]:
    try:
        return sorted(entry for entry in path.iterdir() if entry.is_dir())
    except OSError:
        return []


def _account_below(place: Path) -> None:
    """Let the kernel count for the driver in the cgroups below; where it cannot, the driver will refuse."""
    with contextlib.suppress(OSError):
        there = (place / "cgroup.controllers").read_text().split()
        on = (place / "cgroup.subtree_control").read_text().split()
        for controller in _CONTROLLERS:
            if controller in there and controller not in on:
                (place / "cgroup.subtree_control").write_text(f"+{controller}")
