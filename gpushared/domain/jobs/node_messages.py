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
    """Report an order from a coordinator. A ``Place`` would run here as ``account``.

    ``refusal`` is the reason why this node does not take a ``Place``, such as an owner who has no account
    here.
    """

    order: Order
    coordinator: str = ""
    account: Caller | None = None
    refusal: Ending | None = None


@dataclass(frozen=True, slots=True)
class AttemptPrepared:
    """Report that the attempt's image is there, or that it will not be (``ending``)."""

    key: AttemptKey
    coordinator: str = ""
    ending: Ending | None = None


@dataclass(frozen=True, slots=True)
class LaunchFailed:
    """Report that the attempt's container could not be created or started."""

    key: AttemptKey
    ending: Ending
    coordinator: str = ""


@dataclass(frozen=True, slots=True)
class ContactMade:
    """Report that the coordinator acknowledged a message sent at ``sent_at`` (CLOCK_BOOTTIME of this boot).

    ``epoch`` and ``revision`` are those in the acknowledgement; 0 if it had none.
    """

    coordinator: str
    boot_id: str
    sent_at: float
    epoch: int = 0
    revision: int = 0


@dataclass(frozen=True, slots=True)
class FencesLooked:
    """Report that the time is ``at`` (CLOCK_BOOTTIME of this boot): attempts too long without contact end."""

    boot_id: str
    at: float


@dataclass(frozen=True, slots=True)
class GuardLooked:
    """Report if a guard watches over the containers of all fenced attempts at the moment."""

    watches: bool


@dataclass(frozen=True, slots=True)
class GuardEnded:
    """Report that the guard began to end these containers, which ran past their deadlines."""

    containers: frozenset[ContainerId]


@dataclass(frozen=True, slots=True)
class EngineEnded:
    """Report that the Docker engine ended, and with it these containers."""

    containers: frozenset[ContainerId]


@dataclass(frozen=True, slots=True)
class MachineGoesDown:
    """Report that the machine shuts down or reboots, so that later failures count as caused by that."""


AttemptEvent = (
    OrderTaken
    | AttemptPrepared
    | LaunchFailed
    | ContactMade
    | FencesLooked
    | GuardLooked
    | GuardEnded
    | EngineEnded
    | MachineGoesDown
)

# --- instructions --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PrepareAttempt:
    """Pull the attempt's image to this node."""

    key: AttemptKey
    coordinator: str = ""


@dataclass(frozen=True, slots=True)
class LaunchAttempt:
    """Create and start the attempt's container in its lease."""

    key: AttemptKey
    coordinator: str = ""


@dataclass(frozen=True, slots=True)
class GiveUpAttempt:
    """Stop preparing or launching the attempt, because it is over."""

    key: AttemptKey
    coordinator: str = ""


@dataclass(frozen=True, slots=True)
class TellCoordinator:
    """Report the attempt's changed record to the coordinator."""

    key: AttemptKey
    coordinator: str = ""


AttemptInstruction = PrepareAttempt | LaunchAttempt | GiveUpAttempt | TellCoordinator


@dataclass(frozen=True, slots=True)
class Contact:
    """Hold the highest epoch and revision seen of a coordinator, and when it surely still knew of this node.

    ``revision`` is the highest one seen in ``epoch``. ``at`` is the time at which the newest acknowledged
    heartbeat was sent (CLOCK_BOOTTIME, in seconds). It is valid in the boot ``boot_id`` only, and None before
    the first acknowledgement.
    """

    epoch: int = 0
    revision: int = 0
    boot_id: str = ""
    at: float | None = None
