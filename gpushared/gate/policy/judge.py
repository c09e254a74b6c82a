"""What a confined caller may ask of the engine, field by field. Pure.

A table names every field that may be given and the rule for its value; a field on no table is refused by its
name. Trusted callers (root, the docker group) are not judged: they have the engine anyway.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from gpushared.domain.errors import PermissionRefused
from gpushared.domain.units import shown
from gpushared.gate.accounts import Account
from gpushared.gate.body import Body, Json, check_keys, objects, section, strings, text
from gpushared.gate.containers import HOST_NETWORK, OWN_NETWORKS
from gpushared.gate.mounts import judge_mounts
from gpushared.gate.policy.fields import LOG_CONFIG, PORT_BINDING, RESTART_POLICY
from gpushared.gate.policy.site import Policy

LOG_DRIVERS = frozenset({"", "json-file", "local", "journald", "none"})
LOG_OPTIONS = frozenset(
    {"max-size", "max-file", "compress", "mode", "max-buffer-size", "tag", "labels", "env"}
)
NO_NEW_PRIVILEGES = frozenset({"no-new-privileges", "no-new-privileges:true", "no-new-privileges=true"})
HIGHEST_OOM_SCORE = 1000
PORTS = re.compile(r"([0-9]{1,5}(-[0-9]{1,5})?)?")


@dataclass(frozen=True, slots=True)
class Context:
    """For whom, and by which site's policy, a body is judged.

    ``in_gang``: it is to be a part of a job on several nodes.
    """

    account: Account
    policy: Policy
    in_gang: bool = False


Rule = Callable[[str, Json, Context], Json]
"""Field, value, context: the value to send, None to leave the field out; raises ``PermissionRefused``."""


def judge_create(body: Body, context: Context) -> Body:
    """The create body as a confined caller gets it. Raises ``PermissionRefused`` naming the field.

    Paths, volumes and networks in the result are still to be checked against the system.
    """
    judged = _apply(body, CREATE, context)
    host = _apply(section(body, "HostConfig"), HOST, context)
    host["Mounts"] = judge_mounts(section(body, "HostConfig"))
    caller = context.account.caller
    judged["User"] = f"{caller.uid}:{caller.gid}"
    host["GroupAdd"] = [str(group) for group in context.account.groups]
    host["CapDrop"] = ["ALL"]
    host["SecurityOpt"] = ["no-new-privileges"]
    host["PidsLimit"] = _pids(section(body, "HostConfig").get("PidsLimit"), context)
    return {**judged, "HostConfig": host}


def judge_update(body: Body, context: Context) -> Body:
    """The update body as a confined caller gets it; 0 and null mean "as before" to every client."""
    judged = _apply({name: value for name, value in body.items() if value}, UPDATE, context)
    return {**judged, "PidsLimit": _pids(body["PidsLimit"], context)} if body.get("PidsLimit") else judged


def judge_exec(body: Body, context: Context) -> Body:
    """The exec body as a confined caller gets it: as the container's own user, which is the caller."""
    judged = _apply(body, EXEC, context)
    judged.pop("User", None)
    return judged


def judge_network(body: Body, context: Context) -> Body:
    """A plain bridge network."""
    return _apply(body, NETWORK, context)


def judge_endpoint(body: Body, context: Context) -> Body:
    """How a container joins or leaves a network."""
    return _apply(body, CONNECTION, context)


def judge_volume(body: Body, context: Context) -> Body:
    """A volume of the local driver without options, which could name any path of the machine."""
    return _apply(body, VOLUME, context)


def check_gang_network(mode: str, policy: Policy) -> None:
    """Raise ``PermissionRefused`` where a part of a job on several nodes has no such network here."""
    if mode == HOST_NETWORK and not policy.gangs_on_host_network:
        raise PermissionRefused(
            "this node does not give its own network to jobs on several nodes",
            hint='its administrator may: [gate] host_network = "gangs"',
        )


def networks_of(body: Body) -> list[str]:
    """The networks that a judged create body names, but for the engine's own."""
    endpoints = section(section(body, "NetworkingConfig"), "EndpointsConfig")
    mode = str(section(body, "HostConfig").get("NetworkMode") or "")
    # With the host's network, which was judged, there is no other; clients name it here too.
    own = OWN_NETWORKS | {HOST_NETWORK} if mode == HOST_NETWORK else OWN_NETWORKS
    return sorted({*endpoints, mode} - own)


def _apply(body: Body, rules: Mapping[str, Rule], context: Context) -> Body:
    judged: Body = {}
    for name, value in body.items():
        if name not in rules:
            raise PermissionRefused(
                f"{name} may not be set by you", hint="the administrator decides who is trusted"
            )
        allowed = rules[name](name, value, context)
        if allowed is not None:
            judged[name] = allowed
    return judged


def _pids(value: Json, context: Context) -> int:
    limit = context.policy.pids_limit
    return (
        min(value, limit) if isinstance(value, int) and not isinstance(value, bool) and value > 0 else limit
    )


# --- rules ---------------------------------------------------------------------------------------------


def _any(_name: str, value: Json, _context: Context) -> Json:
    return value


def _elsewhere(_name: str, _value: Json, _context: Context) -> Json:
    """Judged or set as a whole by ``judge_create``."""
    return None


def _unset(hint: str = "") -> Rule:
    def rule(name: str, value: Json, _context: Context) -> Json:
        if value:
            raise PermissionRefused(f"{name} may not be set by you", hint=hint)

    return rule


def _null(name: str, value: Json, _context: Context) -> Json:
    """For lists whose emptiness says more than their absence."""
    if value is not None:
        raise PermissionRefused(f"{name} may not be set by you")


def _one_of(*words: str, hint: str = "") -> Rule:
    def rule(name: str, value: Json, _context: Context) -> Json:
        if value is not None and value not in words:
            raise PermissionRefused(f"{name} {value!r} is not allowed for you", hint=hint)
        return value

    return rule


def _user(name: str, value: Json, context: Context) -> Json:
    caller = context.account.caller
    own = [
        f"{uid}{gid}"
        for uid in (caller.uid, caller.name)
        for gid in ("", f":{caller.gid}", f":{caller.name}")
    ]
    if value and value not in own:
        raise PermissionRefused(
            f"{name} {value!r} is not you", hint=f"containers run as uid {caller.uid}; leave it out"
        )
    return None


def _groups(name: str, value: Json, context: Context) -> Json:
    own = {str(group) for group in (context.account.caller.gid, *context.account.groups)}
    foreign = [group for group in strings({name: value}, name) if group not in own]
    if foreign:
        raise PermissionRefused(
            f"{name} {foreign[0]!r} is not a group of yours", hint="your own groups are always there"
        )
    return None


def _cap_drop(name: str, value: Json, _context: Context) -> Json:
    """All are dropped anyway."""
    strings({name: value}, name)


def _security(name: str, value: Json, _context: Context) -> Json:
    for option in strings({name: value}, name):
        if option not in NO_NEW_PRIVILEGES:
            raise PermissionRefused(f"{name} {option!r} is not allowed for you")


def _network_mode(name: str, value: Json, context: Context) -> Json:
    value = text({name: value}, name)
    if value == HOST_NETWORK and not context.in_gang:
        raise PermissionRefused("the host's network is not for you", hint="publish ports with -p instead")
    if value == HOST_NETWORK:
        check_gang_network(value, context.policy)
    if ":" in value:
        raise PermissionRefused(
            f"{name} {value!r} is not allowed for you", hint="put both containers on one network"
        )
    return value


def _ports(name: str, value: Json, context: Context) -> Json:
    bound = section({name: value}, name)
    return {port: [_binding(each, context) for each in objects(bound, port)] for port in bound}


def _binding(binding: Body, context: Context) -> Body:
    check_keys(binding, PORT_BINDING, "PortBindings.")
    port, lowest = text(binding, "HostPort"), context.policy.lowest_port
    if not PORTS.fullmatch(port):
        raise PermissionRefused(f"{shown(port)} is no port")
    # Where one end of a range is zero, the engine may choose from all below the other.
    if port not in {"", "0"} and any(int(end) < lowest for end in port.split("-")):
        raise PermissionRefused(f"port {port} is not for you", hint=f"choose one from {lowest} on")
    return {key: binding[key] for key in PORT_BINDING if key in binding}


def _log(name: str, value: Json, _context: Context) -> Json:
    log = section({name: value}, name)
    check_keys(log, LOG_CONFIG, f"{name}.")
    if text(log, "Type") not in LOG_DRIVERS or set(section(log, "Config")) - LOG_OPTIONS:
        raise PermissionRefused(
            "this log driver or option is not allowed for you", hint="json-file and local are"
        )
    return {key: log[key] for key in LOG_CONFIG if key in log}


def _restart(name: str, value: Json, _context: Context) -> Json:
    policy = section({name: value}, name)
    check_keys(policy, RESTART_POLICY, f"{name}.")
    return {key: policy[key] for key in RESTART_POLICY if key in policy}


def _oom_score(name: str, value: Json, _context: Context) -> Json:
    if value is not None and not (isinstance(value, int) and 0 <= value <= HIGHEST_OOM_SCORE):
        raise PermissionRefused(f"{name} below 0 is not allowed for you")
    return value


def _nested(rules: Mapping[str, Rule]) -> Rule:
    def rule(name: str, value: Json, context: Context) -> Json:
        return None if value is None else _apply(section({name: value}, name), rules, context)

    return rule


def _endpoints(name: str, value: Json, context: Context) -> Json:
    named = section({name: value}, name)
    return {key: _apply(section(named, key), ENDPOINT, context) for key in named}


def _ipam(name: str, value: Json, _context: Context) -> Json:
    ipam = section({name: value}, name)
    if text(ipam, "Driver") not in {"", "default"} or ipam.get("Config") or ipam.get("Options"):
        raise PermissionRefused("the addresses of a network are not yours to choose")


def _words(words: str, rule: Rule) -> dict[str, Rule]:
    return dict.fromkeys(words.split(), rule)


# --- tables --------------------------------------------------------------------------------------------

ENDPOINT: Mapping[str, Rule] = {
    **_words("Aliases IPAMConfig GwPriority", _any),
    **_words("Links MacAddress DriverOpts NetworkID DNSNames EndpointID Gateway IPAddress", _unset()),
    **_words("IPPrefixLen IPv6Gateway GlobalIPv6Address GlobalIPv6PrefixLen", _unset()),
}
CREATE: Mapping[str, Rule] = {
    **_words(
        "Hostname Domainname AttachStdin AttachStdout AttachStderr ExposedPorts Tty OpenStdin StdinOnce", _any
    ),
    **_words(
        "Env Cmd Healthcheck ArgsEscaped Image Volumes WorkingDir Entrypoint NetworkDisabled Labels", _any
    ),
    **_words("StopSignal StopTimeout Shell", _any),
    **_words("MacAddress OnBuild", _unset()),
    "User": _user,
    "HostConfig": _elsewhere,
    "NetworkingConfig": _nested({"EndpointsConfig": _endpoints}),
}
RESOURCES: Mapping[str, Rule] = {
    **_words(
        "CpuShares Memory NanoCpus CpuPeriod CpuQuota CpusetCpus CpusetMems MemoryReservation MemorySwap",
        _any,
    ),
    **_words("MemorySwappiness KernelMemory KernelMemoryTCP BlkioWeight", _any),
    **_words(
        "CgroupParent BlkioWeightDevice BlkioDeviceReadBps BlkioDeviceWriteBps BlkioDeviceReadIOps", _unset()
    ),
    **_words(
        "BlkioDeviceWriteIOps CpuRealtimePeriod CpuRealtimeRuntime DeviceCgroupRules OomKillDisable", _unset()
    ),
    **_words("CpuCount CpuPercent IOMaximumIOps IOMaximumBandwidth", _unset()),
    **_words("Devices DeviceRequests", _unset("GPUs come by a lease")),
    "PidsLimit": _elsewhere,
    "Ulimits": _any,
}
HOST: Mapping[str, Rule] = {
    **RESOURCES,
    **_words(
        "AutoRemove ConsoleSize Dns DnsOptions DnsSearch ExtraHosts PublishAllPorts ReadonlyRootfs", _any
    ),
    **_words("ShmSize Tmpfs Init", _any),
    **_words("Binds Mounts", _elsewhere),
    **_words("Annotations CapAdd Capabilities Cgroup StorageOpt Sysctls", _unset()),
    **_words("MaskedPaths ReadonlyPaths", _null),
    "VolumesFrom": _unset("name the volumes themselves"),
    "Links": _unset("put the containers on one network"),
    "ContainerIDFile": _elsewhere,
    "Privileged": _unset("GPUs need no privileges here: ask for --gpus 1"),
    "IpcMode": _one_of("", "private", "shareable", "none", hint="--shm-size gives more shared memory"),
    "PidMode": _unset(),
    "UTSMode": _unset(),
    "UsernsMode": _unset(),
    "CgroupnsMode": _one_of("", "private"),
    "Isolation": _one_of("", "default"),
    "Runtime": _one_of("", "runc"),
    "VolumeDriver": _one_of("", "local"),
    "NetworkMode": _network_mode,
    "PortBindings": _ports,
    "RestartPolicy": _restart,
    "LogConfig": _log,
    "OomScoreAdj": _oom_score,
    "GroupAdd": _groups,
    "CapDrop": _cap_drop,
    "SecurityOpt": _security,
}
UPDATE: Mapping[str, Rule] = {**RESOURCES, "RestartPolicy": _restart}
EXEC: Mapping[str, Rule] = {
    **_words(
        "AttachStdin AttachStdout AttachStderr DetachKeys Tty Env Cmd WorkingDir ConsoleSize Detach", _any
    ),
    "User": _user,
    "Privileged": _unset(),
}
NETWORK: Mapping[str, Rule] = {
    **_words("Name CheckDuplicate Internal Attachable EnableIPv4 EnableIPv6 Labels", _any),
    **_words("Options Ingress ConfigOnly ConfigFrom", _unset()),
    "ConfigFrom": lambda _name, value, _context: _refuse_config_from(value),
    "Driver": _one_of("", "bridge", "default"),
    "Scope": _one_of("", "local"),
    "IPAM": _ipam,
}
CONNECTION: Mapping[str, Rule] = {
    **_words("Container Force", _any),
    "EndpointConfig": _nested(ENDPOINT),
}
VOLUME: Mapping[str, Rule] = {
    **_words("Name Labels", _any),
    **_words("DriverOpts ClusterVolumeSpec", _unset("a bind mount of your own directory does the same")),
    "Driver": _one_of("", "local"),
}


def _refuse_config_from(value: Json) -> None:
    """Clients send it as an object with an empty name."""
    if isinstance(value, dict) and any(value.values()):
        raise PermissionRefused("ConfigFrom may not be set by you")
