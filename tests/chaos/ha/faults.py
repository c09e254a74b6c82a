"""Blows to coordinators, members of etcd and nodes: who is hit is found out at the moment of the blow."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.chaos.faults import Faults
from tests.chaos.ha.machines import HaMachines
from tests.chaos.ha.plan import HOSTS, Blow, Role
from tests.chaos.machines import HarnessError, Service
from tests.chaos.plan import NODES, FaultKind
from tests.chaos.records import Record, Span, now

DEPOSED_CODE: Final = 125
DEPOSED_WORDS: Final = ("lead", "lease")
"""With such a word a coordinator ends that must not lead any more."""

Say = Callable[[str], None]


@dataclass(slots=True)
class Hit:
    """What a blow hit: ``name`` is a host or a node."""

    blow: Blow
    name: str
    began: float
    was_leader: bool
    """Whether it hit the coordinator that led."""


class HaFaults(Faults):
    """``do_blow`` does one, and heals it."""

    def __init__(self, machines: HaMachines, record: Record, copies: Path, say: Say) -> None:
        super().__init__(machines, record, copies, say)
        self._hosts = machines
        self._taken: set[str] = set()
        self.hits: list[Hit] = []
        self.deposed: list[tuple[str, float]] = []
        """Coordinators that ended because they led no more."""

    async def do_blow(self, blow: Blow) -> None:
        """Nothing is done where nobody has the role at the time."""
        name = await self._find(blow)
        if name is None:
            self._say(f"{blow}: nobody to hit")
            return
        target, program = _target(blow, name), _service(blow.role, name)
        self._taken.add(program)
        began = now()
        leads = blow.role is Role.LEADER
        self.hits.append(Hit(blow, name, began, leads))
        self._say(f"{blow} ({target}) for {blow.seconds:g} s")
        try:
            await self._strike(blow, name)
        except HarnessError as error:
            self._say(f"harness: {blow}: {error}")
        finally:
            role = f"{blow.role} {blow.way}" if blow.way else blow.role
            self._record.spans.append(Span(blow.kind, target, began, now(), role))
            self._taken.discard(program)
            self._say(f"{blow} ({target}) is over")

    async def _find(self, blow: Blow) -> str | None:
        leader = await asyncio.to_thread(self._hosts.leader)
        match blow.role:
            case Role.NODE:
                found = list(NODES)
            case Role.LEADER:
                found = [leader] if leader else []
            case Role.STANDBY:
                found = [host for host in self._hosts.coordinators if host != leader]
            case Role.ETCD_LEADER | Role.ETCD_FOLLOWER:
                first = await asyncio.to_thread(self._hosts.etcd_leader)
                found = [host for host in HOSTS if (host == first) is (blow.role is Role.ETCD_LEADER)]
        free = [name for name in found if _service(blow.role, name) not in self._taken]
        return free[int(blow.pick * len(free))] if free else None

    async def _strike(self, blow: Blow, name: str) -> None:
        service = self._hosts.services[_service(blow.role, name)]
        match blow.kind:
            case FaultKind.KILL:
                async with service.lock:
                    await self._hosts.end_service(service, signal.SIGKILL)
                    await asyncio.sleep(blow.seconds)
                    await self._hosts.start_service(service)
            case FaultKind.FREEZE:
                async with self._frozen(service):
                    await asyncio.sleep(blow.seconds)
            case FaultKind.SLOW:
                await self._slow(service, name, blow.seconds)
            case FaultKind.CUT:
                await self._cut(blow, name)
            case _:
                raise AssertionError(f"no blow is a {blow.kind}")

    async def _slow(self, service: Service, name: str, seconds: float) -> None:
        disk = self._hosts.disks[name]
        try:
            with contextlib.suppress(ProcessLookupError):  # it ended by itself
                await asyncio.to_thread(disk.slow, service.target, service.pid)
            await asyncio.sleep(seconds)
        finally:
            await asyncio.to_thread(disk.heal, service.target)

    async def _cut(self, blow: Blow, name: str) -> None:
        assert blow.way is not None
        rules = self._hosts.rules(name, blow.way)
        await asyncio.to_thread(self._hosts.cut, rules)
        try:
            await asyncio.sleep(blow.seconds)
        finally:
            await asyncio.to_thread(self._hosts.mend, rules)

    def _tell_of_the_end(self, service: Service) -> None:
        """A violation, but for a coordinator that led and must not lead any more."""
        if service.target.startswith("coordinator-") and self._was_deposed(service):
            self._say(f"{service.target} ended, as it leads no more")
            self.deposed.append((service.target, now()))
            return
        super()._tell_of_the_end(service)

    def _was_deposed(self, service: Service) -> bool:
        code = service.child.poll() if service.child is not None else None
        last = service.log.read_text(errors="replace").splitlines()[-3:] if service.log.exists() else []
        return code == DEPOSED_CODE and any(word in line for line in last for word in DEPOSED_WORDS)


def _service(role: Role, name: str) -> str:
    match role:
        case Role.LEADER | Role.STANDBY:
            return f"coordinator-{name}"
        case Role.ETCD_LEADER | Role.ETCD_FOLLOWER:
            return f"etcd-{name}"
        case Role.NODE:
            return f"daemon-{name}"


def _target(blow: Blow, name: str) -> str:
    """As the judge knows targets: a cut is of the cable, slow writes are of the disk."""
    match blow.kind:
        case FaultKind.CUT if blow.role is Role.NODE:
            return f"cable-{name}"
        case FaultKind.SLOW if blow.role is Role.NODE:
            return f"disk-{name}"
        case _:
            return _service(blow.role, name)
