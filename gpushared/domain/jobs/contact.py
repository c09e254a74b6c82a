"""Define what a node remembers of a coordinator besides its orders."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Contact:
    """The highest that was seen of a coordinator, and when it surely still knew of this node.

    ``revision``: the highest that was seen in ``epoch``.
    ``at``: CLOCK_BOOTTIME, in seconds, of the moment at which the newest beat that it acknowledged was sent;
    it says something in the boot ``boot_id`` only, and is None before the first.
    """

    epoch: int = 0
    revision: int = 0
    boot_id: str = ""
    at: float | None = None
