"""What a node's daemon is to do about what happened."""

from __future__ import annotations

from dataclasses import dataclass

from gpushared.domain.jobs.node_messages import AttemptInstruction
from gpushared.domain.lease import ContainerId, LeaseId


@dataclass(frozen=True, slots=True)
class MakeEdits:
    """Put in place what a container of this lease needs."""

    lease: LeaseId


@dataclass(frozen=True, slots=True)
class DropEdits:
    """Take it away again."""

    lease: LeaseId
    device_name: str


@dataclass(frozen=True, slots=True)
class StopContainer:
    """Stop it: signal, grace, kill."""

    lease: LeaseId
    container: ContainerId
    grace_seconds: int


@dataclass(frozen=True, slots=True)
class StartContainer:
    """Start it again."""

    lease: LeaseId
    container: ContainerId


@dataclass(frozen=True, slots=True)
class HoldContainer:
    """It runs now: give it what only a running container can be given."""

    lease: LeaseId
    container: ContainerId


@dataclass(frozen=True, slots=True)
class SuspendContainer:
    """Move its GPU memory to the host's, and freeze it."""

    lease: LeaseId
    container: ContainerId


@dataclass(frozen=True, slots=True)
class ResumeContainer:
    """Thaw it, and move its GPU memory back, once its settings are in place."""

    lease: LeaseId
    container: ContainerId


@dataclass(frozen=True, slots=True)
class NotifyContainer:
    """Tell its program what the lease's notice says, or that there is none any more."""

    lease: LeaseId


@dataclass(frozen=True, slots=True)
class InspectContainer:
    """Ask the engine what became of it."""

    container: ContainerId


@dataclass(frozen=True, slots=True)
class SampleGpus:
    """Look at the GPUs now, not at the next turn."""


Instruction = (
    MakeEdits
    | DropEdits
    | StopContainer
    | StartContainer
    | HoldContainer
    | SuspendContainer
    | ResumeContainer
    | NotifyContainer
    | InspectContainer
    | SampleGpus
    | AttemptInstruction
)
