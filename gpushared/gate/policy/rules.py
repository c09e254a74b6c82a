"""The rules for single fields: what a value becomes, or why it is refused. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from gpushared.config.gate import Network, Publish, may_be_passed
from gpushared.domain.errors import PermissionRefused, RequestError
from gpushared.domain.units import shown
from gpushared.gate.accounts import Account
from gpushared.gate.body import Body, Json, objects, section, strings, text
from gpushared.gate.containers import HOST_NETWORK
from gpushared.gate.policy.images import check_image
from gpushared.gate.policy.schema import Version
from gpushared.gate.policy.site import Policy

LOG_DRIVERS = frozenset({"", "json-file", "local", "journald", "none"})
LOG_OPTIONS = frozenset(
    {"max-size", "max-file", "compress", "mode", "max-buffer-size", "tag", "labels", "env"}
)
LOG_TAG = re.compile(
    r"(?:[^{}]|\{\{ ?\.(?:ID|FullID|Name|ImageName|ImageID|ImageFullID|DaemonName) ?\}\}){0,256}"
)
"""The engine runs a tag as a template , whose functions can ask for any amount of memory."""
NO_NEW_PRIVILEGES = frozenset({"no-new-privileges", "no-new-privileges:true", "no-new-privileges=true"})
UNCONFINED_SECCOMP = frozenset({"seccomp=unconfined", "seccomp:unconfined"})
HIGHEST_OOM_SCORE = 1000
LONGEST_STOP_SECONDS = 3600
MOST_CPU_SHARES = 1024
"""What every container has that asks for none."""
MOST_BLKIO_WEIGHT = 500
PORTS = re.compile(r"([0-9]{1,5}(-[0-9]{1,5})?)?")
LOOPBACK = "127.0.0.1"
PRIORITY_ULIMITS = frozenset({"rtprio", "nice"})
TMPFS_OPTION = re.compile(
    r"rw|ro|exec|noexec|nosuid|nodev|noatime|relatime|(size|nr_blocks|nr_inodes)=[0-9]{1,18}[kKmMgG%]?"
    r"|mode=[0-7]{1,4}|(uid|gid)=[0-9]{1,10}|"
)
BRIDGES = frozenset({"", "default", "bridge"})
NO_NETWORK = "none"
ROOT_WORDS = frozenset({"0", "root", "0:0", "root:root", "0:root", "root:0"})
ROOT_CAPABILITIES = frozenset(
    {"CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "NET_BIND_SERVICE", "SETGID", "SETUID"}
)
"""What package managers need, and nothing that reaches beyond the container's own files and processes."""


@dataclass(frozen=True, slots=True)
class Context:
    """For whom, and by which site's policy, a body is judged.

    ``in_gang``: it is to be a part of a job on several nodes. ``leased``: it is to have a GPU.
    ``version``: of the API that the request speaks, None where it does not say.
    """

    account: Account
    policy: Policy
    in_gang: bool = False
    leased: bool = False
    version: Version | None = None


Rule = Callable[[str, Json, Context], Json]
"""Field, value, context: the value to send, None to leave the field out; raises ``PermissionRefused``."""


def allowed(_name: str, value: Json, _context: Context) -> Json:
    return value


def elsewhere(_name: str, _value: Json, _context: Context) -> Json:
    """Judged or set as a whole by the judge."""
    return None


def unset(hint: str = "") -> Rule:
    def rule(name: str, value: Json, _context: Context) -> Json:
        if value:
            raise PermissionRefused(f"{name} may not be set by you", hint=hint)

    return rule


def null(name: str, value: Json, _context: Context) -> Json:
    """For lists whose emptiness says more than their absence."""
    if value is not None:
        raise PermissionRefused(
            f"{name} may not be set by you", hint="what the engine hides in /proc stays hidden"
        )


def one_of(*words: str, hint: str = "") -> Rule:
    def rule(name: str, value: Json, _context: Context) -> Json:
        if value is not None and value not in words:
            raise PermissionRefused(f"{name} {shown(str(value))} is not allowed for you", hint=hint)
        return value

    return rule


def at_most(most: int, hint: str) -> Rule:
    def rule(name: str, value: Json, _context: Context) -> Json:
        if value is not None and not (isinstance(value, int) and value <= most):
            raise PermissionRefused(f"{name} above {most} is not allowed for you", hint=hint)
        return value

    return rule


# --- who it runs as ------------------------------------------------------------------------------------


def is_root_inside(user: Json, context: Context) -> bool:
    """Whether it asks to be root though the caller is somebody else."""
    return user in ROOT_WORDS and context.account.caller.uid != 0


def user(name: str, value: Json, context: Context) -> Json:
    caller = context.account.caller
    own = [
        f"{uid}{gid}"
        for uid in (caller.uid, caller.name)
        for gid in ("", f":{caller.gid}", f":{caller.name}")
    ]
    if is_root_inside(value, context):
        return _root_inside(context)
    if value and value not in own:
        raise PermissionRefused(
            f"{name} {shown(str(value))} is not you", hint=f"containers run as uid {caller.uid}; leave it out"
        )
    return None


def _root_inside(context: Context) -> None:
    if not context.policy.root_inside:
        raise PermissionRefused(
            "root inside a container would be root on this machine",
            hint=f"containers run as uid {context.account.caller.uid}; leave --user out",
        )
    if context.leased:
        raise PermissionRefused(
            "no container that is root inside has a GPU: it could stop others' work there",
            hint="install as root without a GPU, and run the result as yourself",
        )


def exec_user(name: str, value: Json, context: Context) -> Json:
    """As the container's own user, whoever that is."""
    if is_root_inside(value, context):
        raise PermissionRefused(
            f"{name} {shown(str(value))} is not you", hint="a program joins as whom the container runs"
        )
    return user(name, value, context)


def groups(name: str, value: Json, context: Context) -> Json:
    own = {str(group) for group in (context.account.caller.gid, *context.account.groups)}
    foreign = [group for group in strings({name: value}, name) if group not in own]
    if foreign:
        raise PermissionRefused(
            f"{name} {shown(foreign[0])} is not a group of yours", hint="your own groups are always there"
        )
    return None


def cap_drop(name: str, value: Json, _context: Context) -> Json:
    """All are dropped anyway."""
    words(name, value)


def cap_add(name: str, value: Json, context: Context) -> Json:
    policy = context.policy
    given = policy.capabilities + (tuple(ROOT_CAPABILITIES) if policy.root_inside else ())
    for capability in capabilities(name, value):
        if capability not in given:
            hint = "debuggers work on your own programs without it" if capability == "SYS_PTRACE" else ""
            raise PermissionRefused(
                f"the capability {shown(capability)} is not for you",
                hint=hint or "leave it out: your programs have what you may do on the machine",
            )
    return None


def capabilities(name: str, value: Json) -> frozenset[str]:
    return frozenset(word.upper().removeprefix("CAP_") for word in words(name, value))


def words(name: str, value: Json) -> list[str]:
    """A list of strings, or one string for a list of one."""
    return [value] if isinstance(value, str) and value else strings({name: value}, name)


def security(name: str, value: Json, context: Context) -> Json:
    for option in strings({name: value}, name):
        if option in NO_NEW_PRIVILEGES:
            continue
        if option not in UNCONFINED_SECCOMP:
            raise PermissionRefused(
                f"{name} {shown(option)} is not allowed for you", hint="leave it out: the engine's own hold"
            )
        if not context.policy.unconfined_seccomp:
            raise PermissionRefused(
                f"{name} {shown(option)} is not allowed for you",
                hint="leave it out: gdb and strace work on your own programs all the same",
            )
    return None


# --- what it sees of the machine -----------------------------------------------------------------------


def ipc(name: str, value: Json, context: Context) -> Json:
    if value == "host" and context.policy.host_ipc:
        return value
    if value not in {None, "", "private", "shareable", "none"}:
        raise PermissionRefused(
            f"{name} {shown(str(value))} is not allowed for you",
            hint="--shm-size 8g gives more shared memory",
        )
    return value


def devices(name: str, value: Json, context: Context) -> Json:
    judged = [_device(each, context) for each in objects({name: value}, name)]
    return judged if value is not None else None


def _device(device: Body, context: Context) -> Body:
    path, inside = text(device, "PathOnHost"), text(device, "PathInContainer")
    if not may_be_passed(path) or not any(_matches(path, each) for each in context.policy.devices):
        given = ", ".join(context.policy.devices) or "none"
        raise PermissionRefused(
            f"the device {shown(path)} is not for you",
            hint=f"GPUs come by a lease: --gpus 1; devices given here: {given}",
        )
    if inside not in {"", path}:
        raise PermissionRefused(
            f"the device {path} has its own name inside too", hint=f"write --device {path}"
        )
    return {"PathOnHost": path, "PathInContainer": path, "CgroupPermissions": "rw"}


def _matches(path: str, pattern: str) -> bool:
    return re.fullmatch("[^/]*".join(map(re.escape, pattern.split("*"))), path) is not None


def sysctls(name: str, value: Json, context: Context) -> Json:
    for parameter in section({name: value}, name):
        if not any(_matches(parameter, each) for each in context.policy.sysctls):
            given = ", ".join(context.policy.sysctls) or "none"
            raise PermissionRefused(
                f"the kernel parameter {shown(parameter)} is not yours to set",
                hint=f"those that are: {given}",
            )
    return value


def tmpfs(name: str, value: Json, _context: Context) -> Json:
    for options in section({name: value}, name).values():
        for option in (options or "").split(","):
            if not TMPFS_OPTION.fullmatch(option):
                raise PermissionRefused(
                    f"the tmpfs option {shown(option)} is not allowed for you",
                    hint="size=, mode=, uid=, gid=, ro and exec are",
                )
    return value


def ulimits(name: str, value: Json, _context: Context) -> Json:
    for each in objects({name: value}, name):
        if text(each, "Name") in PRIORITY_ULIMITS:
            raise PermissionRefused(
                f"the limit {text(each, 'Name')} would let programs go before everybody else's",
                hint="leave it out; memlock, nofile, stack and the others are yours to set",
            )
    return value


def oom_score(name: str, value: Json, _context: Context) -> Json:
    if value is not None and not (isinstance(value, int) and 0 <= value <= HIGHEST_OOM_SCORE):
        raise PermissionRefused(
            f"{name} below 0 is not allowed for you", hint="0 is what every container has"
        )
    return value


def stop_timeout(name: str, value: Json, _context: Context) -> Json:
    """The engine's own end waits for the longest of all containers, and for ever where one is below zero."""
    if value is not None and not (isinstance(value, int) and 0 <= value <= LONGEST_STOP_SECONDS):
        raise PermissionRefused(
            f"{name} {value} would hold up the engine's end, which waits for every container",
            hint=f"--stop-timeout {LONGEST_STOP_SECONDS} is the most",
        )
    return value


def image(name: str, value: Json, context: Context) -> Json:
    check_image(text({name: value}, name), context.policy)
    return value


def log(name: str, value: Json, _context: Context) -> Json:
    said = section({name: value}, name)
    if text(said, "Type") not in LOG_DRIVERS or set(section(said, "Config")) - LOG_OPTIONS:
        raise PermissionRefused(
            "this log driver or option is not allowed for you", hint="json-file and local are"
        )
    if not LOG_TAG.fullmatch(text(section(said, "Config"), "tag")):
        raise PermissionRefused(
            "this log tag is not allowed for you",
            hint="plain text, and names like {{.Name}} and {{.ID}}, are",
        )
    return value


def restart(name: str, value: Json, context: Context) -> Json:
    said = text(section({name: value}, name), "Name")
    if said and said not in context.policy.restart_policies:
        raise PermissionRefused(
            f"{name} {shown(said)} is not allowed for you",
            hint="gpushare submit --retries 3 runs it again, and waits for its GPU",
        )
    return value


# --- networks ------------------------------------------------------------------------------------------


def network_mode(name: str, value: Json, context: Context) -> Json:
    mode = text({name: value}, name)
    if ":" in mode:
        raise PermissionRefused(
            f"{name} {shown(mode)} is not allowed for you", hint="put both containers on one network"
        )
    check_network(mode, context)
    return value


def check_network(mode: str, context: Context) -> None:
    """Raise ``PermissionRefused`` where a container of the caller's may not be on such a network."""
    networks = context.policy.networks
    if mode == HOST_NETWORK:
        _check_host_network(context)
    elif mode in BRIDGES and Network.BRIDGE not in networks:
        raise PermissionRefused(
            "the bridge that all containers share is not for you",
            hint="docker network create mine, and --network mine; or --network none",
        )
    elif mode == NO_NETWORK and Network.NONE not in networks:
        raise PermissionRefused("containers without a network are not for you", hint="leave --network out")
    elif mode not in {*BRIDGES, NO_NETWORK} and Network.OWN not in networks:
        raise PermissionRefused("networks of your own are not for you", hint="leave --network out")


def _check_host_network(context: Context) -> None:
    if context.policy.host_network:
        return
    if not context.in_gang:
        raise PermissionRefused("the host's network is not for you", hint="publish ports with -p instead")
    check_gang_network(HOST_NETWORK, context.policy)


def check_gang_network(mode: str, policy: Policy) -> None:
    """Raise ``PermissionRefused`` where a part of a job on several nodes has no such network here."""
    if mode == HOST_NETWORK and not (policy.gangs_on_host_network or policy.host_network):
        raise PermissionRefused(
            "this node does not give its own network to jobs on several nodes",
            hint='its administrator may: [gate] host_network = "gangs"',
        )


def publish_all(name: str, value: Json, context: Context) -> Json:
    if value and context.policy.publish is not Publish.ANY:
        raise PermissionRefused(
            f"{name} would publish to other machines", hint="name the ports: -p 127.0.0.1::8888"
        )
    return value


def ports(name: str, value: Json, context: Context) -> Json:
    bound = section({name: value}, name)
    if bound and context.policy.publish is Publish.NEVER:
        raise PermissionRefused(
            "ports are not published here", hint="put both containers on one network, or use docker exec"
        )
    return {port: _bindings(bound, port, context) for port in bound} if value is not None else None


def _bindings(bound: Body, port: str, context: Context) -> list[Body]:
    bindings = [_binding(each, context) for each in objects(bound, port)]
    # The engine makes of no binding one to all addresses.
    if not bindings and context.policy.publish is Publish.LOOPBACK:
        return [{"HostIp": LOOPBACK, "HostPort": ""}]
    return bindings


def _binding(binding: Body, context: Context) -> Body:
    port, address, lowest = text(binding, "HostPort"), text(binding, "HostIp"), context.policy.lowest_port
    if not PORTS.fullmatch(port):
        raise PermissionRefused(f"{shown(port)} is no port", hint=f"choose one from {lowest} on")
    # Where one end of a range is zero, the engine may choose from all below the other.
    if port not in {"", "0"} and any(int(end) < lowest for end in port.split("-")):
        raise PermissionRefused(f"port {port} is not for you", hint=f"choose one from {lowest} on")
    if context.policy.publish is not Publish.LOOPBACK:
        return binding
    if address not in {"", LOOPBACK, "::1"}:
        raise PermissionRefused(
            f"ports are published on this machine only, not on {shown(address)}",
            hint="-p 127.0.0.1:8888:8888, and ssh -L from elsewhere",
        )
    return {**binding, "HostIp": address or LOOPBACK}


def ipam(name: str, value: Json, _context: Context) -> Json:
    said = section({name: value}, name)
    if text(said, "Driver") not in {"", "default"} or said.get("Config") or said.get("Options"):
        raise PermissionRefused(
            "the addresses of a network are not yours to choose", hint="leave them out: the engine finds some"
        )


def config_from(_name: str, value: Json, _context: Context) -> None:
    """Clients send it as an object with an empty name."""
    if isinstance(value, dict) and any(value.values()):
        raise PermissionRefused("ConfigFrom may not be set by you", hint="create a plain network")


# --- shares of the machine -----------------------------------------------------------------------------


def memory(name: str, value: Json, context: Context) -> Json:
    limit = context.policy.memory_limit_bytes
    if limit and value and not 0 <= value <= limit:
        raise PermissionRefused(
            f"{name} {value} is more than a container may have here",
            hint=f"--memory {limit >> 20}m is the most",
        )
    return value


def memory_swap(name: str, value: Json, context: Context) -> Json:
    limit = context.policy.memory_limit_bytes
    if limit and value and not 0 <= value <= 2 * limit:
        raise PermissionRefused(
            f"{name} {value} is more than a container may have here",
            hint=f"--memory-swap {2 * limit >> 20}m is the most",
        )
    return value


def pids(value: Json, policy: Policy) -> int:
    most = policy.pids_limit
    return min(value, most) if isinstance(value, int) and not isinstance(value, bool) and value > 0 else most


def checked_cpus(nano: int, quota: int, period: int, policy: Policy) -> None:
    """Raise ``PermissionRefused`` where either asks for more than the site's limit."""
    limit = policy.cpu_limit
    if limit and (nano > limit * 1e9 or (quota > 0 and quota > limit * period)):
        raise PermissionRefused(
            "these are more CPUs than a container may have here", hint=f"--cpus {limit:g} is the most"
        )


def whole(body: Mapping[str, Json], name: str) -> int:
    """A whole number, 0 where absent or null; raises ``RequestError`` for another type."""
    value = body.get(name)
    if value is None:
        return 0
    if not isinstance(value, int) or isinstance(value, bool):
        raise RequestError(f"{name} is not a whole number")
    return value
