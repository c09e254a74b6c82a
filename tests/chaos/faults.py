"""Faults done to the machines, each healed again, and the processes started again as systemd would."""

from __future__ import annotations

import asyncio
import math
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from tests.chaos.machines import HarnessError, Machines, Service
from tests.chaos.plan import Fault, FaultKind
from tests.chaos.records import Record, Span, Violation, now

COPY_SECONDS: Final = 20.0
"""Between two copies of the coordinator's store."""
RESTORED_COPIES_BACK: Final = 2
RESTART_SECONDS: Final = 2.0
SEEN_SECONDS: Final = 3.0
"""Systemd's ``RestartSec`` of the units."""

Say = Callable[[str], None]


class Faults:
    """``say`` writes a line of the run's events."""

    def __init__(self, machines: Machines, record: Record, copies: Path, say: Say) -> None:
        self._machines = machines
        self._record = record
        self._copies = copies
        self._say = say
        self._locks: dict[str, asyncio.Lock] = {}
        self._full: set[str] = set()
        self._freed_at: dict[str, float] = {}
        copies.mkdir(exist_ok=True)

    async def do(self, fault: Fault) -> None:
        """Do it, and heal it after its seconds. The record has what was done, also when this is cancelled."""
        async with self._lock(fault.target):
            began = now()
            self._say(f"{fault.kind} {fault.target} for {fault.seconds:g} s")
            try:
                await self._do(fault)
            except HarnessError as error:
                self._say(f"harness: {fault.kind} {fault.target}: {error}")
            finally:
                self._record.spans.append(Span(fault.kind, fault.target, began, now()))
                self._say(f"{fault.kind} {fault.target} is over")

    async def _do(self, fault: Fault) -> None:
        match fault.kind:
            case FaultKind.KILL:
                await self._end_and_start(fault, signal.SIGKILL)
            case FaultKind.STOP:
                await self._end_and_start(fault, signal.SIGTERM)
            case FaultKind.RESTORE:
                await self._restore(fault)
            case FaultKind.FREEZE:
                async with self._frozen(self._machines.services[fault.target]):
                    await asyncio.sleep(fault.seconds)
            case FaultKind.CUT:
                node = fault.target[-1]
                self._machines.set_cable(node, "down")
                try:
                    await asyncio.sleep(fault.seconds)
                finally:
                    self._machines.set_cable(node, "up")
            case FaultKind.FULL:
                self._full.add(fault.target)
                try:
                    self._machines.fill(fault.target)
                    await asyncio.sleep(fault.seconds)
                finally:
                    self._machines.free(fault.target)
                    self._full.discard(fault.target)
                    self._freed_at[fault.target] = now()

    @asynccontextmanager
    async def _frozen(self, service: Service) -> AsyncIterator[None]:
        service.signal(signal.SIGSTOP)
        try:
            yield
        finally:
            service.signal(signal.SIGCONT)

    async def _end_and_start(self, fault: Fault, number: signal.Signals) -> None:
        service = self._machines.services[fault.target]
        async with service.lock:
            if not await self._machines.end_service(service, number):
                self._violate(
                    "does not end", f"{fault.target} did not end by {number.name} and was killed", service
                )
            await asyncio.sleep(fault.seconds)
            await self._machines.start_service(service)

    async def _restore(self, fault: Fault) -> None:
        service = self._machines.services["coordinator"]
        async with service.lock:
            await self._machines.end_service(service, signal.SIGTERM)
            copies = sorted(self._copies.glob("*.db"))[-RESTORED_COPIES_BACK:]
            if copies and "disk-coordinator" not in self._full:
                self._machines.put_store(copies[0])
                self._say(f"the coordinator's store is that of {copies[0].stem}")
            await asyncio.sleep(fault.seconds)
            await self._machines.start_service(service)

    async def keep_copies(self) -> None:
        """Copy the store now and then, until this is cancelled."""
        while True:
            service = self._machines.services["coordinator"]
            async with service.lock:
                if service.runs and "disk-coordinator" not in self._full:
                    try:
                        await asyncio.to_thread(
                            self._machines.copy_store, self._copies / f"{now():012.2f}.db"
                        )
                    except OSError as error:
                        self._say(f"harness: no copy of the store: {error}")
            await asyncio.sleep(COPY_SECONDS)

    async def supervise(self) -> None:
        """Start again what ended by itself, as systemd would, until this is cancelled."""
        while True:
            for service in self._machines.services.values():
                if service.wanted and not service.runs and not service.lock.locked():
                    async with service.lock:
                        self._tell_of_the_end(service)
                        await asyncio.sleep(RESTART_SECONDS)
                        await self._machines.start_service(service)
            await asyncio.sleep(0.5)

    def _tell_of_the_end(self, service: Service) -> None:
        """A violation, but for a coordinator that cannot open its store on a full disk."""
        code = service.child.poll() if service.child is not None else "unknown"
        disk = f"disk-{service.target.removeprefix('daemon-')}"
        # Its end is seen a while later.
        was_full = disk in self._full or now() - self._freed_at.get(disk, -math.inf) < SEEN_SECONDS
        what = f"{service.target} ended with {code}{' on a full disk' if was_full else ''}"
        if service.target == "coordinator" and was_full:
            self._say(f"{what}, as it may")
        else:
            self._violate("ended by itself", what, service)

    def _violate(self, rule: str, what: str, service: Service) -> None:
        self._say(f"violation: {what}")
        tail = service.log.read_text(errors="replace").splitlines()[-6:] if service.log.exists() else []
        self._record.found.append(Violation(rule, f"{what} at {now():.2f}", tuple(tail)))

    def _lock(self, target: str) -> asyncio.Lock:
        return self._locks.setdefault(target, asyncio.Lock())
