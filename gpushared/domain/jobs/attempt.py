"""An attempt as its node records it, durably and before it answers: the record is the answer."""

from __future__ import annotations

from dataclasses import dataclass

from gpushared.domain.jobs.model import AttemptKey, AttemptState, Ending, JobSpec
from gpushared.domain.jobs.protocol import Gang
from gpushared.domain.lease import LeaseId
from gpushared.domain.request import Caller, Request


@dataclass(frozen=True, slots=True)
class Attempt:
    """One part of an attempt on this node. Final ones are kept, so that what comes late is answered alike.

    ``spec`` is None in a tombstone: an attempt that was asked about or cancelled before it was seen.
    ``account``: the local account that it runs as. ``coordinator``: who gave it, empty for the node itself.
    """

    key: AttemptKey
    state: AttemptState
    revision: int
    at: float
    spec: JobSpec | None = None
    request: Request | None = None
    account: Caller | None = None
    lease: LeaseId | None = None
    ending: Ending | None = None
    wait: bool = False
    gang: bool = False
    facts: Gang | None = None
    """Set when the gang was told to start."""
    reserve_seconds: int = 60
    coordinator: str = ""
    cancelled_by: str = ""
    started_at: float | None = None
    boot_id: str = ""
    """The machine was in this boot when the container was last seen to begin."""
    placed_in: str = ""
    """The machine was in this boot when the order to run the attempt came."""
    guarded: bool = False
    """Its container runs only with a guard that ends it for want of contact without the daemon, too."""

    @property
    def is_fenced(self) -> bool:
        """Return True if the attempt is ended for want of contact.

        The node's own attempts never lose contact.
        """
        return bool(self.coordinator) and self.spec is not None and self.spec.stop_after_seconds is not None
