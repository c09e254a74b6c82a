"""Sample the GPUs again and again, and report to the core the leases on them and the victims of faults."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum, auto

from gpushared.daemon.troubles import Troubles
from gpushared.domain.leases.events import GpusSampled, GpusSurveyed, ServerFaulted
from gpushared.domain.leases.memory_watchdog import UNSEEN, overlap
from gpushared.domain.model.errors import GpushareError, JournalUnavailable, Unavailable
from gpushared.domain.model.gpu import Gpu, GpuId
from gpushared.domain.model.lease import Active, Lease, LeaseId, Paused
from gpushared.domain.model.units import format_memory
from gpushared.engine.processes import ProcessHandles, ProcessTable
from gpushared.gpus.mig import MPS_RESERVE_BYTES
from gpushared.node.runtime.loop import Loop
from gpushared.node.runtime.mps_detach import MpsEscapeDetector, MpsEscapees, Sighting, held_by_mps
from gpushared.ports import GpuProcess, GpuReading, Gpus, ServerFault, Sharing, SharingStatus

log = logging.getLogger(__name__)

IDLE_FACTOR = 5
MAX_XIDS = 64
"""The first errors of a GPU show its fault; a broken GPU can report thousands."""
WATCH_SECONDS = 0.25
"""At this interval a container that takes too much memory is stopped half a second later."""


@dataclass(frozen=True, slots=True)
class Stranger:
    """Record a process on a GPU that belongs to no lease."""

    pid: int
    gpu: GpuId
    memory_bytes: int | None


@dataclass(frozen=True, slots=True)
class LeaseUse:
    """Hold what a lease's processes use of one GPU; a figure is None if it is unknown.

    ``utilization_ratio`` is the part of the time in which kernels of the lease ran, 0-1, as the driver tells
    it for processes; a lease that is alone on its GPU has the GPU's.
    """

    memory_bytes: int | None
    utilization_ratio: float | None


@dataclass(frozen=True, slots=True)
class Sample:
    """Hold the newest look at all GPUs, sorted by lease and stranger."""

    at: float = 0.0
    readings: Mapping[GpuId, GpuReading] = field(default_factory=dict)
    used_bytes: Mapping[LeaseId, int] = field(default_factory=dict)
    uses: Mapping[tuple[LeaseId, GpuId], LeaseUse] = field(default_factory=dict)
    """The field has an entry for each GPU of each lease that holds one."""
    strangers: tuple[Stranger, ...] = ()
    sharing: Mapping[GpuId, SharingStatus] = field(default_factory=dict)


class Sampler:
    """Sample every ``interval_seconds``, less often while all GPUs are free, and at once when asked to."""

    def __init__(
        self,
        loop: Loop,
        gpus: Gpus,
        sharing: Sharing,
        troubles: Troubles,
        interval_seconds: float,
        exclusive_process: Collection[str] = (),
    ) -> None:
        """Take ``exclusive_process``, the names of GPUs that must have this compute mode while shared."""
        self.newest = Sample()
        self.observers: list[Callable[[Sample], None]] = []
        """Each is called with every new sample; it returns at once and raises nothing."""
        self._loop = loop
        self._gpus = gpus
        self._sharing = sharing
        self._processes = ProcessTable(handles=ProcessHandles())
        self._mps_escapes = MpsEscapeDetector()
        self._clients = ClientLeases()
        self._troubles = troubles
        self._interval_seconds = interval_seconds
        self._exclusive_process = frozenset(exclusive_process)
        self._sample_asked = asyncio.Event()
        self._unseen_since: dict[GpuId, float] = {}
        self._xids: dict[GpuId, tuple[int, ...]] = {}

    def free_bytes(self, gpu_id: GpuId) -> int | None:
        """Return the free memory of a GPU by the newest sample; None if it is unknown.

        The reserve for an MPS server counts as free, because such a server may be what uses it.
        """
        reading, gpu = self.newest.readings.get(gpu_id), self._loop.state.gpus.get(gpu_id)
        if reading is None or gpu is None or reading.memory_used_bytes is None:
            return None
        return gpu.leasable_bytes + MPS_RESERVE_BYTES - reading.memory_used_bytes

    def ask(self) -> None:
        """Take a sample soon."""
        self._sample_asked.set()

    async def run(self) -> None:
        while True:
            await self.sample_and_report()
            await self._pause()

    async def _pause(self) -> None:
        """Wait until the next sample is due, or requested. A lease that begins makes it due sooner."""
        began = time.monotonic()
        while (
            not self._sample_asked.is_set() and (pause := began + self.pause_seconds - time.monotonic()) > 0
        ):
            waking = [
                asyncio.create_task(wait) for wait in (self._sample_asked.wait(), self._loop.changed(pause))
            ]
            try:
                await asyncio.wait(waking, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in waking:
                    task.cancel()
        self._sample_asked.clear()

    @property
    def pause_seconds(self) -> float:
        """Return the interval: long while no lease holds a GPU, short for slices with containers."""
        holders = self._loop.state.holders()
        if any(lease.container is not None and not lease.request.wants_whole_gpus for lease in holders):
            return min(WATCH_SECONDS, self._interval_seconds)
        return self._interval_seconds * (1 if holders else IDLE_FACTOR)

    async def sample_and_report(self) -> None:
        """Take one sample and report it to the core; trouble is noted, never raised."""
        try:
            is_known = await self._sample()
            if not is_known:
                await self.survey()
        except JournalUnavailable:
            log.debug("sample not recorded: the journal is away")
        except GpushareError as error:
            self._troubles.raised("gpus", f"{error}{self._blindness()}")
        else:
            self._troubles.cleared("gpus")

    def _blindness(self) -> str:
        """Return a clause on since when the memory of leases is unwatched; empty if there are no leases."""
        if not self._loop.state.holders():
            return ""
        since = self._time_of_day(self.newest.at) if self.newest.at else "the start"
        return f"; the use of GPU memory is not seen since {since}"

    def _time_of_day(self, at: float) -> str:
        return time.strftime("%H:%M:%S", time.localtime(self._loop.state.day(at)))

    async def survey(self) -> None:
        """List the GPUs anew."""
        gpus = await self._gpus.survey()
        if not gpus:
            raise Unavailable("the driver lists no GPU", hint="check `nvidia-smi -L`")
        await self._loop.send(GpusSurveyed(tuple(map(self._marked, gpus))))

    def _marked(self, gpu: Gpu) -> Gpu:
        """Return the GPU with its compute mode.

        NVIDIA's compute modes apply to GPUs, not to MIG instances.
        """
        named = not self._exclusive_process.isdisjoint({"all", str(gpu.index), gpu.id})
        return replace(gpu, exclusive_process=named and gpu.parent is None and not gpu.split)

    async def _sample(self) -> bool:
        """Take a sample, and return True if the core knows its GPUs.

        A GPU that was lost may have come back as another one, or bigger.
        """
        at = self._loop.now()
        readings = await self._gpus.sample()
        status = await self._sharing.status()
        leases = self._leases_of(readings, status)
        sample, event = self._sort(at, readings, status, leases)
        self.newest = sample
        for observe in self.observers:
            observe(sample)
        escapees = self._find_escapees(readings, sample, leases)
        lost = frozenset(reading.gpu for reading in readings if reading.lost)
        working, resting = activity(readings, leases, self._loop.state.holders())
        event = replace(event, outside_mps=escapees.outside, xids=self._unreported_xids(readings), lost=lost)
        event = replace(event, active=working, idle=resting)
        # A server's fault lasts only until its clients are gone, and the driver reports its cause at once.
        faulty = {reading.gpu for reading in readings if reading.xids}
        for gpu in sorted(escapees.undecided | faulty):
            await self._sharing.look_soon(gpu)
        gpus = self._loop.state.gpus
        troubled = {gpu.id for gpu in gpus.values() if gpu.trouble is not None}
        listed = bool(gpus) and {reading.gpu for reading in readings} == gpus.keys()
        healed = troubled & event.readable - event.troubles.keys()
        for fault in self._clients.faulted(status, leases):
            await self._loop.send(fault)
        await self._loop.send(event)
        self._xids.clear()
        self._report_strangers(sample)
        self._report_unseen_memory(readings, leases, at)
        return listed and not healed

    def _unreported_xids(self, readings: tuple[GpuReading, ...]) -> dict[GpuId, tuple[int, ...]]:
        """Return the XIDs that the core does not know.

        The driver reports each once, and the journal may be away.
        """
        for reading in readings:
            if reading.xids:
                self._xids[reading.gpu] = (*self._xids.get(reading.gpu, ()), *reading.xids)[:MAX_XIDS]
        return dict(self._xids)

    def _report_strangers(self, sample: Sample) -> None:
        """Raise a trouble that names the biggest process that takes leased memory without a lease."""
        state = self._loop.state
        for gpu in state.gpus.values():
            part = f"unmanaged-{gpu.label}"
            eaten = overlap(state.leases, gpu.id, gpu.leasable_bytes, state.stray_bytes.get(gpu.id, 0))
            strangers = [
                stranger for stranger in sample.strangers if stranger.gpu == gpu.id and stranger.memory_bytes
            ]
            if eaten and strangers:
                worst = max(strangers, key=lambda stranger: stranger.memory_bytes or 0)
                self._troubles.raised(
                    part,
                    f"process {worst.pid} holds {format_memory(worst.memory_bytes or 0)} on GPU {gpu.label} "
                    f"without a lease, and leases there are short of it (`gpushare ps` lists such processes)",
                )
            else:
                self._troubles.cleared(part)

    def _report_unseen_memory(
        self, readings: tuple[GpuReading, ...], leases: Mapping[int, LeaseId], at: float
    ) -> None:
        """Raise a trouble if the driver lists processes of slices without their memory.

        The trouble names the time of the first such sample.
        """
        state = self._loop.state
        slices = {lease.id for lease in state.leases.values() if not lease.request.wants_whole_gpus}
        for reading in readings:
            gpu = state.gpus.get(reading.gpu)
            unseen = [
                (process.pid, leases[process.pid])
                for process in reading.processes
                if process.memory_bytes is None and leases.get(process.pid) in slices
            ]
            if gpu is not None and unseen:
                (pid, lease), began = unseen[0], self._unseen_since.setdefault(reading.gpu, at)
                text = (
                    f"the driver does not tell what process {pid} of lease {lease} holds on GPU {gpu.label}"
                )
                since = self._time_of_day(began)
                self._troubles.raised(
                    f"{UNSEEN}{gpu.label}", f"{text}: the watchdog is blind there since {since}"
                )
            elif gpu is not None:
                self._unseen_since.pop(reading.gpu, None)
                self._troubles.cleared(f"{UNSEEN}{gpu.label}")

    def _sort(
        self,
        at: float,
        readings: tuple[GpuReading, ...],
        status: tuple[SharingStatus, ...],
        leases: Mapping[int, LeaseId],
    ) -> tuple[Sample, GpusSampled]:
        server_pids = {pid for gpu_status in status for pid in gpu_status.pids}
        used: dict[LeaseId, dict[GpuId, int]] = {}
        stray: dict[GpuId, int] = {}
        strangers = []
        for reading in readings:
            for process in reading.processes:
                lease = leases.get(process.pid)
                if lease is not None:
                    on_gpus = used.setdefault(lease, {})
                    on_gpus[reading.gpu] = on_gpus.get(reading.gpu, 0) + (process.memory_bytes or 0)
                elif process.pid not in server_pids:
                    stray[reading.gpu] = stray.get(reading.gpu, 0) + (process.memory_bytes or 0)
                    strangers.append(Stranger(process.pid, reading.gpu, process.memory_bytes))
        readable = frozenset(reading.gpu for reading in readings if _shows_processes(reading))
        troubles = {reading.gpu: reading.trouble for reading in readings if reading.trouble is not None}
        strays = {gpu: stray.get(gpu, 0) for gpu in readable}
        by_gpu = {gpu_status.gpu: gpu_status for gpu_status in status}
        sums = {lease: sum(on_gpus.values()) for lease, on_gpus in used.items()}
        sample = Sample(
            at,
            {reading.gpu: reading for reading in readings},
            sums,
            lease_uses(readings, leases, self._loop.state.holders()),
            tuple(strangers),
            by_gpu,
        )
        return sample, GpusSampled(at, frozenset(used), strays, readable, troubles, used)

    def _find_escapees(
        self, readings: tuple[GpuReading, ...], sample: Sample, leases: Mapping[int, LeaseId]
    ) -> MpsEscapees:
        mps_leases = {lease.id for lease in self._loop.state.leases.values() if held_by_mps(lease)}
        sightings = [
            Sighting(reading.gpu, leases[process.pid], process)
            for reading in readings
            for process in reading.processes
            if leases.get(process.pid) in mps_leases
        ]
        readable = {reading.gpu for reading in readings if _shows_processes(reading)}
        return self._mps_escapes.judge(sightings, readable, sample.sharing)

    def _leases_of(
        self, readings: tuple[GpuReading, ...], status: tuple[SharingStatus, ...]
    ) -> dict[int, LeaseId]:
        pids = {process.pid for reading in readings for process in reading.processes} | client_pids(status)
        if not pids:
            return {}
        by_container = {
            lease.container: lease.id
            for lease in self._loop.state.leases.values()
            if lease.container is not None
        }
        lease_of_pid: dict[int, LeaseId] = {}
        for pid, process in self._processes.look_up(sorted(pids)).items():
            container = process.container_among(by_container)
            if container is not None:
                lease_of_pid[pid] = by_container[container]
        return lease_of_pid


def _shows_processes(reading: GpuReading) -> bool:
    """Return True if the reading shows the GPU's processes, as it may even for a GPU with a trouble."""
    return reading.trouble is None or reading.memory_used_bytes is not None


class ClientLeases:
    """Remember the leases of MPS clients, also of those that have just ended: a fault ends many at once."""

    def __init__(self) -> None:
        self._leases: dict[int, LeaseId] = {}

    def faulted(
        self, status: Iterable[SharingStatus], leases: Mapping[int, LeaseId]
    ) -> tuple[ServerFaulted, ...]:
        """Return an event for each fault in ``status``; ``leases``: the leases of the living processes."""
        status = tuple(status)
        pids = client_pids(status)
        self._leases = {
            pid: lease for pid in pids if (lease := leases.get(pid) or self._leases.get(pid)) is not None
        }
        faults: dict[int, ServerFault] = {}
        gpus: dict[int, list[GpuId]] = {}
        for gpu_status in status:
            for fault in gpu_status.faults:
                faults[fault.server] = fault
                gpus.setdefault(fault.server, []).append(gpu_status.gpu)
        return tuple(self._event(fault, tuple(gpus[server])) for server, fault in sorted(faults.items()))

    def _event(self, fault: ServerFault, gpus: tuple[GpuId, ...]) -> ServerFaulted:
        victims = frozenset(self._leases[pid] for pid in fault.clients if pid in self._leases)
        return ServerFaulted(gpus, victims, self._leases.get(fault.culprit or 0))


def client_pids(status: Iterable[SharingStatus]) -> frozenset[int]:
    """Return the pids of all clients of MPS servers, including the clients that a fault ended."""
    pids: set[int] = set()
    for gpu_status in status:
        pids.update(gpu_status.clients)
        for fault in gpu_status.faults:
            pids.update(fault.clients, () if fault.culprit is None else (fault.culprit,))
    return frozenset(pids)


class Activity(Enum):
    """Classify one lease's activity on one GPU."""

    WORKS = auto()
    """The lease works, or may work: its work cannot be distinguished from that of other leases on the GPU."""
    RESTS = auto()
    UNKNOWN = auto()


def activity(
    readings: Iterable[GpuReading], lease_of: Mapping[int, LeaseId], leases: Iterable[Lease]
) -> tuple[frozenset[LeaseId], frozenset[LeaseId]]:
    """Return the running leases that work and the ones that rest; the state of other leases is unknown.

    ``lease_of`` has the lease of each process, by host PID. A lease on several GPUs works when one of them
    shows that, and rests when all of them do.
    """
    by_gpu = {reading.gpu: reading for reading in readings}
    working, resting = set(), set()
    for lease in leases:
        if isinstance(lease.state, Active | Paused):
            activities = {_activity_on(by_gpu.get(grant.gpu), lease.id, lease_of) for grant in lease.grants}
            if Activity.WORKS in activities:
                working.add(lease.id)
            elif activities == {Activity.RESTS}:
                resting.add(lease.id)
    return frozenset(working), frozenset(resting)


def lease_uses(
    readings: Iterable[GpuReading], lease_of: Mapping[int, LeaseId], holders: Iterable[Lease]
) -> dict[tuple[LeaseId, GpuId], LeaseUse]:
    """Return the use of each GPU by each lease that holds a part of the GPU.

    ``lease_of`` has the lease of each process, by host PID.
    """
    holders = tuple(holders)
    on_gpu = Counter(grant.gpu for lease in holders for grant in lease.grants)
    by_gpu = {reading.gpu: reading for reading in readings}
    return {
        (lease.id, grant.gpu): _use(by_gpu.get(grant.gpu), lease.id, lease_of, alone=on_gpu[grant.gpu] == 1)
        for lease in holders
        for grant in lease.grants
    }


def _use(
    reading: GpuReading | None, lease: LeaseId, lease_of: Mapping[int, LeaseId], *, alone: bool
) -> LeaseUse:
    if reading is None or reading.lost or not _shows_processes(reading):
        return LeaseUse(None, None)
    processes = _processes_of(reading, lease, lease_of)
    sizes = [process.memory_bytes for process in processes]
    memory_bytes = None if None in sizes else sum(size or 0 for size in sizes)
    ratios = [process.utilization_ratio for process in processes]
    if processes and None not in ratios:
        return LeaseUse(memory_bytes, min(1.0, sum(ratio or 0.0 for ratio in ratios)))
    if reading.utilization_ratio == 0 or _is_known_to_rest(processes, reading, lease_of):
        return LeaseUse(memory_bytes, 0.0)
    return LeaseUse(memory_bytes, reading.utilization_ratio if alone else None)


def _activity_on(reading: GpuReading | None, lease: LeaseId, lease_of: Mapping[int, LeaseId]) -> Activity:
    if reading is None or reading.lost:
        return Activity.UNKNOWN
    processes = _processes_of(reading, lease, lease_of)
    if any(process.utilization_ratio for process in processes):
        return Activity.WORKS
    gpu_ratio = reading.utilization_ratio
    # An idle GPU needs no attribution of its use to processes.
    if gpu_ratio == 0 or _is_known_to_rest(processes, reading, lease_of):
        return Activity.RESTS
    return Activity.UNKNOWN if gpu_ratio is None else Activity.WORKS


def _processes_of(reading: GpuReading, lease: LeaseId, lease_of: Mapping[int, LeaseId]) -> list[GpuProcess]:
    return [process for process in reading.processes if lease_of.get(process.pid) == lease]


def _is_known_to_rest(own: list[GpuProcess], reading: GpuReading, lease_of: Mapping[int, LeaseId]) -> bool:
    """Return True if each of the lease's processes rests, or if it has none and all processes are listed."""
    if own:
        return all(process.utilization_ratio == 0 for process in own)
    lists_clients = any(process.mps_client is not None for process in reading.processes)
    belong_to_leases = all(process.pid in lease_of for process in reading.processes)
    return bool(reading.processes) and (lists_clients or belong_to_leases)
