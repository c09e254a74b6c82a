"""Compare each started container of the gate with the container that was made, and with its lease.

A container is compared with everything that it was ever given. Its lease knows that as long as the container
exists, even after the lease has ended. A difference is reported first; a container is ended only for
something that it was certainly never given.

The engine starts containers by itself too, by restart policies or because a user starts them past the gate.
The engine's events, and a look at all running containers when it is first reached, report all of them.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass

from gpushared.daemon.tasks import TaskSet
from gpushared.daemon.troubles import Troubles
from gpushared.domain.leases.events import ContainerRefuted
from gpushared.domain.model.errors import GpushareError
from gpushared.domain.model.gpu import Gpu, GpuId
from gpushared.domain.model.lease import ContainerId, Lease
from gpushared.gate.containers.verify import Deviation, Expected, deviations, unchecked
from gpushared.node.runtime.loop import Loop
from gpushared.ports import (
    LABEL_DEVICE,
    LABEL_GATE,
    LABEL_OWNER,
    ContainerFacts,
    ContainerStatus,
    Engine,
    MachineDevices,
    Reality,
)
from gpushared.storage.audit.line import MAX_TEXT, bounded

log = logging.getLogger(__name__)

CONFINED, TRUSTED = "confined", "trusted"
WRONG = "containers"
UNMANAGED = "unmanaged"
"""Troubles about such containers have this part name."""
MAX_AT_ONCE = 2
LOOK_PAUSES_SECONDS = (0.0, 0.2, 0.5)
"""A fault counts only if each of these looks finds it: runtimes drop rights in steps, the last one after the
engine has reported the start."""
KEPT_SECONDS = 3600.0
"""The trouble about an ended container stays this long."""
MAX_NAMED = 3
"""A trouble names this many containers and counts the others."""
MISMATCH = "mismatch"
"""The audit gives a difference this name."""
_UP = frozenset({ContainerStatus.RUNNING, ContainerStatus.PAUSED})

WriteAudit = Callable[[int, str, str, str, str], None]
"""Write to the audit: uid, user, action, container, text."""


def gate_name(state_dir: str) -> str:
    """Return a name that distinguishes this daemon's containers from those of other daemons on one engine."""
    return hashlib.sha256(state_dir.encode()).hexdigest()[:8]


@dataclass(frozen=True, slots=True)
class _Comparison:
    """Hold the differences between a container as it is and as its lease allows it."""

    reality: Reality
    expected: Expected
    deviations: tuple[Deviation, ...]


class Verifier:
    """Check containers. ``gate``: the name of this daemon's gate. ``barred``: paths no container may see."""

    def __init__(
        self,
        loop: Loop,
        engine: Engine,
        troubles: Troubles,
        write_audit: WriteAudit,
        *,
        gate: str,
        barred: tuple[str, ...],
        leases_directory: str,
        passwd_directory: str,
        simulated: bool,
    ) -> None:
        self._loop = loop
        self._engine = engine
        self._troubles = troubles
        self._write_audit = write_audit
        self._gate = gate
        self._barred = barred
        self._leases_directory = leases_directory
        self._passwd_directory = passwd_directory
        self._simulated = simulated
        self._checked_pids: dict[ContainerId, int] = {}
        self._trouble_texts: dict[str, dict[ContainerId, str]] = {WRONG: {}, UNMANAGED: {}}
        self._ended_here: set[ContainerId] = set()
        self._unchecked: tuple[str, ...] = ()
        self._knows_all = False
        self._slots = asyncio.Semaphore(MAX_AT_ONCE)
        self._tasks = TaskSet()

    # --- containers to look at ---

    def changed(self, change: ContainerFacts | ContainerId) -> None:
        """Note the engine's report on a container. Returns at once; a start is looked at soon."""
        if not isinstance(change, ContainerFacts):
            self._forget(change)
        elif change.status not in _UP or not change.pid:
            self._checked_pids.pop(change.id, None)
            if change.id not in self._ended_here:
                self._forget(change.id)
        elif self._concerns(change.labels) and self._checked_pids.get(change.id) != change.pid:
            self._checked_pids[change.id] = change.pid
            self._begin(change.id)

    def reached(self) -> None:
        """Look at all running containers, because the engine answers (again)."""
        self._spawn(self._look_at_running())

    async def close(self) -> None:
        await self._tasks.cancel()

    def _concerns(self, labels: Mapping[str, str]) -> bool:
        if labels.get(LABEL_GATE, "").partition("/")[0] == self._gate:
            return True
        device = labels.get(LABEL_DEVICE, "")
        return bool(device) and self._loop.state.of_device(device) is not None

    async def _look_at_running(self) -> None:
        for container in await self._engine.running():
            facts = await self._engine.inspect(container)
            if facts is not None:
                self.changed(facts)
        self._knows_all = True

    def _begin(self, container: ContainerId) -> None:
        self._spawn(self._examine(container, is_start=self._knows_all))

    # --- a look ---

    async def _examine(self, container: ContainerId, *, is_start: bool) -> None:
        """Look at a container. ``is_start``: it was started just now, after this daemon."""
        comparison: _Comparison | None = None
        for pause in LOOK_PAUSES_SECONDS:
            await asyncio.sleep(pause)
            async with self._slots:
                newest = await self._compare(container, is_start=is_start)
            if newest is None:
                return  # the container is over, and all that it had
            lasting = tuple(
                each for each in newest.deviations if comparison is None or each in comparison.deviations
            )
            comparison = _Comparison(newest.reality, newest.expected, lasting)
            if not lasting:
                break
        assert comparison is not None, "there is at least one look"
        await self._act_on(comparison)

    async def _compare(self, container: ContainerId, *, is_start: bool) -> _Comparison | None:
        reality = await self._engine.reality(container, self._barred)
        if reality is None:
            return None
        labels = reality.described.labels
        lease = self._loop.state.of_container(container)
        expected = self._expected(reality, lease, is_start=is_start)
        self._note_unchecked(unchecked(reality, expected))
        strange = self._strange(labels.get(LABEL_DEVICE, ""), lease, is_start=is_start)
        return _Comparison(reality, expected, (*strange, *deviations(reality, expected)))

    def _expected(self, reality: Reality, lease: Lease | None, *, is_start: bool) -> Expected:
        labels = reality.described.labels
        owner = labels.get(LABEL_OWNER, "")
        confined = labels.get(LABEL_GATE) == f"{self._gate}/{CONFINED}"
        uid = int(owner) if owner.isdecimal() else 0
        if lease is not None:
            sources = (f"{self._leases_directory}/{lease.device_name}", self._passwd_directory)
            gpus = given_gpus(lease, self._loop.state.gpus)
            minors = (
                frozenset() if self._simulated else minors_of(lease, self._loop.state.gpus, reality.machine)
            )
            return Expected(confined, uid, lease.id, lease.device_name, gpus, minors, sources)
        device = labels.get(LABEL_DEVICE, "")
        if device and not is_start and self._loop.state.of_device(device) is None:
            # The container's lease, and the record of its GPUs, may have been in a journal that was lost.
            sources = (f"{self._leases_directory}/{device}", self._passwd_directory)
            return Expected(confined, uid, "", device, None, None, sources)
        return Expected(confined, uid, sources=(self._passwd_directory,))

    def _strange(self, device: str, lease: Lease | None, *, is_start: bool) -> tuple[Deviation, ...]:
        """Find a container with the device of a lease that is not, or no longer, its own.

        A container older than this daemon's run may have a lease of a journal that was lost; it goes on.
        """
        if not device or lease is not None:
            return ()
        other = self._loop.state.of_device(device)
        if other is not None:
            return (Deviation(f"has the settings of lease {other.id}, which is another container's"),)
        if is_start:
            return (Deviation("has the settings of a lease that is over: it was started past the gate"),)
        return (Deviation("has the settings of a lease that is not known", grave=False),)

    # --- the result ---

    async def _act_on(self, comparison: _Comparison) -> None:
        reality, deviations = comparison.reality, comparison.deviations
        log.debug("looked container=%s found=%d", reality.id[:12], len(deviations))
        if not deviations:
            self._forget(reality.id)
            return
        ends = comparison.expected.confined and any(deviation.grave for deviation in deviations)
        # Paths and variables are users' words, and may be long.
        faults = bounded("; ".join(deviation.text for deviation in deviations), MAX_TEXT)
        user = str(comparison.expected.uid)
        text = f"container {reality.name} (uid {user}) {faults}" + ("; it was ended" if ends else "")
        self._note_trouble(comparison, text)
        self._write_audit(comparison.expected.uid, user, MISMATCH, reality.id, text)
        log.warning("mismatch container=%s ends=%s text=%r", reality.id[:12], ends, text)
        lease = self._loop.state.of_container(reality.id)
        if lease is not None:
            await self._loop.send(ContainerRefuted(lease.id, reality.id, f"its container {faults}", ends))
        if ends:
            self._ended_here.add(reality.id)
            asyncio.get_running_loop().call_later(KEPT_SECONDS, self._forget, reality.id)
            await self._engine.stop(reality.id, 0)

    def _note_trouble(self, comparison: _Comparison, text: str) -> None:
        """Note the trouble. A trusted user may bypass leases: that is reported, but as no fault."""
        reality, expected = comparison.reality, comparison.expected
        only_privileged = (
            reality.described.privileged and len(comparison.deviations) == 1 and not expected.confined
        )
        self._trouble_texts[UNMANAGED if only_privileged else WRONG][reality.id] = text
        self._report_troubles()

    def _forget(self, container: ContainerId) -> None:
        if container not in self._ended_here:
            self._checked_pids.pop(container, None)
        self._ended_here.discard(container)
        if any(texts.pop(container, None) for texts in self._trouble_texts.values()):
            self._report_troubles()

    def _report_troubles(self) -> None:
        for part, texts in self._trouble_texts.items():
            if not texts:
                self._troubles.cleared(part)
                continue
            more = f"; and {len(texts) - MAX_NAMED} more" if len(texts) > MAX_NAMED else ""
            self._troubles.raised(part, "; ".join(list(texts.values())[:MAX_NAMED]) + more)

    def _note_unchecked(self, checks: tuple[str, ...]) -> None:
        """Log the checks that are impossible here, once for each kind and not for each container."""
        skipped = {*checks, *(("GPU devices, because GPUs are simulated",) if self._simulated else ())}
        if skipped - set(self._unchecked):
            self._unchecked = tuple(sorted({*self._unchecked, *skipped}))
            log.info("containers are looked at when they start, but not: %s", ", ".join(self._unchecked))

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        self._tasks.start(_guarded(work))


def given_gpus(lease: Lease, gpus: Mapping[GpuId, Gpu]) -> frozenset[GpuId] | None:
    """Return the GPUs that a lease's container was ever given, with the GPUs of its MIG instances.

    Return None for a container whose GPUs an earlier release did not write down.
    """
    given = lease.container_gpus
    parents = (gpus[gpu].parent for gpu in given if gpu in gpus)
    return (given | {parent for parent in parents if parent is not None}) or None


def minors_of(lease: Lease, gpus: Mapping[GpuId, Gpu], machine: MachineDevices) -> frozenset[int] | None:
    """Return the minors of the lease's GPUs; None unless all are known, as while one of the GPUs is lost."""
    whole = {(gpus[gpu].parent or gpu) if gpu in gpus else gpu for gpu in lease.container_gpus}
    return frozenset(machine.minors[gpu] for gpu in whole) if whole <= machine.minors.keys() else None


async def _guarded(work: Coroutine[None, None, None]) -> None:
    try:
        await work
    except GpushareError as error:
        # When an engine that was away is back, its containers are looked at. A failed stop gets this line.
        log.warning("a container was not looked at, or not ended: %s", error)
