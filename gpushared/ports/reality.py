"""Describe the real state of a running container: by the engine's word, and by the kernel's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gpushared.domain.model.gpu import GpuId
from gpushared.domain.model.lease import ContainerId


@dataclass(frozen=True, slots=True)
class Word:
    """Hold the engine's word on how it made the container."""

    labels: Mapping[str, str]
    mark: str = ""
    """The value of ``ContainerIDFile``, a field that engines keep and do not use."""
    env: tuple[str, ...] = ()
    """The caller's variables and the image's together."""
    privileged: bool = False
    runtime: str = ""
    devices: tuple[str, ...] = ()
    """Paths on the host."""
    device_rules: tuple[str, ...] = ()
    device_requests: tuple[str, ...] = ()
    """Names of CDI devices, and ``driver:id`` for each id of other drivers."""
    host_namespaces: frozenset[str] = frozenset()
    """The namespaces that the container was to share with the machine, by the names in ``/proc/PID/ns``."""
    groups: frozenset[int] = frozenset()
    """The groups that are given by their numbers."""
    seccomp: bool = True
    """Nobody asked for other system calls than the engine's own choice."""
    binds: tuple[str, ...] = ()
    """Sources of bind mounts that somebody asked for, without those of devices."""


@dataclass(frozen=True, slots=True)
class DeviceNode:
    """Describe a character device below ``/dev`` of a container."""

    path: str
    major: int
    minor: int


@dataclass(frozen=True, slots=True)
class DeviceRule:
    """Allow a cgroup some devices; None: all numbers. ``kind``: a, b or c; ``access``: of rwm."""

    kind: str
    major: int | None
    minor: int | None
    access: str


@dataclass(frozen=True, slots=True)
class Exposure:
    """Name a path of the machine that a container finds at ``target`` though it may not belong to it."""

    target: str
    path: str


@dataclass(frozen=True, slots=True)
class MachineDevices:
    """Describe the machine's GPU devices. ``majors``: the kernel's names of drivers by their number.

    ``minors``: the numbers of GPUs, if their driver tells; empty without a driver.
    """

    majors: Mapping[int, str]
    minors: Mapping[GpuId, int]


@dataclass(frozen=True, slots=True)
class Reality:
    """Describe one container whose first process was the same one all through the look.

    ``capabilities``: all that the process has or could get, as the kernel's bits. ``rules``: None if they
    cannot be read. Numbers of users are the machine's.
    """

    id: ContainerId
    name: str
    pid: int
    start_ticks: int
    word: Word
    machine: MachineDevices
    uids: frozenset[int]
    gids: frozenset[int]
    """The supplementary groups are here too."""
    capabilities: int
    no_new_privileges: bool
    seccomp: bool
    maps_users: bool
    """The container's numbers of users are others than the machine's."""
    host_namespaces: frozenset[str]
    nodes: tuple[DeviceNode, ...]
    rules: tuple[DeviceRule, ...] | None
    exposed: tuple[Exposure, ...]
