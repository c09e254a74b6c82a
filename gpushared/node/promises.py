"""Whether all that is promised to projects can be kept with the GPUs that are there."""

from __future__ import annotations

from gpushared.domain.policy.projects import problems
from gpushared.domain.quotas import capacity_of
from gpushared.domain.state import NodeState
from gpushared.serving.troubles import Troubles

PART = "quotas"


class Promises:
    """Tells of promises that cannot be kept: the configuration does not know the GPUs, and GPUs go."""

    def __init__(self, troubles: Troubles) -> None:
        self._troubles = troubles
        self._judged: tuple[object, ...] = ()

    def judge(self, state: NodeState) -> None:
        """Says so as long as it is so; costs nothing while nothing changed."""
        about = (state.rules, state.projects, state.gpus)
        if about == self._judged:
            return
        self._judged = about
        found = problems(state.policy, capacity_of(state.gpus))
        if found:
            self._troubles.raised(PART, "; ".join(found))
        else:
            self._troubles.cleared(PART)
