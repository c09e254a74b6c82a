"""Limit how many jobs of an array run at once, if its owner set a bound, and choose the next of them."""

from __future__ import annotations

from dataclasses import dataclass, field

from gpushared.domain.jobs.model import Ended, Job, JobId, Queued
from gpushared.domain.line import Line
from gpushared.domain.shelf import Shelf


@dataclass(frozen=True, slots=True)
class Throttle:
    """One array. ``admitted``: jobs that run or may be placed. ``waiting``: jobs that are ready, in order."""

    admitted: Shelf[JobId, None] = field(default_factory=Shelf)
    waiting: Line[tuple[int, JobId]] = field(default_factory=Line)

    def __bool__(self) -> bool:
        return bool(self.admitted) or bool(self.waiting)

    def changed(self, job: Job, *, ready: bool) -> tuple[Throttle, tuple[JobId, ...]]:
        """The throttle after a job of the array changed, and the jobs that may be placed from now on.

        ``ready``: but for the throttle the job may be placed.
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
        return Throttle(admitted, waiting), tuple(let_in)
