"""Hold a site's decisions about confined callers."""

from __future__ import annotations

from dataclasses import dataclass

from gpushared.config.gate_settings import (
    DEV_PRESET,
    DRIVER_CAPABILITIES,
    Network,
    PolicyPreset,
    Publish,
    Restart,
)
from gpushared.config.kinds import Percent
from gpushared.domain.model.host import HostSize
from gpushared.ports import UserBounds

HOME = "~"
NO_LIMIT = 0
UNKNOWN_MACHINE = HostSize()


def root_mark(uid: int) -> str:
    """Return the mark of a container in which its owner is root.

    The mark stands in ``HostConfig.ContainerIDFile``, whose text engines keep and do not use: an image can
    bring labels and a user, but no part of a HostConfig.
    """
    return f"gpushare.root-inside={uid}"


@dataclass(frozen=True, slots=True)
class SitePolicy:
    """Hold the rules in force. A name must match a ``*`` pattern as a whole; ``NO_LIMIT`` sets no limit.

    ``gangs_on_host_network``: the parts of jobs on several nodes may have the machine's own network.
    ``everybody_confined``: the creates of trusted callers are judged too. ``machine`` is the size to which
    percentages refer.
    """

    preset: PolicyPreset = PolicyPreset.LAB
    bind_prefixes: tuple[str, ...] = (HOME,)
    """``~`` is the caller's home."""
    networks: tuple[str, ...] = (Network.OWN, Network.BRIDGE, Network.NONE)
    publish: Publish = Publish.ANY
    lowest_port: int = 1024
    """Containers publish on ports from this one on."""
    images: tuple[str, ...] = ("*",)
    image_digest: bool = False
    registry_queries: bool = True
    restart_policies: tuple[str, ...] = tuple(Restart)
    capabilities: tuple[str, ...] = ()
    sysctls: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()
    driver_capabilities: tuple[str, ...] = DRIVER_CAPABILITIES
    """A lease may have these capabilities of NVIDIA's driver, besides the ones that every lease has."""
    dev_containers: str = DEV_PRESET
    """``--gpus all`` means this for a dev container: ``all``, a size or a preset's name."""
    root_inside: bool = False
    host_ipc: bool = False
    unconfined_seccomp: bool = False
    home_and_name: bool = True
    containers_per_user: int = NO_LIMIT
    ports_per_user: int = 128
    memory_per_user: int | Percent = NO_LIMIT
    cpus_per_user: float | Percent = NO_LIMIT
    pids_per_user: int = NO_LIMIT
    memory_limit_bytes: int = NO_LIMIT
    cpu_limit: float = NO_LIMIT
    pids_limit: int = 4096
    gangs_on_host_network: bool = False
    everybody_confined: bool = False
    configured_fields: frozenset[str] = frozenset()
    """The names of the fields that the configuration sets, and not the preset."""
    machine: HostSize = UNKNOWN_MACHINE

    @property
    def host_network(self) -> bool:
        """Return True if every container may have the machine's own network."""
        return Network.HOST in self.networks

    @property
    def user_bounds(self) -> UserBounds:
        """Return the limits on all containers of a user. A percentage of an unknown size is no limit."""
        memory, cpus = self.memory_per_user, self.cpus_per_user
        if isinstance(memory, Percent):
            memory = int(memory.of(self.machine.memory_bytes or 0))
        if isinstance(cpus, Percent):
            cpus = cpus.of((self.machine.cpu_milli or 0) / 1000)
        return UserBounds(memory, cpus, self.pids_per_user)

    @property
    def user_bounds_are_configured(self) -> bool:
        """Return True if the configuration itself sets one of the bounds, and not only the preset."""
        bounds = ("memory_per_user", "cpus_per_user", "pids_per_user")
        return any(name in self.configured_fields and getattr(self, name) != NO_LIMIT for name in bounds)
