"""Define events of attempts on their node, instructions to its daemon, and the node's memory of coordinators.

``coordinator`` is the pool that gave the order, empty for the node's own jobs.
"""

from __future__ import annotations

from dataclasses import dataclass

from gpushared.domain.jobs.job import Ending
from gpushared.domain.jobs.protocol import Order
from gpushared.domain.model.lease import AttemptKey, ContainerId
from gpushared.domain.model.request import Caller

# --- events --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class OrderTaken:
    """A coordinator said something. ``account``: as whom a ``Place`` would run here.

    ``refusal``: why this node does not take a ``Place``, such as an owner who has no account here.
    """

    order: Order
    coordinator: str = ""
    account: Caller | None = None
    refusal: Ending | None = None


@dataclass(frozen=True, slots=True)
class AttemptPrepared:
    """Tell that the attempt's image is there, or with ``ending`` that it will not be."""

    key: AttemptKey
    coordinator: str = ""
    ending: Ending | None = None


@dataclass(frozen=True, slots=True)
class LaunchFailed:
    """Tell that the attempt's container could not be created or started."""

    key: AttemptKey
    ending: Ending
    coordinator: str = ""


@dataclass(frozen=True, slots=True)
class ContactMade:
    """The coordinator acknowledged what was sent to it at ``sent_at`` (CLOCK_BOOTTIME of this boot).

    ``epoch`` and ``revision``: those that it named; 0 where it named none.
    """

    coordinator: str
    boot_id: str
    sent_at: float
    epoch: int = 0
    revision: int = 0


@dataclass(frozen=True, slots=True)
class FencesLooked:
    """Tell that it is ``at`` now (CLOCK_BOOTTIME of this boot): attempts too long without contact end."""

    boot_id: str
    at: float


@dataclass(frozen=True, slots=True)
class GuardLooked:
    """Tell if a guard watches over the containers of all fenced attempts at the moment."""

    watches: bool


@dataclass(frozen=True, slots=True)
class GuardEnded:
    """The guard began to end these containers, which ran past their deadlines."""

    containers: frozenset[ContainerId]


@dataclass(frozen=True, slots=True)
class MachineGoesDown:
    """The machine is being shut down or rebooted: what fails from now on does so because it is stopped."""


AttemptEvent = (
    OrderTaken
    | AttemptPrepared
    | LaunchFailed
    | ContactMade
    | FencesLooked
    | GuardLooked
    | GuardEnded
    | MachineGoesDown
)

# --- instructions --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PrepareAttempt:
    """Have its image on this node."""

    key: AttemptKey
    coordinator: str = ""


@dataclass(frozen=True, slots=True)
class LaunchAttempt:
    """Create and start its container in the lease that it has."""

    key: AttemptKey
    coordinator: str = ""


@dataclass(frozen=True, slots=True)
class GiveUpAttempt:
    """Tell that the attempt is over: whatever is being prepared or launched for it is of no use any more."""

    key: AttemptKey
    coordinator: str = ""


@dataclass(frozen=True, slots=True)
class TellCoordinator:
    """Tell that the attempt's record changed."""

    key: AttemptKey
    coordinator: str = ""


AttemptInstruction = PrepareAttempt | LaunchAttempt | GiveUpAttempt | TellCoordinator


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
