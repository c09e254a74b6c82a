"""Define the instructions that a step of the node's state machine gives to the daemon."""

from __future__ import annotations

from dataclasses import dataclass

from gpushared.domain.jobs.node_messages import AttemptInstruction
from gpushared.domain.model.lease import ContainerId, LeaseId


@dataclass(frozen=True, slots=True)
class MakeEdits:
    """Put in place the settings for a container of this lease."""

    lease: LeaseId


@dataclass(frozen=True, slots=True)
class DropEdits:
    """Remove the lease's settings."""

    lease: LeaseId
    device_name: str


@dataclass(frozen=True, slots=True)
class StopContainer:
    """Stop the container: signal, grace, kill."""

    lease: LeaseId
    container: ContainerId
    grace_seconds: int


@dataclass(frozen=True, slots=True)
class StartContainer:
    """Start the container again."""

    lease: LeaseId
    container: ContainerId


@dataclass(frozen=True, slots=True)
class HoldContainer:
    """Give a running container the settings that only a running container can get."""

    lease: LeaseId
    container: ContainerId


@dataclass(frozen=True, slots=True)
class SuspendContainer:
    """Move the container's GPU memory to the host's, and freeze the container."""

    lease: LeaseId
    container: ContainerId


@dataclass(frozen=True, slots=True)
class FreezeAgain:
    """Freeze the container of a suspended lease, which somebody thawed, and save what is on the GPUs."""

    lease: LeaseId
    container: ContainerId


@dataclass(frozen=True, slots=True)
class ResumeContainer:
    """Thaw the container, and move its GPU memory back, once its settings are in place."""

    lease: LeaseId
    container: ContainerId


@dataclass(frozen=True, slots=True)
class NotifyContainer:
    """Give the container's program the lease's notice, or withdraw the notice."""

    lease: LeaseId


@dataclass(frozen=True, slots=True)
class InspectContainer:
    """Ask the engine for the container's condition."""

    container: ContainerId


@dataclass(frozen=True, slots=True)
class SampleGpus:
    """Sample the GPUs now, before the next regular sample."""


Instruction = (
    MakeEdits
    | DropEdits
    | StopContainer
    | StartContainer
    | HoldContainer
    | SuspendContainer
    | FreezeAgain
    | ResumeContainer
    | NotifyContainer
    | InspectContainer
    | SampleGpus
    | AttemptInstruction
)
