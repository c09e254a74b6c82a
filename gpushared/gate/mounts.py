"""Mounts of confined callers. All become mount objects: for these the engine makes no missing directories."""

from __future__ import annotations

import posixpath
from collections.abc import Sequence
from dataclasses import replace

from gpushared.domain.errors import PermissionRefused
from gpushared.gate.accounts import Account, PathWish, resolve_as
from gpushared.gate.body import Body, check_keys, objects, section, strings
from gpushared.gate.policy.fields import BIND_OPTIONS, MOUNT, TMPFS_OPTIONS, VOLUME_OPTIONS
from gpushared.gate.policy.site import HOME, Policy

BIND_WORDS = frozenset({"rw", "ro", "nocopy", "private", "rprivate", "cached", "delegated", "consistent"})
PROPAGATIONS = frozenset({"", "private", "rprivate"})


def judge_mounts(host: Body) -> list[Body]:
    """The mount objects of a HostConfig, its binds among them. Raises ``PermissionRefused``."""
    return [*map(_of_bind, strings(host, "Binds")), *map(_of_mount, objects(host, "Mounts"))]


def volumes_of(mounts: Sequence[Body]) -> list[str]:
    """The named volumes among them."""
    return [mount["Source"] for mount in mounts if mount["Type"] == "volume" and mount.get("Source")]


async def resolve_binds(mounts: Sequence[Body], account: Account, policy: Policy) -> list[PathWish]:
    """Check the sources as the caller and put the resolved paths in their places; those paths."""
    binds = [mount for mount in mounts if mount["Type"] == "bind"]
    wishes = [PathWish(bind["Source"], write=not bind["ReadOnly"]) for bind in binds]
    resolved = await _usable(wishes, account, policy)
    for bind, wish in zip(binds, resolved, strict=True):
        bind["Source"] = wish.path
    return resolved


async def check_again(resolved: Sequence[PathWish], account: Account, policy: Policy) -> None:
    """Refuse a start where a path that was resolved at the create leads elsewhere by now.

    Its owner can put a link in the place of a directory at any time, and the engine would follow it as root.
    """
    for before, now in zip(resolved, await _usable(resolved, account, policy), strict=True):
        if before.path != now.path:
            raise PermissionRefused(
                f"{before.path} was no link when the container was created, and leads to {now.path} now",
                hint="create the container anew",
            )


async def _usable(wishes: Sequence[PathWish], account: Account, policy: Policy) -> list[PathWish]:
    """The same with all links resolved. Raises ``PermissionRefused`` for what may not be mounted."""
    if not wishes:
        return []
    prefixes = [account.home if prefix == HOME else prefix for prefix in policy.bind_prefixes]
    found = await resolve_as(account, wishes)
    for wish, one in zip(wishes, found, strict=True):
        if not any(_is_under(one.path, prefix) for prefix in prefixes):
            where = ", ".join(filter(None, prefixes)) or "nowhere, for you"
            raise PermissionRefused(f"{wish.path} may not be mounted", hint=f"mounts may come from: {where}")
        if one.trouble:
            raise PermissionRefused(
                f"{wish.path} cannot be mounted: {one.trouble}", hint="see `ls -ld` on it"
            )
    return [replace(wish, path=one.path) for wish, one in zip(wishes, found, strict=True)]


def _is_under(path: str, prefix: str) -> bool:
    clean = posixpath.normpath(prefix) if prefix else "/"
    return clean != "/" and (path == clean or path.startswith(clean + "/"))


def _of_bind(bind: str) -> Body:
    """``source:target[:options]``, or a lone target, which is an anonymous volume."""
    parts = bind.split(":")
    if len(parts) == 1:
        return {"Type": "volume", "Target": bind}
    source, target, options = (*parts, "")[:3]
    _check_printable(source)
    words = set(filter(None, options.split(",")))
    if len(parts) > 3 or words - BIND_WORDS:  # noqa: PLR2004 - source, target, options
        raise PermissionRefused(f"the mount {bind!r} has options that are not for you", hint="ro and rw are")
    mount: Body = {"Type": "volume", "Source": source, "Target": target, "ReadOnly": "ro" in words}
    if source.startswith("/"):
        mount["Type"] = "bind"
    elif "nocopy" in words:
        mount["VolumeOptions"] = {"NoCopy": True}
    return mount


def _of_mount(mount: Body) -> Body:
    _check_known(mount, MOUNT, "Mounts")
    judged: Body = {key: mount[key] for key in ("Type", "Source", "Target", "ReadOnly") if mount.get(key)}
    match mount.get("Type"):
        case "bind":
            _check_bind(mount)
            judged.setdefault("ReadOnly", False)
        case "volume":
            judged |= _volume_options(mount)
        case "tmpfs":
            options = section(mount, "TmpfsOptions")
            _check_known(options, TMPFS_OPTIONS - {"Options"}, "TmpfsOptions")
            judged |= {"TmpfsOptions": options} if options else {}
        case kind:
            raise PermissionRefused(f"mounts of type {kind!r} are not for you")
    return judged


def _check_bind(mount: Body) -> None:
    options = section(mount, "BindOptions")
    _check_known(options, BIND_OPTIONS, "BindOptions")
    if not isinstance(mount.get("Source"), str) or not mount["Source"].startswith("/"):
        raise PermissionRefused("the source of a bind mount is no absolute path")
    _check_printable(mount["Source"])
    # Compose always says CreateMountpoint; the source must be there anyway.
    if (options.get("Propagation") or "") not in PROPAGATIONS:
        raise PermissionRefused("mounts of yours are always private", hint="leave the propagation out")


def _check_printable(source: str) -> None:
    if not source.isprintable():
        raise PermissionRefused(f"{source!r} is no path that can be mounted", hint="rename it")


def _volume_options(mount: Body) -> Body:
    options = section(mount, "VolumeOptions")
    _check_known(options, VOLUME_OPTIONS, "VolumeOptions")
    if any(section(options, "DriverConfig").values()) or options.get("Subpath"):
        raise PermissionRefused("volumes of yours have no driver options", hint="mount a directory of yours")
    if not isinstance(mount.get("Source") or "", str):
        raise PermissionRefused("the source of a volume mount is no name")
    return {"VolumeOptions": {key: options[key] for key in ("NoCopy", "Labels") if options.get(key)}}


def _check_known(body: Body, known: frozenset[str], where: str) -> None:
    check_keys(body, known, f"{where}.")
    unknown = sorted(body.keys() - known)
    if unknown:
        raise PermissionRefused(f"{where}.{unknown[0]} may not be set by you")
