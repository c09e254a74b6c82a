"""Judge the user of a container's processes, and their rights. Pure."""

from __future__ import annotations

from gpushared.domain.model.errors import PermissionRefused
from gpushared.domain.model.units import shown
from gpushared.gate.api.body import Json, objects, text
from gpushared.gate.policy.field_rules import Context, matches

NO_NEW_PRIVILEGES = frozenset({"no-new-privileges", "no-new-privileges:true", "no-new-privileges=true"})
UNCONFINED_SECCOMP = frozenset({"seccomp=unconfined", "seccomp:unconfined"})
HIGHEST_OOM_SCORE = 1000
LONGEST_STOP_SECONDS = 3600
PRIORITY_ULIMITS = frozenset({"rtprio", "nice"})
ROOT_WORDS = frozenset({"0", "root", "0:0", "root:root", "0:root", "root:0"})
ROOT_CAPABILITIES = frozenset(
    {"CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "NET_BIND_SERVICE", "SETGID", "SETUID"}
)
"""Package managers need these capabilities, and none reaches beyond the container's own files and
processes."""


def is_root_inside(user: Json, context: Context) -> bool:
    """Return True if the user is root although the caller is not."""
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
    """Return the user of a program that joins a container: only the container's own user is allowed."""
    if is_root_inside(value, context):
        raise PermissionRefused(
            f"{name} {shown(str(value))} is not you", hint="a program joins as whom the container runs"
        )
    return user(name, value, context)


def groups(name: str, value: Json, context: Context) -> Json:
    own = {str(group) for group in (context.account.caller.gid, *context.account.groups)}
    foreign = [group for group in (value or []) if group not in own]
    if foreign:
        raise PermissionRefused(
            f"{name} {shown(foreign[0])} is not a group of yours", hint="your own groups are always there"
        )
    return None


def cap_add(_name: str, value: Json, context: Context) -> Json:
    policy = context.policy
    allowed = policy.capabilities + (tuple(ROOT_CAPABILITIES) if policy.root_inside else ())
    for capability in capabilities(value):
        if capability not in allowed:
            hint = "debuggers work on your own programs without it" if capability == "SYS_PTRACE" else ""
            raise PermissionRefused(
                f"the capability {shown(capability)} is not for you",
                hint=hint or "leave it out: your programs have what you may do on the machine",
            )
    return None


def capabilities(value: Json) -> frozenset[str]:
    """Return the capabilities of a list of words, or of one word."""
    names = [value] if isinstance(value, str) and value else value or []
    return frozenset(name.upper().removeprefix("CAP_") for name in names)


def security(name: str, value: Json, context: Context) -> Json:
    for option in value or []:
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


# --- the container's view of the machine ---------------------------------------------------------------


def ipc(name: str, value: Json, context: Context) -> Json:
    if value == "host" and context.policy.host_ipc:
        return value
    if value not in {None, "", "private", "shareable", "none"}:
        raise PermissionRefused(
            f"{name} {shown(str(value))} is not allowed for you",
            hint="--shm-size 8g gives more shared memory",
        )
    return value


def sysctls(_name: str, value: Json, context: Context) -> Json:
    for parameter in value or {}:
        if not any(matches(parameter, each) for each in context.policy.sysctls):
            allowed = ", ".join(context.policy.sysctls) or "none"
            raise PermissionRefused(
                f"the kernel parameter {shown(parameter)} is not yours to set",
                hint=f"those that are: {allowed}",
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
    """Limit the time: the engine's own end waits for the longest, and for ever for a negative one."""
    if value is not None and not (isinstance(value, int) and 0 <= value <= LONGEST_STOP_SECONDS):
        raise PermissionRefused(
            f"{name} {value} would hold up the engine's end, which waits for every container",
            hint=f"--stop-timeout {LONGEST_STOP_SECONDS} is the most",
        )
    return value
