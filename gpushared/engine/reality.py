"""Read a container's reality from the kernel: its first process, its mounts, its memory.

Sources: proc(5), namespaces(7), capabilities(7). The process is found by the engine's inspect, and checked
again at the end: if another process has taken the PID, or the process has left the container's cgroup, the
whole look is void. This reads files and nothing that waits, least of all file systems that users mounted into
the container. It takes about 2 ms: call it off the event loop.
"""

from __future__ import annotations

import contextlib
import os
import posixpath
import re
import stat
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from gpushared.domain.model.errors import EngineUnavailable
from gpushared.domain.model.gpu import GpuId
from gpushared.domain.model.lease import ContainerId
from gpushared.engine.processes import STAT_BYTES, containers_of_cgroup, start_ticks_of_stat
from gpushared.engine.workers import unknown_words
from gpushared.mountinfo import Mount, is_under, parse_line
from gpushared.ports import DeviceNode, DeviceRule, EngineDescription, Exposure, MachineDevices, Reality

PROC = Path("/proc")
CGROUPS = Path("/sys/fs/cgroup")
OWN = "self"
"""This daemon has the machine's namespaces, except perhaps for mounts."""
NAMESPACES = ("pid", "ipc", "net", "uts", "mnt", "user", "cgroup")
NAMED_BY_ENGINE = {
    "PidMode": "pid",
    "IpcMode": "ipc",
    "NetworkMode": "net",
    "UTSMode": "uts",
    "UsernsMode": "user",
    "CgroupnsMode": "cgroup",
}
NVIDIA_MAJOR = 195
"""The number is assigned for good (Linux's Documentation/admin-guide/devices.txt); NVIDIA's other drivers get
their numbers at load."""
GPU_DRIVERS = re.compile(r"nvidia.*|kfd|drm")
DRIVER_OF_DISPLAYS = "drm"
MOST_NODES = 4096
DEEPEST = 16
"""Folders may be nested this deep; users can make any number of them in a volume."""
DEV = "/dev"
USERS_OWN = frozenset(f"{DEV}/{name}" for name in ("shm", "mqueue", "pts"))
"""No device can be made in these mounts, which programs may fill."""
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
_RULE = re.compile(r"([abc]) (\d+|\*):(\d+|\*) ([rwm]+)")
_CAPABILITIES = ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")
DEVICES = "devtmpfs"
_USED_FILES = ("memory.current", "memory.usage_in_bytes")
"""The first file is that of v2, the second that of v1."""
_FILE_PAGES = (
    frozenset({"active_file", "inactive_file"}),
    frozenset({"total_active_file", "total_inactive_file"}),
)
"""These are pages of files, which the kernel takes back before it ends any process; tmpfs has no such
pages."""


def pid_of(inspected: Mapping[str, Any]) -> int:
    """Return the PID of the container's first process, 0 if the container does not run."""
    return int(inspected["State"]["Pid"])


def read(inspected: Mapping[str, Any], barred: Sequence[str], proc: Path = PROC) -> Reality | None:
    """Return the container that the engine's inspect describes; None if it has ended or has yet to begin.

    ``barred`` holds paths of the machine that no container may see. Raises ``EngineUnavailable`` for an
    inspect in an unknown form, and if the kernel allows no look.
    """
    try:
        return _read(inspected, barred, proc)
    except (FileNotFoundError, ProcessLookupError, NotADirectoryError):
        return None
    except OSError as error:
        raise EngineUnavailable(f"a container cannot be looked at: {error}") from error
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise unknown_words("describes a container", error) from error


def _read(inspected: Mapping[str, Any], barred: Sequence[str], proc: Path) -> Reality | None:
    container, pid = ContainerId(inspected["Id"]), pid_of(inspected)
    own = proc / str(pid)
    if not pid:
        return None
    began, cgroups = _start_ticks(own), (own / "cgroup").read_text()
    status, mounts = _status(own), (own / "mountinfo").read_text()
    if container not in containers_of_cgroup(cgroups):
        return None
    reality = Reality(
        id=container,
        name=str(inspected["Name"]).removeprefix("/"),
        pid=pid,
        start_ticks=began,
        described=description_of(inspected),
        machine=machine(proc),
        uids=_numbers(status["Uid"]),
        gids=_numbers(status["Gid"]) | _numbers(status["Groups"]),
        capabilities=_all_capabilities(status),
        no_new_privileges=status["NoNewPrivs"] == "1",
        seccomp=status["Seccomp"] == "2",
        maps_users=(own / "uid_map").read_text().split() != (proc / "self/uid_map").read_text().split(),
        host_namespaces=_shared_namespaces(own, proc / OWN),
        nodes=tuple(_nodes(own, parse(mounts))),
        rules=_rules(cgroups, container),
        exposed=exposures(mounts, (proc / OWN / "mountinfo").read_text(), barred),
    )
    return reality if _start_ticks(own) == began else None


# --- the engine's report -------------------------------------------------------------------------------


def description_of(inspected: Mapping[str, Any]) -> EngineDescription:
    """Return the engine's report from ``GET /containers/<id>/json``."""
    config, host = inspected["Config"], inspected["HostConfig"]
    sources = [each.split(":")[0] for each in host.get("Binds") or ()]
    sources += [each["Source"] for each in host.get("Mounts") or () if each["Type"] == "bind"]
    return EngineDescription(
        labels=config.get("Labels") or {},
        mark=host.get("ContainerIDFile") or "",
        env=tuple(config.get("Env") or ()),
        privileged=bool(host.get("Privileged")),
        runtime=host.get("Runtime") or "",
        devices=tuple(each["PathOnHost"] for each in host.get("Devices") or ()),
        device_rules=tuple(host.get("DeviceCgroupRules") or ()),
        device_requests=tuple(name for each in host.get("DeviceRequests") or () for name in _requested(each)),
        host_namespaces=frozenset(
            name for field, name in NAMED_BY_ENGINE.items() if host.get(field) == "host"
        ),
        groups=frozenset(_groups(config, host)),
        seccomp=not any(each.startswith("seccomp") for each in host.get("SecurityOpt") or ()),
        binds=tuple(each for each in sources if each.startswith("/")),
    )


def _groups(config: Mapping[str, Any], host: Mapping[str, Any]) -> Iterator[int]:
    named = [str(config.get("User") or "").partition(":")[2], *(host.get("GroupAdd") or ())]
    return (int(each) for each in named if each.isdecimal())


def _requested(request: Mapping[str, Any]) -> list[str]:
    driver, ids = request.get("Driver") or "", request.get("DeviceIDs") or []
    if driver == "cdi":
        return list(ids)
    return [f"{driver}:{each}" for each in ids or [f"count {request.get('Count')}"]]


# --- the kernel's report -------------------------------------------------------------------------------


def machine(proc: Path = PROC) -> MachineDevices:
    """Return the GPU devices of this machine, by ``/proc/devices`` and ``/proc/driver/nvidia``."""
    characters = (proc / "devices").read_text().partition("Block devices:")[0]
    pairs = (line.split(None, 1) for line in characters.splitlines()[1:] if line.strip())
    majors = {int(number): name for number, name in pairs if GPU_DRIVERS.fullmatch(name.strip())}
    minors: dict[GpuId, int] = {}
    for path in (proc / "driver/nvidia/gpus").glob("*/information"):
        facts = dict(line.partition(":")[::2] for line in path.read_text().splitlines())
        uuid, minor = facts.get("GPU UUID", "").strip(), facts.get("Device Minor", "").strip()
        if minor.isdecimal():
            minors[GpuId(uuid)] = int(minor)
    return MachineDevices({NVIDIA_MAJOR: "nvidia", **majors}, minors)


def rules_of_list(text: str) -> tuple[DeviceRule, ...]:
    """Read the text of a ``devices.list`` of cgroup v1."""
    return tuple(
        DeviceRule(match[1], _number(match[2]), _number(match[3]), match[4])
        for match in map(_RULE.fullmatch, text.splitlines())
        if match
    )


def _rules(cgroups: str, container: ContainerId) -> tuple[DeviceRule, ...] | None:
    """Return the device rules; None with cgroup v2, whose program cannot be read back as rules.

    An engine may use v2 on a machine that has v1 too; the rules there are then not the container's.
    """
    for line in cgroups.splitlines():
        _, controllers, path = line.split(":", 2)
        if "devices" in controllers.split(",") and container in path:
            file = CGROUPS / "devices" / path.lstrip("/") / "devices.list"
            return rules_of_list(file.read_text()) if file.exists() else None
    return None


def without_devices(mounts: Sequence[Mount]) -> frozenset[str]:
    """Return the places in a container without working device nodes, and those that users may fill.

    A mount of a user's can wait for ever.
    """
    return USERS_OWN | {each.point for each in mounts if "nodev" in each.flags}


def _nodes(own: Path, mounts: Sequence[Mount]) -> Iterator[DeviceNode]:
    no_devices, mounted = without_devices(mounts), frozenset(each.point for each in mounts)
    if DEV in no_devices:
        return
    root = os.open(own / "root", os.O_RDONLY | os.O_DIRECTORY)
    try:
        descriptor = os.open("dev", _FOLDER, dir_fd=root)
        try:
            for path, status in islice(_files(descriptor, DEV, no_devices, mounted), MOST_NODES):
                if status is not None and stat.S_ISCHR(status.st_mode):
                    yield DeviceNode(path, os.major(status.st_rdev), os.minor(status.st_rdev))
        finally:
            os.close(descriptor)
    finally:
        os.close(root)


def _files(
    descriptor: int, path: str, no_devices: frozenset[str], mounted: frozenset[str]
) -> Iterator[tuple[str, os.stat_result | None]]:
    """Yield the entries of a folder and below it, with None for folders and for files that went away.

    This follows no links, and so stays below the container's root. Folders that are mounted there hold no
    devices of the runtime's, and perhaps more entries than can be looked through.
    """
    with os.scandir(descriptor) as entries:
        listed = [entry for entry in islice(entries, MOST_NODES) if f"{path}/{entry.name}" not in no_devices]
    folders = [entry.name for entry in listed if entry.is_dir(follow_symlinks=False)]
    for entry in listed:
        is_folder = entry.is_dir(follow_symlinks=False)
        yield f"{path}/{entry.name}", None if is_folder else _stat_of(entry.name, descriptor)
    if path.count("/") >= DEEPEST:
        return
    for name in folders:
        if f"{path}/{name}" in mounted:
            continue
        try:
            inner = os.open(name, _FOLDER, dir_fd=descriptor)
        except OSError:
            continue  # the folder was removed, or is no folder any more
        try:
            yield from _files(inner, f"{path}/{name}", no_devices, mounted)
        finally:
            os.close(inner)


def _stat_of(name: str, folder: int) -> os.stat_result | None:
    try:
        return os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return None


def _shared_namespaces(own: Path, machines: Path) -> frozenset[str]:
    def identity(process: Path, name: str) -> tuple[int, int]:
        status = (process / "ns" / name).stat()
        return status.st_dev, status.st_ino

    names = [name for name in NAMESPACES if (own / "ns" / name).exists()]
    return frozenset(name for name in names if identity(own, name) == identity(machines, name))


def _status(own: Path) -> dict[str, str]:
    pairs = (line.partition(":")[::2] for line in (own / "status").read_text().splitlines())
    return {name: value.strip() for name, value in pairs}


def _all_capabilities(status: Mapping[str, str]) -> int:
    bits = 0
    for name in _CAPABILITIES:
        bits |= int(status[name], 16)
    return bits


def _numbers(text: str) -> frozenset[int]:
    return frozenset(map(int, text.split()))


def _number(text: str) -> int | None:
    return None if text == "*" else int(text)


def _start_ticks(own: Path) -> int:
    with (own / "stat").open("rb") as file:
        return start_ticks_of_stat(file.read(STAT_BYTES).decode(errors="replace"))


def parse(text: str) -> list[Mount]:
    """Return the lines of a ``mountinfo``; lines in an unknown form are left out."""
    mounts = []
    for line in text.splitlines():
        with contextlib.suppress(ValueError):
            mounts.append(parse_line(line))
    return mounts


def exposures(container: str, machine: str, barred: Sequence[str]) -> tuple[Exposure, ...]:
    """Return the ``barred`` paths, or paths below them, that the container's mounts show.

    A path is given as the machine writes it. All devices of the machine are barred in any case.
    """
    inside, outside = parse(container), parse(machine)
    exposed = [Exposure(each.point, "/dev") for each in inside if each.kind == DEVICES]
    for path in barred:
        location = _location_of(path, outside)
        if location is None:
            continue
        device, root = location
        for each in inside:
            if each.device == device and is_under(root, each.root):
                exposed.append(Exposure(each.point, path))
            elif each.device == device and is_under(each.root, root):
                exposed.append(Exposure(each.point, posixpath.join(path, posixpath.relpath(each.root, root))))
    return tuple(dict.fromkeys(exposed))


def _location_of(path: str, machine: Sequence[Mount]) -> tuple[str, str] | None:
    """Return the file system of a path, and the place in it; of mounts on one place the last one counts."""
    around = [each for each in machine if is_under(path, each.point)]
    if not around:
        return None
    longest = max(len(each.point) for each in around)
    mount = [each for each in around if len(each.point) == longest][-1]
    return mount.device, posixpath.normpath(posixpath.join(mount.root, posixpath.relpath(path, mount.point)))


def memory_used(pid: int, container: ContainerId, *, proc: Path = PROC, cgroups: Path = CGROUPS) -> int:
    """Return the bytes that the kernel cannot take back; 0 if they cannot be read. This reads files.

    ``pid`` is any process of the container.
    """
    try:
        own, version = _cgroup_directory(pid, container, proc, cgroups)
        used = int((own / _USED_FILES[version]).read_text())
        stat = (line.split() for line in (own / "memory.stat").read_text().splitlines())
        return max(0, used - sum(int(amount) for name, amount in stat if name in _FILE_PAGES[version]))
    except (OSError, ValueError):
        return 0


def _cgroup_directory(pid: int, container: ContainerId, proc: Path, cgroups: Path) -> tuple[Path, int]:
    """Return the container's directory, and 0 for v2 or 1 for v1. Raises OSError, or ValueError without one.

    A process may be in a cgroup below, which a program in the container has made; the container's cgroup
    counts.
    """
    directories: dict[int, Path] = {}
    for line in (proc / str(pid) / "cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        parts = path.strip("/").split("/")
        at = next((at for at, part in enumerate(parts) if container in part), None)
        if at is not None and not controllers:
            directories[0] = cgroups.joinpath(*parts[: at + 1])
        elif at is not None and "memory" in controllers.split(","):
            directories[1] = cgroups.joinpath("memory", *parts[: at + 1])
    if not directories:
        raise ValueError(f"process {pid} is in no cgroup of {container}")
    version = max(directories)  # if v1 has the memory, v2 does not have it
    return directories[version], version
