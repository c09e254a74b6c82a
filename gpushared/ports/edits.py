"""Define the settings by which a container uses its lease."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from gpushared.domain.model.gpu import GpuId
from gpushared.domain.model.lease import Walls


@dataclass(frozen=True, slots=True)
class EditMount:
    source: str
    target: str
    read_only: bool = True


@dataclass(frozen=True, slots=True)
class Edits:
    """Hold the settings by which a container uses its lease and nothing else.

    ``env`` always wins over the user's; ``env_defaults`` only fills variables that the user left unset.
    ``gpus`` are to be made visible by the engine's own means (see ``DeviceMechanism``).
    """

    gpus: tuple[GpuId, ...]
    walls: Walls
    env: Mapping[str, str] = field(default_factory=dict)
    env_defaults: Mapping[str, str] = field(default_factory=dict)
    mounts: tuple[EditMount, ...] = ()
    devices: tuple[str, ...] = ()
    cgroup_parent: str = ""
    """Docker's ``CgroupParent``; empty for the engine's own choice."""
    hooks: tuple[Hook, ...] = ()


@dataclass(frozen=True, slots=True)
class Hook:
    """Name a program of the host that the runtime runs as root before the container's first process.

    The hook is OCI's ``createRuntime``: the container's state comes on its standard input. It works only with
    ``lease_devices``.
    """

    path: str
    args: tuple[str, ...]
    env: tuple[str, ...] = ()
    timeout_seconds: int = 5
