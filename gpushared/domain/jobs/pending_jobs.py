"""Order the waiting jobs so that a pass need not look at all of them, and throttle arrays.

Jobs that ask for the same have one queue, by their *shape*. A project's queues stand in the order in which the
policy looks at them. Changing one job costs the same, however many jobs wait in a queue.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
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
TurnPlace = tuple[int, int, JobId]
"""The job's priority (negative), its sequence and its id, which order the waiting jobs of an array."""
Front = tuple[int, int, int, JobId]
"""The place of a queue: the priority (negative), the class's order, and the queue's first job."""


@dataclass(frozen=True, slots=True)
class ProjectJobs:
    """Hold the waiting jobs of one project."""

    fronts: PersistentSortedList[Front] = field(default_factory=PersistentSortedList)
    oldest: PersistentSortedList[QueuePlace] = field(default_factory=PersistentSortedList)


@dataclass(frozen=True, slots=True)
class PendingJobs:
    """Hold the waiting jobs: ``shapes`` has a queue for each shape, ``where`` the shape of each job."""

    shapes: PersistentMap[JobShape, PersistentSortedList[QueuePlace]] = field(default_factory=PersistentMap)
    projects: PersistentMap[str, ProjectJobs] = field(default_factory=PersistentMap)
    where: PersistentMap[JobId, tuple[int, JobShape]] = field(default_factory=PersistentMap)

    def __len__(self) -> int:
        return len(self.where)

    def put(self, job: JobId, sequence: int, shape: JobShape) -> PendingJobs:
        queue = self.shapes.get(shape) or PersistentSortedList()
        longer = queue.put((sequence, job))
        project_jobs = self.projects.get(shape.project) or ProjectJobs()
        fronts = _moved(project_jobs.fronts, shape, queue, longer)
        project_jobs = ProjectJobs(fronts, project_jobs.oldest.put((sequence, job)))
        return PendingJobs(
            self.shapes.put(shape, longer),
            self.projects.put(shape.project, project_jobs),
            self.where.put(job, (sequence, shape)),
        )

    def drop(self, job: JobId) -> PendingJobs:
        """Return the queue without a job; a job that is not in the queue changes nothing."""
        entry = self.where.get(job)
        if entry is None:
            return self
        sequence, shape = entry
        queue, project_jobs = self.shapes[shape], self.projects[shape.project]
        shorter = queue.drop((sequence, job))
        fronts = _moved(project_jobs.fronts, shape, queue, shorter)
        project_jobs = ProjectJobs(fronts, project_jobs.oldest.drop((sequence, job)))
        shapes = self.shapes.put(shape, shorter) if shorter else self.shapes.drop(shape)
        projects, name = self.projects, shape.project
        projects = projects.put(name, project_jobs) if project_jobs.oldest else projects.drop(name)
        return PendingJobs(shapes, projects, self.where.drop(job))

    def joined(self, jobs: Sequence[tuple[JobId, int, JobShape]]) -> PendingJobs:
        """Return the queue with many more jobs, at the cost of one look at each job."""
        if not jobs:
            return self
        return waiting_of([*((job, *entry) for job, entry in self.where.items()), *jobs])

    def first(self, most: int, most_alike: int) -> list[JobId]:
        """Return the jobs for one pass: of each project the first ones, and the one that waits longest."""
        share = max(1, most // max(1, len(self.projects)))
        jobs: dict[JobId, None] = {}
        for project in sorted(self.projects):
            project_jobs = self.projects[project]
            jobs.update(dict.fromkeys(islice(self._in_order(project_jobs, most_alike), share)))
            jobs[next(iter(project_jobs.oldest))[1]] = None
            if len(jobs) >= most:
                break
        return list(jobs)

    def _in_order(self, project_jobs: ProjectJobs, most_alike: int) -> Iterator[JobId]:
        for front in project_jobs.fronts:
            _, shape = self.where[front[3]]
            for _, job in islice(self.shapes[shape], most_alike):
                yield job


def waiting_of(jobs: Iterable[tuple[JobId, int, JobShape]]) -> PendingJobs:
    """Build the queue from many jobs at once."""
    where = {job: (sequence, shape) for job, sequence, shape in jobs}
    entries_by_shape: dict[JobShape, list[QueuePlace]] = {}
    for job, (sequence, shape) in where.items():
        entries_by_shape.setdefault(shape, []).append((sequence, job))
    shapes = {shape: PersistentSortedList(entries) for shape, entries in entries_by_shape.items()}
    parts: dict[str, tuple[list[Front], list[QueuePlace]]] = {}
    for shape, queue in shapes.items():
        fronts, oldest = parts.setdefault(shape.project, ([], []))
        fronts.append(_front(shape, queue))
        oldest.extend(queue)
    projects = {
        name: ProjectJobs(PersistentSortedList(fronts), PersistentSortedList(oldest))
        for name, (fronts, oldest) in parts.items()
    }
    return PendingJobs(PersistentMap(shapes), PersistentMap(projects), PersistentMap(where))


def _moved(
    fronts: PersistentSortedList[Front],
    shape: JobShape,
    before: PersistentSortedList[QueuePlace],
    after: PersistentSortedList[QueuePlace],
) -> PersistentSortedList[Front]:
    """Return the fronts after a queue changed."""
    if before.first() == after.first():
        return fronts
    if before:
        fronts = fronts.drop(_front(shape, before))
    return fronts.put(_front(shape, after)) if after else fronts


def _front(shape: JobShape, queue: PersistentSortedList[QueuePlace]) -> Front:
    sequence, job = next(iter(queue))
    return -shape.priority, shape.order, sequence, job


@dataclass(frozen=True, slots=True)
class ArrayThrottle:
    """Throttle one array.

    ``admitted``: jobs that run or may be placed. ``waiting``: ready jobs, in order. ``places``: the place of each
    waiting job, to find it again when its priority has changed.
    """

    admitted: PersistentMap[JobId, None] = field(default_factory=PersistentMap)
    waiting: PersistentSortedList[TurnPlace] = field(default_factory=PersistentSortedList)
    places: PersistentMap[JobId, TurnPlace] = field(default_factory=PersistentMap)

    def __bool__(self) -> bool:
        return bool(self.admitted) or bool(self.waiting)

    def changed(self, job: Job, *, ready: bool) -> tuple[ArrayThrottle, tuple[JobId, ...]]:
        """Return the throttle after a job of the array changed, and the jobs that may be placed from now on.

        ``ready`` says that, but for the throttle, the job may be placed.
        """
        most = job.spec.array_limit
        assert most is not None, "asked of jobs of a bounded array only"
        before, places = self.places.get(job.id), self.places.drop(job.id)
        waiting = self.waiting if before is None else self.waiting.drop(before)
        holds_a_turn = ready and job.id in self.admitted
        if holds_a_turn or not isinstance(job.state, Queued | Ended):
            admitted = self.admitted.put(job.id, None)
        else:
            admitted = self.admitted.drop(job.id)
            if ready:
                place = (-job.priority, job.sequence, job.id)
                waiting, places = waiting.put(place), places.put(job.id, place)
        let_in: list[JobId] = []
        while len(admitted) < most and (first := waiting.first()) is not None:
            name = first[-1]
            admitted, waiting, places = admitted.put(name, None), waiting.drop(first), places.drop(name)
            let_in.append(name)
        return ArrayThrottle(admitted, waiting, places), tuple(let_in)
