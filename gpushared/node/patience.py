"""How long docker's clients wait in the queue, and what those are told that wait no longer."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from gpushared.domain.errors import LimitReached
from gpushared.domain.explain import Waiting
from gpushared.domain.state import NodeState
from gpushared.domain.units import format_duration, parse_duration
from gpushared.gate.wish import LABEL_MAX_WAIT

HALF_A_DAY_SECONDS = 12 * 3600
LABEL_HINT = f"the label {LABEL_MAX_WAIT} says how long it waits"


@dataclass(frozen=True, slots=True)
class Patience:
    """One client's, from the moment on at which it was made; without a limit where nothing says one."""

    seconds: float = math.inf
    until: float = math.inf
    """A moment of the daemon's clock."""
    hint: str = ""

    @property
    def waits(self) -> bool:
        """Whether it is to be queued at all."""
        return self.seconds > 0


def patience_of(label: str, names: Iterable[str], max_waits: Mapping[str, int], now: float) -> Patience:
    """By a container's label, else by the first of the names that the site has a line for.

    Raises RequestError for a label that is no duration.
    """
    if label:
        seconds = parse_duration(label, least=0)
        return Patience(seconds, now + seconds, LABEL_HINT)
    for name in names:
        if name in max_waits:
            hint = f"this machine lets containers of {name} wait so long; {LABEL_HINT} instead"
            return Patience(max_waits[name], now + max_waits[name], hint)
    return Patience()


def no_room(patience: Patience, waiting: Waiting | None, state: NodeState, now: float) -> LimitReached:
    """For a client that does not wait, or has waited long enough; ``waiting`` None: nobody knows why."""
    told = "there is no room now"
    if patience.waits:
        told = f"there was no room in {format_duration(patience.seconds)}"
    if waiting is not None:
        place = f"position {waiting.position} of {waiting.queue_length} in the queue"
        told += f": {place}{_start(waiting, state, now)}: {waiting.text}"
    return LimitReached(told, hint=patience.hint)


def _start(waiting: Waiting, state: NodeState, now: float) -> str:
    """Where the start is unknown, the text says why."""
    if waiting.start_to is None:
        return ""
    left_seconds = waiting.start_to - now
    form = "%H:%M" if left_seconds < HALF_A_DAY_SECONDS else "%a %H:%M"
    clock = time.strftime(form, time.localtime(state.day(waiting.start_to)))
    return f", start by {clock} ({round(left_seconds / 60)} min)"
