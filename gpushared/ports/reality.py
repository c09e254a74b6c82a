"""What a running container really is: by the engine's word, and by the kernel's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gpushared.domain.gpu import GpuId
from gpushared.domain.lease import ContainerId


@dataclass(frozen=True, slots=True)
class Word:
    """What the engine says that it made the container with."""

    labels: Mapping[str, str]
    mark: str = ""
    """``ContainerIDFile``, a field that engines keep and do not use."""
    env: tuple[str, ...] = ()
    """The caller's and the image's together."""
    privileged: bool = False
    runtime: str = ""
    devices: tuple[str, ...] = ()
    """Paths on the host."""
    device_rules: tuple[str, ...] = ()
    device_requests: tuple[str, ...] = ()
    """Names of CDI devices, and ``driver:id`` for each id of other drivers."""
    host_namespaces: frozenset[str] = frozenset()
    """Of which it was to have the machine's, by the names in ``/proc/PID/ns``."""
    groups: frozenset[int] = frozenset()
    """Those given by their numbers."""
    seccomp: bool = True
    """Nobody asked for other system calls than the engine's own choice."""
    binds: tuple[str, ...] = ()
    """Sources of bind mounts that somebody asked for; those of devices are not among them."""


@dataclass(frozen=True, slots=True)
class DeviceNode:
    """A character device below ``/dev`` of a container."""

    path: str
    major: int
    minor: int


@dataclass(frozen=True, slots=True)
class DeviceRule:
    """Which devices a cgroup may use; None: all numbers. ``kind``: a, b or c; ``access``: of rwm."""

    kind: str
    major: int | None
    minor: int | None
    access: str


@dataclass(frozen=True, slots=True)
class Exposure:
    """A path of the machine that a container finds at ``target`` though it may be none of its own."""

    target: str
    path: str


@dataclass(frozen=True, slots=True)
class Machine:
    """The machine's GPU devices. ``majors``: the kernel's names of drivers by their number.

    ``minors``: of GPUs, where their driver tells; empty where there is none.
    """

    majors: Mapping[int, str]
    minors: Mapping[GpuId, int]


@dataclass(frozen=True, slots=True)
class Reality:
    """One container whose first process was the same one all through the look.

    ``capabilities``: all that it has or could get, as the kernel's bits. ``rules``: None where they cannot be
    read. Numbers of users are the machine's.
    """

    id: ContainerId
    name: str
    pid: int
    start_ticks: int
    word: Word
    machine: Machine
    uids: frozenset[int]
    gids: frozenset[int]
    """Its supplementary groups too."""
    capabilities: int
    no_new_privileges: bool
    seccomp: bool
    maps_users: bool
    """Its numbers of users are others than the machine's."""
    host_namespaces: frozenset[str]
    nodes: tuple[DeviceNode, ...]
    rules: tuple[DeviceRule, ...] | None
    exposed: tuple[Exposure, ...]
