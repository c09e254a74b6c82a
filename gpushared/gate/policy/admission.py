"""Judge a confined caller's requests to the engine, field by field. Pure.

Each field's row in ``gpushared.gate.api.fields`` names the rule for its value; a field without a rule, or on
no table, is refused by its name. Trusted callers (root, the docker group) are not judged, because they can
use the engine anyway.
"""

from __future__ import annotations

from collections.abc import Mapping

from gpushared.domain.model.errors import PermissionRefused, RequestError
from gpushared.gate.api.body import CPU_PERIOD_US, HOST_NETWORK, OWN_NETWORKS, Body, Json, section
from gpushared.gate.api.field_kinds import Field, Table, fit
from gpushared.gate.api.fields import (
    CONNECT_TABLE,
    CREATE_TABLE,
    ENDPOINT_TABLE,
    EXEC_TABLE,
    HOST_TABLE,
    NETWORK_TABLE,
    UPDATE_TABLE,
    VOLUME_CREATE_TABLE,
)
from gpushared.gate.api.site import root_mark
from gpushared.gate.policy import field_rules as r
from gpushared.gate.policy import network_rules, process_rules
from gpushared.gate.policy.field_findings import Notes
from gpushared.gate.policy.field_rules import Context, Rule
from gpushared.gate.policy.mount_rules import judge_mounts
from gpushared.gate.policy.network_rules import check_gang_network

HOST_PREFIX = "HostConfig."
WHOLES = frozenset(
    {"User", "HostConfig", "Binds", "Mounts", "GroupAdd", "CapDrop", "SecurityOpt", "PidsLimit"}
)
"""These fields are noted where they are set as a whole."""

__all__ = [
    "Context",
    "check_gang_network",
    "judge_create",
    "judge_endpoint",
    "judge_exec",
    "judge_network",
    "judge_update",
    "judge_volume",
    "networks_of",
]


def judge_create(body: Body, context: Context, notes: Notes | None = None) -> Body:
    """Return the create body as a confined caller gets it. Raises ``PermissionRefused`` naming the field.

    Paths, volumes and networks in the result must still be checked against the system. With ``notes`` no
    field is refused: a refusal is noted instead, and the field is missing in the result.
    """
    body = _fitted(body, CREATE_TABLE, context, notes)
    requested = section(body, "HostConfig")
    judged = _apply(body, CREATE, context, notes=notes)
    host = _apply({"NetworkMode": "", **requested}, HOST, context, where=HOST_PREFIX, notes=notes)
    if not requested.get("NetworkMode"):
        host.pop("NetworkMode", None)
    mounts = _mounts(requested, notes)
    own = _own_settings(body, requested, context)
    limits = _limits(requested, host, context)
    for name, value in (own | limits).items():
        _note(notes, HOST_PREFIX + name, requested.get(name), value)
    caller = context.account.caller
    root = process_rules.is_root_inside(body.get("User"), context)
    judged["User"] = "0:0" if root else f"{caller.uid}:{caller.gid}"
    _note(notes, "User", body.get("User") or None, judged["User"])
    host |= own | limits | {"Mounts": mounts}
    if root:
        _alone(host, notes)
        host["ContainerIDFile"] = root_mark(caller.uid)
    return {**judged, "HostConfig": host}


def judge_update(body: Body, context: Context) -> Body:
    """Return the update body as a confined caller gets it; 0 and null mean "as before" to every client."""
    body = _fitted(body, UPDATE_TABLE, context)
    judged = _apply({name: value for name, value in body.items() if value}, UPDATE, context)
    judged |= _quota_with_period(judged, context)
    _check_cpus(judged, context)
    return (
        {**judged, "PidsLimit": r.pids(body["PidsLimit"], context.policy)}
        if body.get("PidsLimit")
        else judged
    )


def judge_exec(body: Body, context: Context) -> Body:
    """Return the exec body as a confined caller gets it: as the container's user, which is the caller."""
    return _apply(_fitted(body, EXEC_TABLE, context), EXEC, context)


def judge_network(body: Body, context: Context) -> Body:
    """Return the body for a plain bridge network."""
    network_rules.check_network("a network of one's own", context)
    return _apply(_fitted(body, NETWORK_TABLE, context), NETWORK, context)


def judge_endpoint(body: Body, context: Context) -> Body:
    """Judge the body by which a container joins or leaves a network."""
    return _apply(_fitted(body, CONNECT_TABLE, context), CONNECTION, context)


def judge_volume(body: Body, context: Context) -> Body:
    """Return the body for a local volume without options, which could name any path of the machine."""
    return _apply(_fitted(body, VOLUME_CREATE_TABLE, context), VOLUME, context)


def networks_of(body: Body) -> list[str]:
    """Return the networks that a judged create body names, except the engine's own."""
    endpoints = section(section(body, "NetworkingConfig"), "EndpointsConfig")
    mode = str(section(body, "HostConfig").get("NetworkMode") or "")
    # A container with the host's network, which was judged, has no other network; clients name it here too.
    own = OWN_NETWORKS | {HOST_NETWORK} if mode == HOST_NETWORK else OWN_NETWORKS
    return sorted({*endpoints, mode} - own)


# --- parts of a create ---------------------------------------------------------------------------------


def _own_settings(body: Body, requested: Body, context: Context) -> Body:
    """Return the settings that every container of a confined caller gets."""
    root = process_rules.is_root_inside(body.get("User"), context)
    options = requested.get("SecurityOpt") or ()
    unconfined = (
        context.policy.unconfined_seccomp
        and not process_rules.UNCONFINED_SECCOMP.isdisjoint(options)
        and not root
    )
    # A capability has no effect without root inside, because no program gains privileges.
    added = (
        process_rules.ROOT_CAPABILITIES | process_rules.capabilities(requested.get("CapAdd"))
        if root
        else frozenset()
    )
    return {
        "GroupAdd": [] if root else [str(group) for group in context.account.groups],
        "CapDrop": ["ALL"],
        **({"CapAdd": sorted(added)} if root else {}),
        "SecurityOpt": ["no-new-privileges", *(["seccomp=unconfined"] if unconfined else [])],
        "PidsLimit": r.pids(requested.get("PidsLimit"), context.policy),
    }


def _limits(requested: Body, host: Body, context: Context) -> Body:
    """Return the site's limits for values that the caller leaves out, or that are below zero."""
    policy, limits = context.policy, Body()
    together = policy.user_bounds
    if policy.memory_limit_bytes and not requested.get("Memory"):
        limits["Memory"] = min(policy.memory_limit_bytes, together.memory_bytes or policy.memory_limit_bytes)
    if policy.cpu_limit and r.whole(host, "NanoCpus") <= 0 and r.whole(host, "CpuQuota") <= 0:
        # The kernel takes no higher limit for one container than for all containers of its user.
        cpus, period = min(policy.cpu_limit, together.cpus or policy.cpu_limit), r.whole(host, "CpuPeriod")
        # The engine takes a period only with a quota.
        limits |= {"CpuQuota": int(cpus * period)} if period > 0 else {"NanoCpus": int(cpus * 1e9)}
    return limits


def _alone(host: Body, notes: Notes | None) -> None:
    """Raise ``PermissionRefused`` if a user who is root inside would share parts of the machine.

    That user would be root there too, and could write set-uid files through a mount, read files that only
    root may read, and open every given device.
    """
    shares = {
        "Mounts": any(mount["Type"] == "bind" for mount in host["Mounts"]),
        "Devices": bool(host.get("Devices")),
        "IpcMode": host.get("IpcMode") == "host",
        "NetworkMode": host.get("NetworkMode") == HOST_NETWORK,
    }
    for name, shared in shares.items():
        if shared:
            error = PermissionRefused(
                f"{name} would give what is the machine's to a container that is root inside",
                hint="leave out --user root, or what is the machine's; a volume holds files too",
            )
            _refuse(error, HOST_PREFIX + name, host[name], notes)


def _mounts(requested: Body, notes: Notes | None) -> list[Body]:
    judged: list[Body] = []
    for name in ("Binds", "Mounts"):
        try:
            # The rules run twice, because a bind becomes a mount object, which has its own rules.
            mounts = judge_mounts({"Mounts": judge_mounts({name: requested.get(name)})})
        except (PermissionRefused, RequestError) as error:
            _refuse(error, HOST_PREFIX + name, requested.get(name), notes)
        else:
            judged += mounts
            _note(notes, HOST_PREFIX + name, requested.get(name), mounts or None)
    return judged


# --- applying rules ------------------------------------------------------------------------------------


def _fitted(body: Body, table: Table, context: Context, notes: Notes | None = None) -> Body:
    left_out: list[str] = []
    fitted = fit(body, table, context.version, left_out=left_out)
    if notes is not None and context.version is not None:
        for name in left_out:
            notes.left_out(name, ".".join(map(str, context.version)))
    return fitted


def _apply(
    body: Body, rules: Mapping[str, Rule], context: Context, *, where: str = "", notes: Notes | None = None
) -> Body:
    judged: Body = {}
    for name, value in body.items():
        try:
            effective = rules.get(name, _no_rule)(name, value, context)
        except (PermissionRefused, RequestError) as error:
            _refuse(error, where + name, value, notes)
            continue
        if name not in WHOLES:
            _note(notes, where + name, value, effective)
        if effective is not None:
            judged[name] = effective
    if where == HOST_PREFIX:
        _try_cpus(judged, context, notes)
    return judged


def _no_rule(name: str, _value: Json, _context: Context) -> Json:
    raise PermissionRefused(f"{name} may not be set by you", hint="the administrator decides who is trusted")


def _try_cpus(judged: Body, context: Context, notes: Notes | None) -> None:
    try:
        _check_cpus(judged, context)
    except (PermissionRefused, RequestError) as error:
        _refuse(error, HOST_PREFIX + "NanoCpus", judged.get("NanoCpus"), notes)


def _quota_with_period(judged: Body, context: Context) -> Body:
    """Return an update's quota and period if CPUs are limited.

    Only both together give a number of CPUs; the engine keeps the one that an update does not name.
    """
    quota, period = r.whole(judged, "CpuQuota"), r.whole(judged, "CpuPeriod")
    if not r.most_cpus(context.policy) or not (quota or period):
        return {}
    if quota <= 0:
        raise PermissionRefused(
            "a container's CPUs are limited here, by its quota and period together",
            hint="name both: --cpu-quota 50000 --cpu-period 100000 are half a CPU",
        )
    return {"CpuPeriod": period or CPU_PERIOD_US}


def _check_cpus(judged: Body, context: Context) -> None:
    period = r.whole(judged, "CpuPeriod") or CPU_PERIOD_US
    r.checked_cpus(r.whole(judged, "NanoCpus"), r.whole(judged, "CpuQuota"), period, context.policy)


def _refuse(error: PermissionRefused | RequestError, name: str, requested: Json, notes: Notes | None) -> None:
    if notes is None:
        raise error
    notes.refused(name, requested, error)


def _note(notes: Notes | None, name: str, requested: Json, effective: Json) -> None:
    if notes is not None:
        notes.judged(name, requested, effective)


def _nested(rules: Mapping[str, Rule]) -> Rule:
    def rule(_name: str, value: Json, context: Context) -> Json:
        return None if value is None else _apply(value, rules, context)

    return rule


def _endpoints(_name: str, value: Json, context: Context) -> Json:
    named = value or {}
    for network in named:
        if network != HOST_NETWORK:  # the host's network was judged as the mode
            network_rules.check_network(network, context)
    return {key: _apply(section(named, key), ENDPOINT, context) for key in named}


RULES: Mapping[str, Rule] = {
    "allowed": r.allowed,
    "cap_add": process_rules.cap_add,
    "config_from": network_rules.config_from,
    "devices": r.devices,
    "elsewhere": r.elsewhere,
    "endpoints": _endpoints,
    "env": r.env,
    "exec_user": process_rules.exec_user,
    "groups": process_rules.groups,
    "image": r.image,
    "ipam": network_rules.ipam,
    "ipc": process_rules.ipc,
    "log": r.log,
    "memory": r.memory,
    "memory_swap": r.memory_swap,
    "network_mode": network_rules.network_mode,
    "null": r.null,
    "oom_score": process_rules.oom_score,
    "ports": network_rules.ports,
    "publish_all": network_rules.publish_all,
    "restart": r.restart,
    "security": process_rules.security,
    "stop_timeout": process_rules.stop_timeout,
    "sysctls": process_rules.sysctls,
    "tmpfs": r.tmpfs,
    "ulimits": process_rules.ulimits,
    "user": process_rules.user,
}
"""The fields' rows name these rules, and ``unset``, ``one-of``, ``at-most`` and ``nested``."""


def rules_of(fields: Table) -> dict[str, Rule]:
    """Return the rules of a table's fields; a field without a rule is left out."""
    return {name: _rule_of(field) for name, field in fields.items() if field.rule}


def _rule_of(field: Field) -> Rule:
    rule, _, hint = field.rule.partition("; ")
    name, *arguments = rule.split()
    match name, arguments:
        case "unset", []:
            return r.unset(hint)
        case "one-of", _:
            return r.one_of("", *arguments, hint=hint)
        case "at-most", [most]:
            return r.at_most(int(most), hint)
        case "nested", [] if field.table is not None:
            return _nested(rules_of(field.table))
    assert not arguments, f"{field.rule!r} has words too many"
    return RULES[name]


CREATE, HOST, UPDATE = rules_of(CREATE_TABLE), rules_of(HOST_TABLE), rules_of(UPDATE_TABLE)
EXEC, NETWORK, VOLUME = rules_of(EXEC_TABLE), rules_of(NETWORK_TABLE), rules_of(VOLUME_CREATE_TABLE)
CONNECTION, ENDPOINT = rules_of(CONNECT_TABLE), rules_of(ENDPOINT_TABLE)
