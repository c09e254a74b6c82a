"""Judge single fields, and images: return the new value, or refuse the field. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase

from gpushared.config.gate_settings import may_be_passed
from gpushared.domain.model.errors import PermissionRefused, RequestError
from gpushared.domain.model.units import shown
from gpushared.gate.api.body import Body, Json, check_driver_capabilities, objects, section, strings, text
from gpushared.gate.api.field_kinds import Version
from gpushared.gate.api.site import SitePolicy
from gpushared.net.identity import Account

LOG_DRIVERS = frozenset({"", "json-file", "local", "journald", "none"})
LOG_OPTIONS = frozenset(
    {"max-size", "max-file", "compress", "mode", "max-buffer-size", "tag", "labels", "env"}
)
LOG_TAG = re.compile(
    r"(?:[^{}]|\{\{ ?\.(?:ID|FullID|Name|ImageName|ImageID|ImageFullID|DaemonName) ?\}\}){0,256}"
)
"""The engine runs a tag as a template, whose functions can ask for any amount of memory."""
JOURNALS = frozenset({"", "journald"})
"""These log drivers write, or as the engine's default may write, among the machine's own entries."""
JOURNAL_TAG = re.compile(r"(?:[/ .:|_-]|\{\{ ?\.[A-Za-z]+ ?\}\})*")
CONTAINER_ID = re.compile(r"\{\{ ?\.(?:Full)?ID ?\}\}")
ENTRY_FIELDS = frozenset({"labels", "env"})
"""The values of these log options become fields of an entry, such as the name of the program that wrote
it."""
TMPFS_OPTION = re.compile(
    r"rw|ro|exec|noexec|nosuid|nodev|noatime|relatime|(size|nr_blocks|nr_inodes)=[0-9]{1,18}[kKmMgG%]?"
    r"|mode=[0-7]{1,4}|(uid|gid)=[0-9]{1,10}|"
)
_DIGEST = re.compile(r"(.+@)?sha256:[0-9a-f]{64}")
_ID = re.compile(r"(sha256:)?[0-9a-f]{4,64}")
_TAG = re.compile(r"(?P<name>.+?)(:(?P<tag>[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}))?")
ANY_IMAGE = "*"


@dataclass(frozen=True, slots=True)
class Context:
    """Hold the caller and the site's policy by which a body is judged.

    ``in_gang``: the container will be a part of a job on several nodes. ``leased``: it will have a GPU.
    ``version``: the request's version of the API, None if the request does not give it.
    """

    account: Account
    policy: SitePolicy
    in_gang: bool = False
    leased: bool = False
    version: Version | None = None


Rule = Callable[[str, Json, Context], Json]
"""Field, value, context: return the value to send, None to leave the field out; raises
``PermissionRefused``."""


def allowed(_name: str, value: Json, _context: Context) -> Json:
    return value


def elsewhere(_name: str, _value: Json, _context: Context) -> Json:
    """Leave the field out: the judge judges, or sets, it as a whole."""
    return None


def unset(hint: str = "") -> Rule:
    def rule(name: str, value: Json, _context: Context) -> Json:
        if value:
            raise PermissionRefused(f"{name} may not be set by you", hint=hint)

    return rule


def null(name: str, value: Json, _context: Context) -> Json:
    """Allow only null, for lists whose emptiness says more than their absence."""
    if value is not None:
        raise PermissionRefused(
            f"{name} may not be set by you", hint="what the engine hides in /proc stays hidden"
        )


def one_of(*values: str, hint: str = "") -> Rule:
    def rule(name: str, value: Json, _context: Context) -> Json:
        if value is not None and value not in values:
            raise PermissionRefused(f"{name} {shown(str(value))} is not allowed for you", hint=hint)
        return value

    return rule


def at_most(most: int, hint: str) -> Rule:
    def rule(name: str, value: Json, _context: Context) -> Json:
        if value is not None and not (isinstance(value, int) and value <= most):
            raise PermissionRefused(f"{name} above {most} is not allowed for you", hint=hint)
        return value

    return rule


# --- devices, images, logs -----------------------------------------------------------------------------


def devices(name: str, value: Json, context: Context) -> Json:
    judged = [_device(each, context) for each in objects({name: value}, name)]
    return judged if value is not None else None


def _device(device: Body, context: Context) -> Body:
    path, inside = text(device, "PathOnHost"), text(device, "PathInContainer")
    if not may_be_passed(path) or not any(matches(path, each) for each in context.policy.devices):
        site_devices = ", ".join(context.policy.devices) or "none"
        raise PermissionRefused(
            f"the device {shown(path)} is not for you",
            hint=f"GPUs come by a lease: --gpus 1; devices given here: {site_devices}",
        )
    if inside not in {"", path}:
        raise PermissionRefused(
            f"the device {path} has its own name inside too", hint=f"write --device {path}"
        )
    return {"PathOnHost": path, "PathInContainer": path, "CgroupPermissions": "rw"}


def matches(path: str, pattern: str) -> bool:
    return re.fullmatch("[^/]*".join(map(re.escape, pattern.split("*"))), path) is not None


def tmpfs(_name: str, value: Json, _context: Context) -> Json:
    for options in (value or {}).values():
        for option in (options or "").split(","):
            if not TMPFS_OPTION.fullmatch(option):
                raise PermissionRefused(
                    f"the tmpfs option {shown(option)} is not allowed for you",
                    hint="size=, mode=, uid=, gid=, ro and exec are",
                )
    return value


def image(_name: str, value: Json, context: Context) -> Json:
    check_image(value or "", context.policy)
    return value


def env(_name: str, value: Json, context: Context) -> Json:
    if context.leased:
        check_driver_capabilities(value or [], context.policy.driver_capabilities)
    return value


def log(_name: str, value: Json, _context: Context) -> Json:
    driver = text(value or {}, "Type")
    options = section(value or {}, "Config")
    if driver not in LOG_DRIVERS or options.keys() - LOG_OPTIONS:
        raise PermissionRefused(
            "this log driver or option is not allowed for you", hint="json-file and local are"
        )
    if not LOG_TAG.fullmatch(text(options, "tag")):
        raise PermissionRefused(
            "this log tag is not allowed for you",
            hint="plain text, and names like {{.Name}} and {{.ID}}, are",
        )
    if driver in JOURNALS:
        _check_journal(options)
    return value


def _check_journal(options: Body) -> None:
    """Raise ``PermissionRefused`` if entries would bear another name than the container's.

    Any user may give a container, or an image of a registry, the name of a program of the machine.
    """
    if fields := sorted(options.keys() & ENTRY_FIELDS):
        raise PermissionRefused(
            f"the log option {fields[0]} could write into the machine's journal under any name",
            hint="--log-driver json-file has it",
        )
    tag = text(options, "tag")
    if tag and not (JOURNAL_TAG.fullmatch(tag) and CONTAINER_ID.search(tag)):
        raise PermissionRefused(
            f"the log tag {shown(tag)} names something else than the container in the machine's journal",
            hint="--log-opt tag={{.Name}}/{{.ID}} does, and --log-driver json-file takes any text",
        )


def restart(name: str, value: Json, context: Context) -> Json:
    policy = text(value or {}, "Name")
    if policy and policy not in context.policy.restart_policies:
        raise PermissionRefused(
            f"{name} {shown(policy)} is not allowed for you",
            hint="gpushare submit --retries 3 runs it again, and waits for its GPU",
        )
    return value


# --- memory, processes, CPUs ---------------------------------------------------------------------------


def memory(name: str, value: Json, context: Context) -> Json:
    limit, together = context.policy.memory_limit_bytes, context.policy.user_bounds.memory_bytes
    if together and value and value > together:
        raise PermissionRefused(
            f"{name} {value} is more than all containers of a user may have here",
            hint=f"--memory {min(limit or together, together) >> 20}m is the most",
        )
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


def pids(value: Json, policy: SitePolicy) -> int:
    together = policy.user_bounds.pids
    most = min(policy.pids_limit, together or policy.pids_limit)
    return min(value, most) if isinstance(value, int) and not isinstance(value, bool) and value > 0 else most


def most_cpus(policy: SitePolicy) -> float:
    """Return the number of CPUs that one container may have; 0 means no limit."""
    limit, together = policy.cpu_limit, policy.user_bounds.cpus
    return min(limit or together, together or limit)


def checked_cpus(nano: int, quota: int, period: int, policy: SitePolicy) -> None:
    """Raise ``PermissionRefused`` if either value asks for more than the site's limit."""
    most = most_cpus(policy)
    if most and (nano > most * 1e9 or (quota > 0 and quota > most * period)):
        whose = "a container" if most == policy.cpu_limit else "all containers of a user"
        raise PermissionRefused(
            f"these are more CPUs than {whose} may have here", hint=f"--cpus {most:g} is the most"
        )


def whole(body: Mapping[str, Json], name: str) -> int:
    """Return a whole number, 0 if absent or null; raises ``RequestError`` for another type."""
    value = body.get(name)
    if value is None:
        return 0
    if not isinstance(value, int) or isinstance(value, bool):
        raise RequestError(f"{name} is not a whole number")
    return value


# --- names of images -----------------------------------------------------------------------------------


def check_image(reference: str, policy: SitePolicy) -> None:
    """Raise ``PermissionRefused`` for an image that the site does not allow."""
    if policy.image_digest and not _DIGEST.fullmatch(reference):
        raise PermissionRefused(
            f"the image {shown(reference)} is named without its digest",
            hint="write NAME@sha256:..., as `docker images --digests` shows it",
        )
    if ANY_IMAGE in policy.images:
        return
    if _ID.fullmatch(reference):
        raise PermissionRefused(
            f"{shown(reference)} may be the id of any image", hint="write the image's name"
        )
    name, tagged = full_names(reference)
    if not any(fnmatchcase(name, pattern) or fnmatchcase(tagged, pattern) for pattern in policy.images):
        raise PermissionRefused(
            f"the image {shown(name)} is not allowed for you",
            hint=f"images here come from: {', '.join(policy.images) or 'nowhere'}",
        )


def pulled_from(description: Body) -> frozenset[str] | None:
    """Return the repositories from which an image came, by its inspect; None if the engine does not know.

    Engines that keep images in containerd give a digest to every tag, also of a built or loaded image; there
    an image's id is its digest. From version 29 on they keep each image's origin as ``Identity``.
    """
    if description.get("Identity"):
        pulls = objects(section(description, "Identity"), "Pull")
        return frozenset(full_names(text(pull, "Repository"))[0] for pull in pulls)
    named = [digest.partition("@") for digest in strings(description, "RepoDigests")]
    if any(digest == description.get("Id") for _, _, digest in named):
        return None
    return frozenset(full_names(name)[0] for name, _, _ in named)


def full_names(reference: str) -> tuple[str, str]:
    """Return the name of a repository as the engine completes it, and the same with its tag.

    https://pkg.go.dev/github.com/distribution/reference#ParseNormalizedNamed has the rules.
    """
    plain = reference.partition("@")[0]
    match = _TAG.fullmatch(plain)
    name = match["name"] if match else plain
    tag = (match["tag"] if match else "") or "latest"
    first, slash, rest = name.partition("/")
    if not slash or not ("." in first or ":" in first or first == "localhost" or first != first.lower()):
        first, rest = "docker.io", name
    if first in {"docker.io", "index.docker.io"}:
        first, rest = "docker.io", rest if "/" in rest else f"library/{rest}"
    return f"{first}/{rest}", f"{first}/{rest}:{tag}"
