"""Judge mounts of confined callers.

All mounts become mount objects, because for these the engine makes no missing directories.
"""

from __future__ import annotations

import posixpath
from collections.abc import Collection, Iterable, Sequence

from gpushared.domain.model.errors import PermissionRefused
from gpushared.gate.api.body import Body, check_keys, objects, section, strings
from gpushared.gate.api.fields import BIND_TABLE, MOUNT_TABLE, TMPFS_TABLE, VOLUME_TABLE
from gpushared.gate.mounts.held_mounts import HeldMount
from gpushared.net.identity import NeededPath

BIND_WORDS = frozenset({"rw", "ro", "nocopy", "private", "rprivate", "cached", "delegated", "consistent"})
LABEL_UNNAMED = "com.docker.volume.anonymous"
"""The engine sets this label on volumes that it names; from API version 1.42 on a prune takes only those."""
PROPAGATIONS = frozenset({"", "private", "rprivate"})


def judge_mounts(host: Body) -> list[Body]:
    """Return the mount objects of a HostConfig, its binds among them. Raises ``PermissionRefused``."""
    return [*map(_of_bind, strings(host, "Binds")), *map(_of_mount, objects(host, "Mounts"))]


def volumes_of(mounts: Sequence[Body]) -> list[str]:
    """Return the named volumes among the mounts."""
    return [mount["Source"] for mount in mounts if mount["Type"] == "volume" and mount.get("Source")]


def unnamed_volumes(host: Body, paths: Iterable[str]) -> list[Body]:
    """Return mount objects for the volumes of a body or an image on which nothing else is mounted.

    The engine makes the same volumes by itself, but without a label that names their owner.
    """
    mounted = {clean_path(mount["Target"]) for mount in objects(host, "Mounts")}
    mounted |= {clean_path(path) for path in section(host, "Tmpfs")} | {"/"}
    targets = sorted({clean_path(path) for path in paths if path.startswith("/")} - mounted)
    options: Body = {"Labels": {LABEL_UNNAMED: ""}}
    return [{"Type": "volume", "Target": target, "VolumeOptions": options} for target in targets]


def clean_path(path: str) -> str:
    """Return the path from the container's root, without dots and doubled slashes."""
    return "/" + posixpath.normpath(path).lstrip("/")


def wishes_of(mounts: Sequence[Body]) -> list[NeededPath]:
    """Return the files of the host among the mounts, as the caller wrote them."""
    return [NeededPath(bind["Source"], write=not bind["ReadOnly"]) for bind in _binds(mounts)]


def lead_to(mounts: Sequence[Body], pin: HeldMount) -> None:
    """Replace the mounts' sources by the files that the pin holds."""
    for number, bind in enumerate(_binds(mounts)):
        bind["Source"] = pin.source(number)


def _binds(mounts: Sequence[Body]) -> list[Body]:
    return [mount for mount in mounts if mount["Type"] == "bind"]


def _of_bind(bind: str) -> Body:
    """Read ``source:target[:options]``, or a lone target, which is an anonymous volume."""
    parts = bind.split(":")
    if len(parts) == 1:
        return {"Type": "volume", "Target": bind}
    source, target, options = (*parts, "")[:3]
    _check_printable(source)
    flags = set(filter(None, options.split(",")))
    if len(parts) > 3 or flags - BIND_WORDS:  # noqa: PLR2004 - source, target, options
        raise PermissionRefused(f"the mount {bind!r} has options that are not for you", hint="ro and rw are")
    mount: Body = {"Type": "volume", "Source": source, "Target": target, "ReadOnly": "ro" in flags}
    if source.startswith("/"):
        mount["Type"] = "bind"
    elif "nocopy" in flags:
        mount["VolumeOptions"] = {"NoCopy": True}
    return mount


def _of_mount(mount: Body) -> Body:
    _check_known(mount, MOUNT_TABLE.keys(), "Mounts")
    judged: Body = {key: mount[key] for key in ("Type", "Source", "Target", "ReadOnly") if mount.get(key)}
    match mount.get("Type"):
        case "bind":
            _check_bind(mount)
            judged.setdefault("ReadOnly", False)
        case "volume":
            judged |= _volume_options(mount)
        case "tmpfs":
            options = section(mount, "TmpfsOptions")
            _check_known(options, TMPFS_TABLE.keys() - {"Options"}, "TmpfsOptions")
            judged |= {"TmpfsOptions": options} if options else {}
        case kind:
            raise PermissionRefused(
                f"mounts of type {kind!r} are not for you", hint="bind, volume and tmpfs are"
            )
    return judged


def _check_bind(mount: Body) -> None:
    options = section(mount, "BindOptions")
    _check_known(options, BIND_TABLE.keys(), "BindOptions")
    if not isinstance(mount.get("Source"), str) or not mount["Source"].startswith("/"):
        raise PermissionRefused(
            "the source of a bind mount is no absolute path", hint="write the path from / on"
        )
    _check_printable(mount["Source"])
    # Compose always sets CreateMountpoint; the source must exist anyway.
    if (options.get("Propagation") or "") not in PROPAGATIONS:
        raise PermissionRefused("mounts of yours are always private", hint="leave the propagation out")


def _check_printable(source: str) -> None:
    if not source.isprintable():
        raise PermissionRefused(f"{source!r} is no path that can be mounted", hint="rename it")


def _volume_options(mount: Body) -> Body:
    options = section(mount, "VolumeOptions")
    _check_known(options, VOLUME_TABLE.keys(), "VolumeOptions")
    if any(section(options, "DriverConfig").values()) or options.get("Subpath"):
        raise PermissionRefused("volumes of yours have no driver options", hint="mount a directory of yours")
    if not isinstance(mount.get("Source") or "", str):
        raise PermissionRefused("the source of a volume mount is no name", hint="write a volume's name")
    return {"VolumeOptions": {key: options[key] for key in ("NoCopy", "Labels") if options.get(key)}}


def _check_known(body: Body, names: Collection[str], where: str) -> None:
    check_keys(body, names, f"{where}.")
    unknown = sorted(body.keys() - names)
    if unknown:
        raise PermissionRefused(f"{where}.{unknown[0]} may not be set by you", hint="leave it out")
