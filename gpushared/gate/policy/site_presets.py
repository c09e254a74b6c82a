"""Define the three presets, and build a policy from a preset and the configuration."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, fields, replace

from gpushared.config.gate_settings import (
    ALL_GPUS,
    DEV_PRESET,
    DEV_SHARE,
    GateConfig,
    HostNetwork,
    Network,
    PolicyPreset,
    Publish,
    Restart,
)
from gpushared.config.kinds import Percent, keys_of
from gpushared.domain.model.host import HostSize
from gpushared.gate.api.site import HOME, UNKNOWN_MACHINE, SitePolicy

_HARMLESS_SYSCTLS = (
    "net.core.somaxconn",
    "net.ipv4.ip_local_port_range",
    "net.ipv4.ip_unprivileged_port_start",
    "net.ipv4.ping_group_range",
    "net.ipv4.tcp_fin_timeout",
    "net.ipv4.tcp_keepalive_*",
    "net.ipv4.tcp_syn*",
)
_OPEN_TO_ALL_DEVICES = ("/dev/fuse", "/dev/infiniband/rdma_cm", "/dev/infiniband/uverbs*")
"""The permissions of these devices allow every user of a machine to open them."""

PRESETS: Mapping[PolicyPreset, SitePolicy] = {
    PolicyPreset.OPEN: SitePolicy(
        preset=PolicyPreset.OPEN,
        bind_prefixes=(HOME, "/data", "/datasets", "/mnt", "/scratch", "/srv"),
        networks=tuple(Network),
        capabilities=("IPC_LOCK", "NET_BIND_SERVICE", "SYS_NICE", "SYS_PTRACE"),
        sysctls=_HARMLESS_SYSCTLS,
        devices=_OPEN_TO_ALL_DEVICES,
        dev_containers=ALL_GPUS,
        root_inside=True,
        host_ipc=True,
        unconfined_seccomp=True,
        ports_per_user=1024,
        pids_limit=16_384,
    ),
    PolicyPreset.LAB: SitePolicy(
        sysctls=_HARMLESS_SYSCTLS,
        devices=_OPEN_TO_ALL_DEVICES,
        containers_per_user=256,
        memory_per_user=Percent(90),
        pids_per_user=16_384,
    ),
    PolicyPreset.STRICT: SitePolicy(
        preset=PolicyPreset.STRICT,
        networks=(Network.OWN, Network.NONE),
        publish=Publish.LOOPBACK,
        registry_queries=False,
        restart_policies=(Restart.NO,),
        containers_per_user=32,
        ports_per_user=32,
        memory_per_user=Percent(50),
        pids_per_user=4096,
        pids_limit=1024,
    ),
}
_OTHER_NAMES = {"mount_prefixes": "bind_prefixes"}
"""These settings have another name as fields of ``SitePolicy``."""


def policy_of(
    gate: GateConfig, machine: HostSize = UNKNOWN_MACHINE, presets: Collection[str] = (DEV_PRESET,)
) -> SitePolicy:
    """Return the preset with the configuration's settings, for this machine.

    ``presets`` names the presets of requests.
    """
    policy_fields = {field.name for field in fields(SitePolicy)} - {"preset", "everybody_confined"}
    configured = {
        name: value
        for field in fields(gate)
        if (value := getattr(gate, field.name)) is not None
        and (name := _OTHER_NAMES.get(field.name, field.name)) in policy_fields
    }
    preset = PRESETS[gate.preset]
    if preset.dev_containers == DEV_PRESET and DEV_PRESET not in presets:
        preset = replace(preset, dev_containers=DEV_SHARE)
    return replace(
        preset,
        **configured,
        gangs_on_host_network=gate.host_network is HostNetwork.GANGS,
        everybody_confined=gate.everybody_confined,
        configured_fields=frozenset(configured),
        machine=machine,
    )


@dataclass(frozen=True, slots=True)
class RuleInForce:
    """Hold one rule for people: ``value`` as TOML, ``origin`` is ``preset lab`` or ``configuration``."""

    name: str
    value: str
    origin: str
    meaning: str


def rules_in_force(policy: SitePolicy) -> Iterator[RuleInForce]:
    """Return all rules, in the order of the configuration's reference."""
    policy_fields = {field.name for field in fields(SitePolicy)}
    for key in keys_of(GateConfig).values():
        match key.attribute:
            case "host_network":
                value: object = (HostNetwork.NEVER, HostNetwork.GANGS)[policy.gangs_on_host_network]
                own = policy.gangs_on_host_network
            case "preset" | "everybody_confined" as attribute:
                value = getattr(policy, attribute)
                own = value != key.default
            case attribute if (name := _OTHER_NAMES.get(attribute, attribute)) in policy_fields:
                value, own = getattr(policy, name), name in policy.configured_fields
            case _:
                continue  # the key is no part of the policy, such as the list of trusted users
        # A limit of 0 sets no limit; sizes cannot express that.
        written = "none" if value == 0 and value is not False else key.kind.write(value)
        origin = "configuration" if own else f"preset {policy.preset}"
        if key.default is not None and not own:
            origin = "default"
        yield RuleInForce(key.name, written, origin, key.doc)
