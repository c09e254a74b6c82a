"""Keep programs without MPS off shared GPUs, by the compute mode EXCLUSIVE_PROCESS.

In that mode a GPU takes one process, which then is the MPS server, and a program that left MPS finds the GPU
taken (NVIDIA's MPS documentation). The mode outlives the process that set it. So the earlier mode is recorded
before anything is set, with the leases that the mode is set for, and restored with the last of them.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import logging
import os
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

from gpushared.daemon.files import sync_folder, write_durably
from gpushared.domain.model.errors import GpusUnavailable, SharingUnavailable, TimedOut
from gpushared.domain.model.gpu import Gpu, GpuId
from gpushared.ports import ComputeModes

T = TypeVar("T")

_log = logging.getLogger(__name__)

DEFAULT = 0
PROHIBITED = 2
EXCLUSIVE_PROCESS = 3
LEDGER_NAME = "compute-modes.json"
_BY_HAND = "`nvidia-smi -c DEFAULT`"


@dataclass(frozen=True, slots=True)
class SetMode:
    """Record a GPU whose mode was set: the mode before, and the device names of the leases that need it."""

    before: int
    leases: frozenset[str] = field(default=frozenset())


Ledger = dict[GpuId, SetMode]


class ExclusiveModes:
    """Set the mode for the leases that need it, one at a time; ``ledger`` is a file of the node's state."""

    def __init__(self, modes: ComputeModes, ledger: Path) -> None:
        self._modes = modes
        self._path = ledger
        self._lock = asyncio.Lock()
        self._ledger: Ledger | None = None
        self._lock_fd: int | None = None

    @property
    def last_ledger(self) -> Ledger:
        """Return the ledger as the last ``ledger`` returned it, without reading the disk."""
        return dict(self._ledger or {})

    async def ledger(self) -> Ledger:
        """Return the modes that were set and not put back.

        Raises SharingUnavailable if the ledger cannot be read, or another process has it.
        """
        if self._ledger is None:
            self._ledger = await asyncio.to_thread(self._with_ledger, self._take)
        return dict(self._ledger)

    def close(self) -> None:
        """Let another process have the ledger."""
        self._ledger = None
        if self._lock_fd is not None:
            os.close(self._lock_fd)
            self._lock_fd = None

    def _take(self) -> Ledger:
        if self._lock_fd is None:
            self._lock_fd = _take_lock(self._path)
        return read_ledger(self._path)

    async def hold(self, device_name: str, gpu: Gpu) -> None:
        """Set the mode on a GPU for a lease; raises SharingUnavailable if that fails."""
        async with self._lock:
            try:
                await self._hold(device_name, gpu)
            except GpusUnavailable as error:
                raise SharingUnavailable(
                    f"GPU {gpu.index} cannot be set to EXCLUSIVE_PROCESS: {error.message}",
                    hint=error.hint or "take it out of [gpus] exclusive_process",
                ) from error

    async def leave(self, device_name: str) -> None:
        """Note that the lease does not need the mode any more.

        ``restore_unneeded`` retries a mode that was not put back.
        """
        async with self._lock:
            for gpu, entry in (await self.ledger()).items():
                if device_name in entry.leases:
                    await self._settle(gpu, replace(entry, leases=entry.leases - {device_name}))

    async def free(self, gpu: Gpu) -> None:
        """Put the GPU's earlier mode back, for a lease of all of the GPU; raises SharingUnavailable."""
        async with self._lock:
            entry = (await self.ledger()).get(gpu.id)
            if entry is not None and not await self._settle(gpu.id, replace(entry, leases=frozenset())):
                raise SharingUnavailable(
                    f"GPU {gpu.index} is still in the compute mode EXCLUSIVE_PROCESS", hint=_BY_HAND
                )

    async def restore_unneeded(self, live: Collection[str]) -> None:
        """Put back the modes that no lease needs any more, given the device names of the live leases."""
        async with self._lock:
            for gpu, entry in (await self.ledger()).items():
                await self._settle(gpu, replace(entry, leases=entry.leases & set(live)))

    async def _hold(self, device_name: str, gpu: Gpu) -> None:
        mode = await self._modes.compute_mode(gpu.id)
        if mode is None or mode == PROHIBITED:
            why = "tells no compute mode" if mode is None else "is in the compute mode PROHIBITED"
            raise SharingUnavailable(
                f"GPU {gpu.index} {why}", hint=f"take it out of [gpus] exclusive_process, or {_BY_HAND}"
            )
        entry = (await self.ledger()).get(gpu.id)
        if entry is None and mode == EXCLUSIVE_PROCESS:
            return  # the admin set the mode, so nobody here puts it back
        entry = entry or SetMode(mode)
        await self._write(gpu.id, replace(entry, leases=entry.leases | {device_name}))
        if mode != EXCLUSIVE_PROCESS:
            await self._modes.set_compute_mode(gpu.id, EXCLUSIVE_PROCESS)
            _log.info("gpu.exclusive_process gpu=%s", gpu.id)

    async def _settle(self, gpu: GpuId, entry: SetMode) -> bool:
        """Record the leases that still need the mode, or restore the old mode; return False if that fails."""
        if entry.leases:
            await self._write(gpu, entry)
            return True
        try:
            # Another program, or a boot, may have set the mode in between.
            if await self._modes.compute_mode(gpu) == EXCLUSIVE_PROCESS:
                await self._modes.set_compute_mode(gpu, entry.before)
        except (GpusUnavailable, TimedOut) as error:
            _log.warning("gpu.mode_not_restored gpu=%s why=%s", gpu, error.message)
            await self._write(gpu, entry)
            return False
        await self._write(gpu, None)
        _log.info("gpu.mode_restored gpu=%s mode=%d", gpu, entry.before)
        return True

    async def _write(self, gpu: GpuId, entry: SetMode | None) -> None:
        ledger = await self.ledger()
        if ledger.get(gpu) == entry:
            return
        ledger.pop(gpu, None)
        if entry is not None:
            ledger[gpu] = entry
        await asyncio.to_thread(self._with_ledger, lambda: write_ledger(self._path, ledger))
        self._ledger = ledger

    def _with_ledger(self, work: Callable[[], T]) -> T:
        try:
            return work()
        except BlockingIOError as error:
            raise SharingUnavailable(
                "another process sees to the compute modes right now", hint="try again later"
            ) from error
        except (OSError, ValueError) as error:
            raise SharingUnavailable(
                f"which compute modes were set cannot be kept in {self._path}: {error}",
                hint=f"mend or remove the file; then {_BY_HAND} on every GPU",
            ) from error


def _take_lock(path: Path) -> int:
    """Lock the ledger until this process ends. Raises BlockingIOError if another process has the lock."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor = os.open(path.with_name(f"{path.name}.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def read_ledger(path: Path) -> Ledger:
    """Return the ledger, empty without a file. Raises OSError, and ValueError for a foreign content."""
    try:
        text = path.read_text()
    except FileNotFoundError:
        return {}
    try:
        content = json.loads(text)
        return {
            GpuId(gpu): SetMode(int(entry["before"]), frozenset(map(str, entry["leases"])))
            for gpu, entry in content.items()
        }
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"it is not as it was written ({error!r})") from error


def write_ledger(path: Path, ledger: Ledger) -> None:
    """Write the ledger to disk before returning, whole or not at all; an empty ledger has no file."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if ledger:
        text = json.dumps(
            {gpu: {"before": mode.before, "leases": sorted(mode.leases)} for gpu, mode in ledger.items()}
        )
        write_durably(path, text.encode())
    else:
        path.unlink(missing_ok=True)
        sync_folder(path.parent)
