"""Order the waiting jobs so that a pass need not look at all of them, and throttle arrays.

Jobs that ask for the same have one queue (a *kind*). A project's queues stand in the order in which the
policy looks at them. Changing one job costs the same, however many jobs wait in a queue.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice

from gpushared.domain.jobs.job import (
    Ended,
    Job,
    NodeName,
    Queued,
)
from gpushared.domain.model.lease import JobId
from gpushared.domain.model.persistent_map import PersistentMap
from gpushared.domain.model.persistent_sorted_list import PersistentSortedList
from gpushared.domain.model.request import Request


@dataclass(frozen=True, slots=True)
class JobShape:
    """Hold the common properties of jobs that are decided alike. ``order`` is that of the request's class."""

    project: str
    priority: int
    order: int
    request: Request
    target: NodeName
    not_on: tuple[NodeName, ...]
    hashed: int = field(init=False, compare=False, repr=False)
    """The hash is computed once: the shape is the key of many maps, and a request has many fields."""

    def __post_init__(self) -> None:
        parts = (self.project, self.priority, self.order, self.request, self.target, self.not_on)
        object.__setattr__(self, "hashed", hash(parts))

    def __hash__(self) -> int:
        return self.hashed


QueuePlace = tuple[int, JobId]
"""The job's sequence and its id, which order the jobs of a queue."""
Front = tuple[int, int, int, JobId]
"""The place of a queue: the priority (negative), the class's order, and the queue's first job."""


@dataclass(frozen=True, slots=True)
class ProjectJobs:
    """Hold the waiting jobs of one project."""

    fronts: PersistentSortedList[Front] = field(default_factory=PersistentSortedList)
    oldest: PersistentSortedList[QueuePlace] = field(default_factory=PersistentSortedList)


@dataclass(frozen=True, slots=True)
class PendingJobs:
    """Hold the waiting jobs: ``kinds`` has a queue for each kind, ``where`` the kind of each job."""

    kinds: PersistentMap[JobShape, PersistentSortedList[QueuePlace]] = field(default_factory=PersistentMap)
    backlogs: PersistentMap[str, ProjectJobs] = field(default_factory=PersistentMap)
    where: PersistentMap[JobId, tuple[int, JobShape]] = field(default_factory=PersistentMap)

    def __len__(self) -> int:
        return len(self.where)

    def put(self, job: JobId, sequence: int, kind: JobShape) -> PendingJobs:
        line = self.kinds.get(kind) or PersistentSortedList()
        longer = line.put((sequence, job))
        backlog = self.backlogs.get(kind.project) or ProjectJobs()
        fronts = _moved(backlog.fronts, kind, line, longer)
        return replace(
            self,
            kinds=self.kinds.put(kind, longer),
            backlogs=self.backlogs.put(
                kind.project, ProjectJobs(fronts, backlog.oldest.put((sequence, job)))
            ),
            where=self.where.put(job, (sequence, kind)),
        )

    def drop(self, job: JobId) -> PendingJobs:
        """Return the queue without a job; a job that is not in the queue changes nothing."""
        known = self.where.get(job)
        if known is None:
            return self
        sequence, kind = known
        line, backlog = self.kinds[kind], self.backlogs[kind.project]
        shorter = line.drop((sequence, job))
        backlog = ProjectJobs(
            _moved(backlog.fronts, kind, line, shorter), backlog.oldest.drop((sequence, job))
        )
        kinds = self.kinds.put(kind, shorter) if shorter else self.kinds.drop(kind)
        backlogs = self.backlogs
        backlogs = backlogs.put(kind.project, backlog) if backlog.oldest else backlogs.drop(kind.project)
        return PendingJobs(kinds, backlogs, self.where.drop(job))

    def joined(self, jobs: Sequence[tuple[JobId, int, JobShape]]) -> PendingJobs:
        """Return the queue with many more jobs, at the cost of one look at each job."""
        if not jobs:
            return self
        return waiting_of([*((job, *place) for job, place in self.where.items()), *jobs])

    def first(self, most: int, most_alike: int) -> list[JobId]:
        """Return the jobs for one pass: of each project the first ones, and the one that waits longest."""
        share = max(1, most // max(1, len(self.backlogs)))
        found: dict[JobId, None] = {}
        for project in sorted(self.backlogs):
            backlog = self.backlogs[project]
            found.update(dict.fromkeys(islice(self._in_order(backlog, most_alike), share)))
            found[next(iter(backlog.oldest))[1]] = None
            if len(found) >= most:
                break
        return list(found)

    def _in_order(self, backlog: ProjectJobs, most_alike: int) -> Iterator[JobId]:
        for front in backlog.fronts:
            _, kind = self.where[front[3]]
            for _, job in islice(self.kinds[kind], most_alike):
                yield job


def waiting_of(jobs: Iterable[tuple[JobId, int, JobShape]]) -> PendingJobs:
    """Build the queue from many jobs at once."""
    where = {job: (sequence, kind) for job, sequence, kind in jobs}
    lines: dict[JobShape, list[QueuePlace]] = {}
    for job, (sequence, kind) in where.items():
        lines.setdefault(kind, []).append((sequence, job))
    kinds = {kind: PersistentSortedList(places) for kind, places in lines.items()}
    projects: dict[str, tuple[list[Front], list[QueuePlace]]] = {}
    for kind, line in kinds.items():
        fronts, oldest = projects.setdefault(kind.project, ([], []))
        fronts.append(_front(kind, line))
        oldest.extend(line)
    backlogs = {
        name: ProjectJobs(PersistentSortedList(fronts), PersistentSortedList(oldest))
        for name, (fronts, oldest) in projects.items()
    }
    return PendingJobs(PersistentMap(kinds), PersistentMap(backlogs), PersistentMap(where))


def _moved(
    fronts: PersistentSortedList[Front],
    kind: JobShape,
    before: PersistentSortedList[QueuePlace],
    after: PersistentSortedList[QueuePlace],
) -> PersistentSortedList[Front]:
    """Return the fronts after a queue changed."""
    if before.first() == after.first():
        return fronts
    if before:
        fronts = fronts.drop(_front(kind, before))
    return fronts.put(_front(kind, after)) if after else fronts


def _front(kind: JobShape, line: PersistentSortedList[QueuePlace]) -> Front:
    sequence, job = next(iter(line))
    return -kind.priority, kind.order, sequence, job


@dataclass(frozen=True, slots=True)
class ArrayThrottle:
    """Throttle one array. ``admitted``: jobs that run or may be placed. ``waiting``: ready jobs, in order."""

    admitted: PersistentMap[JobId, None] = field(default_factory=PersistentMap)
    waiting: PersistentSortedList[tuple[int, JobId]] = field(default_factory=PersistentSortedList)

    def __bool__(self) -> bool:
        return bool(self.admitted) or bool(self.waiting)

    def changed(self, job: Job, *, ready: bool) -> tuple[ArrayThrottle, tuple[JobId, ...]]:
        """Return the throttle after a job of the array changed, and the jobs that may be placed from now on.

        ``ready`` says that, but for the throttle, the job may be placed.
        """
        most = job.spec.array_limit
        assert most is not None, "asked of jobs of a bounded array only"
        place = (job.sequence, job.id)
        holds_a_turn = ready and job.id in self.admitted
        if holds_a_turn or not isinstance(job.state, Queued | Ended):
            admitted, waiting = self.admitted.put(job.id, None), self.waiting.drop(place)
        else:
            admitted = self.admitted.drop(job.id)
            waiting = self.waiting.put(place) if ready else self.waiting.drop(place)
        let_in: list[JobId] = []
        while len(admitted) < most and (first := waiting.first()) is not None:
            admitted, waiting = admitted.put(first[1], None), waiting.drop(first)
            let_in.append(first[1])
        return ArrayThrottle(admitted, waiting), tuple(let_in)
