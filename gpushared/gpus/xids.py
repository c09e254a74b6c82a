"""Collect the errors (XIDs) that the driver reports. ``gpushared.domain.model.xid`` has their meaning.

NVML keeps events in an event set until they are waited for; a wait of 0 ms takes one or returns ``TIMEOUT``.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import replace

from gpushared.domain.model.gpu import GpuId
from gpushared.gpus.nvml_driver import DRIVER_AWAY, DriverError, Handle, NvmlDriver
from gpushared.ports import GpuReading

log = logging.getLogger(__name__)

MAX_AT_ONCE = 256
"""One sample takes this many; a program that faults in a loop makes events without end."""
MAX_KEPT = 1024


class XidWatch:
    """Collect XIDs on the adapter's thread, and keep them until a sample has been returned with them.

    A call that came back too late for its caller must not lose its XIDs: the driver reports each once.
    """

    def __init__(self, driver: NvmlDriver) -> None:
        self._driver = driver
        self._events: Handle | None = None
        self._gpus: dict[int, GpuId] = {}
        self._unwatched: set[GpuId] = set()
        self._pending: deque[tuple[GpuId, int]] = deque(maxlen=MAX_KEPT)

    # --- on the thread ---

    def open(self, handles: Mapping[GpuId, Handle]) -> None:
        """Watch these GPUs from now on; the log names GPUs that report no errors, once."""
        self._gpus = {}
        try:
            self._events = self._driver.event_set()
        except DriverError as error:
            if error.code in DRIVER_AWAY:
                raise
            self._events = None
        for gpu, handle in handles.items():
            if self._events is not None and self._driver.watch_xids(handle, self._events):
                self._gpus[_address(handle)] = gpu
            elif gpu not in self._unwatched:
                self._unwatched.add(gpu)
                log.warning("the driver reports no errors (XIDs) of %s: its health is not watched", gpu)

    def collect(self) -> None:
        """Take the pending XIDs."""
        if self._events is None:
            return
        for _ in range(MAX_AT_ONCE):
            try:
                event = self._driver.next_xid(self._events)
            except DriverError:
                return  # a lost GPU and a driver that is away are noticed by the readings
            if event is None:
                return
            handle, number = event
            gpu = self._gpus.get(_address(handle))
            if gpu is None:
                log.warning("the driver reported XID %d of a GPU that it does not name", number)
            else:
                self._pending.append((gpu, number))

    def close(self) -> None:
        events, self._events = self._events, None
        if events is not None:
            with contextlib.suppress(DriverError):
                self._driver.free_event_set(events)

    # --- on the caller's thread ---

    def add_xids(self, readings: Iterable[GpuReading]) -> tuple[GpuReading, ...]:
        """Return the readings with the collected XIDs, which are then forgotten."""
        xids: dict[GpuId, list[int]] = {}
        for _ in range(len(self._pending)):
            gpu, number = self._pending.popleft()
            xids.setdefault(gpu, []).append(number)
        return tuple(replace(reading, xids=tuple(xids.get(reading.gpu, ()))) for reading in readings)


def _address(handle: Handle) -> int:
    """Return the handle's address: a handle is a pointer that is the same in all answers of one session."""
    return ctypes.cast(handle, ctypes.c_void_p).value or 0
