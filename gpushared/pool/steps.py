"""Derive the store's changes from the steps of the coordinator's machine."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gpushared.domain.jobs.coordinator_state import PoolState, PoolStep
from gpushared.domain.model.lease import JobId
from gpushared.pool.records import (
    JOB,
    MEMBER,
    RECOVERING,
    Changes,
    job_changes,
    member_bytes,
    standing_changes,
    without,
)


class StepWriter:
    """Knows what is written already, so that beats write nothing."""

    def __init__(self, state: PoolState) -> None:
        """``state``: as the store has it."""
        self._members = {name: member_bytes(member) for name, member in state.members.items()}
        self._projects = set(state.projects)
        self._recovering = state.recovering_since is not None
        self._torn: set[JobId] = set()
        """Jobs of a step of which only a part was written: not as the state has them."""

    def changes_of(self, before: PoolState, steps: Sequence[PoolStep]) -> list[list[Changes]]:
        """Return the changes by step; changes that belong together are one ``Changes``."""
        found = [list(self._step(step)) for step in steps]
        if self._torn and found:
            found[0][:0] = [_as_it_is(before, job) for job in sorted(self._torn)]
        return found

    def written(self) -> None:
        """The first transaction of what ``changes_of`` told was written."""
        self._torn.clear()

    def refused(self, torn: PoolStep | None) -> None:
        """Note that the last changes were not written, or of ``torn`` only a part."""
        self._members.clear()
        if torn is not None:
            self._torn |= {job.id for job in torn.jobs}

    def _step(self, step: PoolStep) -> Iterator[Changes]:
        yield from map(without, step.gone)
        yield from map(job_changes, step.jobs)
        for member in step.members:
            body = member_bytes(member)
            if self._members.get(member.name) != body:
                self._members[member.name] = body
                yield {MEMBER + member.name: body}
        if step.standing is not None:
            yield from standing_changes(step.standing, self._projects)
            if step.standing.projects is not None:
                self._projects |= step.standing.projects.keys()
        if (step.state.recovering_since is not None) != self._recovering:
            self._recovering = not self._recovering
            yield {RECOVERING: b"" if self._recovering else None}


def _as_it_is(state: PoolState, job: JobId) -> Changes:
    found = state.jobs.get(job) or state.ended.get(job)
    return job_changes(found) if found is not None else {JOB + job: None}
