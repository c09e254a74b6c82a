"""Limit the time that docker's clients wait in the queue, and word the refusal after that time."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from gpushared.domain.leases.explain import Waiting
from gpushared.domain.leases.node_state import NodeState
from gpushared.domain.model.errors import LimitReached
from gpushared.domain.model.units import format_duration, parse_duration
from gpushared.gate.containers.gpu_request import LABEL_MAX_WAIT

HALF_A_DAY_SECONDS = 12 * 3600
LABEL_HINT = f"the label {LABEL_MAX_WAIT} says how long it waits"


@dataclass(frozen=True, slots=True)
class QueuePatience:
    """Hold one client's patience, counted from its request; without a limit it is infinite."""

    seconds: float = math.inf
    until: float = math.inf
    """A moment of the daemon's clock."""
    hint: str = ""

    @property
    def waits(self) -> bool:
        """Return True if the request may enter the queue at all."""
        return self.seconds > 0


def patience_of(label: str, names: Iterable[str], max_waits: Mapping[str, int], now: float) -> QueuePatience:
    """Return the patience from a container's label, else from the first of the names in ``max_waits``.

    Raises RequestError for a label that is no duration.
    """
    if label:
        seconds = parse_duration(label, least=0)
        return QueuePatience(seconds, now + seconds, LABEL_HINT)
    for name in names:
        if name in max_waits:
            hint = f"this machine lets containers of {name} wait so long; {LABEL_HINT} instead"
            return QueuePatience(max_waits[name], now + max_waits[name], hint)
    return QueuePatience()


def no_room(patience: QueuePatience, waiting: Waiting | None, state: NodeState, now: float) -> LimitReached:
    """Word the refusal for a client that does not wait, or no longer.

    ``waiting`` is None without a reason.
    """
    text = "there is no room now"
    if patience.waits:
        text = f"there was no room in {format_duration(patience.seconds)}"
    if waiting is not None:
        position = f"position {waiting.position} of {waiting.queue_length} in the queue"
        text += f": {position}{_start(waiting, state, now)}: {waiting.text}"
    return LimitReached(text, hint=patience.hint)


def _start(waiting: Waiting, state: NodeState, now: float) -> str:
    """Word the latest time of the start; return an empty text if it is unknown, as the reason says why."""
    if waiting.start_to is None:
        return ""
    left_seconds = waiting.start_to - now
    form = "%H:%M" if left_seconds < HALF_A_DAY_SECONDS else "%a %H:%M"
    clock = time.strftime(form, time.localtime(state.day(waiting.start_to)))
    return f", start by {clock} ({round(left_seconds / 60)} min)"
