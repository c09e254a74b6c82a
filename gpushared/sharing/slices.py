"""Locate cgroups and name them for Docker, by the engine's cgroup driver; tell systemd of slices."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path

from gpushared.domain.model.errors import SharingUnavailable
from gpushared.ports import CgroupDriver

SYSTEMD_RUNS = Path("/run/systemd/system")
"""The path exists if systemd is the init, see sd_booted(3)."""
SYSTEMCTL = "systemctl"
SYSTEMCTL_SECONDS = 10.0
SLICE = ".slice"
ESCAPED_DASH = r"\x2d"


@dataclass(frozen=True, slots=True)
class CgroupPlace:
    """Name a cgroup by the names on the way to it from the top.

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


async def tell_systemd(systemctl: str, verb: str, unit: str, *words: str) -> None:
    """Run ``systemctl VERB UNIT WORDS``. Errors: ``SharingUnavailable``."""
    options = ("--runtime",) if verb == "set-property" else ()
    try:
        process = await asyncio.create_subprocess_exec(
            *(systemctl, "--quiet", *options, verb, unit, *words),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
        )
    except OSError as error:
        raise SharingUnavailable(f"{systemctl} cannot be run: {error.strerror}") from error
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
        raise SharingUnavailable(f"systemd did not {verb} {unit}: {said.decode(errors='replace').strip()}")
