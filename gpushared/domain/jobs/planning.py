"""Who is placed where."""

from __future__ import annotations

from gpushared.domain.jobs.following import begin
from gpushared.domain.jobs.model import HERE, Part
from gpushared.domain.jobs.state import PoolDraft


def place_who_can(draft: PoolDraft) -> None:
    """Place those whose turn it is, where something changed since it was last looked."""
    state, rules = draft.state, draft.rules
    if not state.stale or draft.now < state.planned_at + (0.0 if rules.here else rules.plan_seconds):
        return
    if rules.here:
        _place_here(draft)
        return


def _place_here(draft: PoolDraft) -> None:
    """Everything that may start goes into the node's own queue."""
    rules = draft.rules
    names = draft.state.waiting.first(rules.placed_at_once, rules.placed_at_once)
    for name in names:
        job = draft.state.jobs[name]
        begin(job, (Part(HERE, job.spec.request),), {}, draft)
    draft.state.stale = bool(len(draft.state.waiting))
