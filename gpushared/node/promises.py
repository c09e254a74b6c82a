"""Check that the GPUs that are there suffice for all promises to projects."""

from __future__ import annotations

from gpushared.domain.leases.node_state import NodeState
from gpushared.domain.leases.project_settings import capacity_of
from gpushared.domain.scheduling.projects import problems
from gpushared.serving.troubles import Troubles

PART = "quotas"


class Promises:
    """Raise a trouble for promises that cannot be kept.

    The configuration cannot exclude such promises: it does not know the GPUs, and GPUs can be lost.
    """

    def __init__(self, troubles: Troubles) -> None:
        self._troubles = troubles
        self._judged: tuple[object, ...] = ()

    def judge(self, state: NodeState) -> None:
        """Raise or clear the trouble; this costs nothing while nothing changed."""
        about = (state.rules, state.projects, state.gpus)
        if about == self._judged:
            return
        self._judged = about
        found = problems(state.policy, capacity_of(state.gpus))
        if found:
            self._troubles.raised(PART, "; ".join(found))
        else:
            self._troubles.cleared(PART)
