"""Read the clocks of this machine: one that counts time, and the distance of the time of day from it.

Deadlines are counted by ``CLOCK_BOOTTIME``, which goes on in sleep and which nobody can set
(clock_gettime(2)). It begins anew with each boot, so it gets a place among the seconds since the epoch: once
a boot, by the time of day, kept in a file, so that a daemon that starts again goes on with the same place.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from gpushared.daemon.files import write_private
from gpushared.daemon.troubles import Troubles
from gpushared.domain.model.errors import Unavailable
from gpushared.ports import Clock

log = logging.getLogger(__name__)

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
CLOCK_NAME = "clock.json"
STEP_SECONDS = 0.1
"""No step of a clock is smaller. Two readings of two clocks are some microseconds apart, which must not
change the figures that people see."""
KEEP_SECONDS = 600.0
RETRY_SECONDS = 5.0
PART = "clock"


def boottime() -> float:
    """Return CLOCK_BOOTTIME in seconds: since the boot, with the time that the machine slept."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def day_at(up: float) -> float:
    """Return the time of day at a moment of ``boottime``, by the clock as it is set now."""
    return time.time() - (boottime() - up)


def boot_id() -> str:
    """Return the id that distinguishes this boot of the machine from all others."""
    return BOOT_ID.read_text(encoding="ascii").strip()


@dataclass(frozen=True, slots=True)
class BootTime:
    """Place a boot in time: ``began_at`` is the moment of the boot, in seconds since the epoch.

    ``seen_at`` is a moment in that boot up to which time has certainly passed.
    """

    boot_id: str
    began_at: float
    seen_at: float


class SteadyClock:
    """Implement a ``Clock`` that nobody can set: it advances at the speed of time, over restarts too.

    While the machine is off only the time of day goes on, so a boot begins at the time of day, but never
    before an earlier moment of this clock: if the machine loses its time without power, no time has passed.
    """

    def __init__(
        self,
        path: Path | None = None,
        *,
        day: Callable[[], float] = time.time,
        up: Callable[[], float] = boottime,
        boot: Callable[[], str] = boot_id,
    ) -> None:
        """Take the file that keeps the clock's place, and the functions that read the clocks.

        ``path`` may be None for no file. ``day`` returns the time of day, ``up`` the time since the boot.
        """
        self._path = path
        self._day = day
        self._up = up
        self._boot_id = boot()
        stored = None if path is None else _read(path)
        if stored is not None and stored.boot_id == self._boot_id:
            self._began_at = stored.began_at
        else:
            least = 0.0 if stored is None else stored.seen_at
            self._began_at = max(day(), least) - up()
        self._ahead = 0.0

    def now(self) -> float:
        return self._began_at + self._up()

    def ahead(self) -> float:
        measured = self._day() - self.now()
        if abs(measured - self._ahead) >= STEP_SECONDS:
            self._ahead = measured
        return self._ahead

    def keep(self) -> None:
        if self._path is not None:
            anchor = BootTime(self._boot_id, self._began_at, self.now())
            write_private(self._path, json.dumps(asdict(anchor)).encode())


def _read(path: Path) -> BootTime | None:
    """Read the anchor; None if it cannot be read: then the clock begins anew, by the time of day."""
    try:
        record = json.loads(path.read_bytes())
        return BootTime(str(record["boot_id"]), float(record["began_at"]), float(record["seen_at"]))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        log.warning("%s cannot be read: %s; deadlines go by the time of day as it is now", path, error)
        return None


async def keep(clock: Clock, troubles: Troubles) -> None:
    """Write the clock's place for the next start; raise a trouble if that fails."""
    try:
        await asyncio.to_thread(clock.keep)
    except Unavailable as error:
        troubles.raised(PART, str(error))
    else:
        troubles.cleared(PART)


async def keep_always(clock: Clock, troubles: Troubles) -> None:
    """Keep the anchor now and then, for ever."""
    while True:
        await asyncio.sleep(RETRY_SECONDS if troubles.of(PART) else KEEP_SECONDS)
        await keep(clock, troubles)
