"""Read the machine, MPS, NVIDIA's toolkit and the engine; no part that hangs holds up the others."""

from __future__ import annotations

import asyncio
import grp
import os
import re
import stat
import subprocess
import threading
import tomllib
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import TypeVar

import psutil

from gpushared.daemon.troubles import answer_with
from gpushared.doctor.gpu_checks import DEFAULT_PIPE
from gpushared.doctor.machine_facts import (
    Directory,
    EngineReport,
    Groups,
    HostFacts,
    MpsProgram,
    MpsReport,
    NvidiaSpecs,
    SocketFile,
    Toolkit,
    Unit,
    Unread,
)
from gpushared.domain.model.errors import GpushareError, Unavailable
from gpushared.engine.docker_engine import engine_facts, find_program, nvidia_specs, spec_dirs
from gpushared.engine.workers import Connector

T = TypeVar("T")
READ_SECONDS = 8.0
INIT_PID_NAMESPACE = "pid:[4026531836]"
"""The number is ``PROC_PID_INIT_INO``, fixed in the kernel's include/linux/proc_ns.h."""
NEEDED_NODES = ("/dev/nvidiactl", "/dev/nvidia-uvm")
NO_LIMIT_BYTES = 2**60
"""cgroup v1 writes no limit as the largest number of whole pages."""
PROGRAM_SECONDS = 4.0
OTHERS_ENTER = 0o001
MPS_PROGRAM = "nvidia-cuda-mps-control"
TOOLKIT_PROGRAM = "nvidia-ctk"
TOOLKIT_CONFIG = Path("/etc/nvidia-container-runtime/config.toml")
ENV_SWITCH = "accept-nvidia-visible-devices-envvar-when-unprivileged"
MOST_PROGRAM_BYTES = 32 * 1024 * 1024
ENGINE_SECONDS = 6.0

_VERSION = re.compile(rb"\0(\d{3,4}\.\d{2,3}(?:\.\d{2,3})?)\0")
_TOOLKIT_VERSION = re.compile(r"version (\d+\.\d+\.\d+\S*)")
_LIBRARY = re.compile(r"lib(?:cuda|nvidia-ml)\.so\.(\d{3,4}\.\d+(?:\.\d+)?)")
_UUID = re.compile(r"(?:GPU|MIG)-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_SERVES_MANY = b"multiuser-server"


class Readers:
    """Read each part on a daemon thread, so that a hanging part holds up neither others nor the exit.

    A part whose earlier reading still hangs is not read again until that is back, so that there is never more
    than one thread for a part.
    """

    def __init__(self, *, timeout_seconds: float = READ_SECONDS) -> None:
        self._timeout_seconds = timeout_seconds
        self._threads: dict[str, threading.Thread] = {}

    async def read(self, part: str, work: Callable[[], T]) -> T | Unread:
        """Return the result of ``work``; errors of the machine become ``Unread``."""
        earlier = self._threads.get(part)
        if earlier is not None and earlier.is_alive():
            return Unread("an earlier look has not come back yet", "`dmesg` may tell what hangs")
        answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        thread = threading.Thread(target=answer_with, args=(work, answer), name=f"doctor {part}", daemon=True)
        self._threads[part] = thread
        thread.start()
        try:
            async with asyncio.timeout(self._timeout_seconds):
                return await answer
        except TimeoutError:
            return Unread(f"no answer within {self._timeout_seconds:g} s", "`dmesg` may tell what hangs")
        except GpushareError as error:
            return Unread(error.message, error.hint)
        except OSError as error:
            return Unread(_reason(error))
        except ValueError as error:
            return Unread(f"something is written in an unknown way: {error}")


def _reason(error: OSError) -> str:
    reason = error.strerror or str(error)
    return f"{error.filename}: {reason}" if error.filename else reason


def read_host(root: Path = Path("/")) -> HostFacts:
    """Read the machine. ``root`` is the top of its file systems; another one than ``/`` is for tests."""
    return HostFacts(
        kernel=os.uname().release,
        cgroup_version=2 if (root / "sys/fs/cgroup/cgroup.controllers").exists() else 1,
        init_pid_namespace=str((root / "proc/self/ns/pid").readlink()) == INIT_PID_NAMESPACE,
        selinux_enforces=_text(root / "sys/fs/selinux/enforce") == "1",
        memory_limit_bytes=_memory_limit(root),
        persistence_daemon=(root / "run/nvidia-persistenced/socket").exists(),
        missing_device_nodes=tuple(node for node in NEEDED_NODES if not _under(root, node).exists()),
        missing_char_links=tuple(_missing_char_links(root)),
    )


def read_groups(names: Collection[str], passwd: Path = Path("/etc/passwd")) -> Groups:
    """Return the members by the name services, and the users whose first group it is in ``passwd``.

    The user root is left out.
    """
    return Groups({name: _members(name, passwd) for name in names})


def read_unit(environ: Mapping[str, str], root: Path = Path("/")) -> Unit | None:
    """Return the unit whose main process this is, or None outside systemd. This asks ``systemctl``."""
    if "INVOCATION_ID" not in environ:
        return None
    names = {Path(path).name for _, path in _own_cgroups(root)}
    for name in sorted(name for name in names if name.endswith(".service")):
        properties = _properties(name)
        if properties.get("MainPID") == str(os.getpid()):
            return Unit(name, properties["KillMode"], properties["RuntimeDirectoryPreserve"])
    return None


def read_socket(path: Path) -> SocketFile:
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        return SocketFile(str(path), is_socket=False)
    closed = (parent for parent in reversed(path.parents) if not parent.stat().st_mode & OTHERS_ENTER)
    first = next(closed, None)
    return SocketFile(str(path), stat.S_ISSOCK(mode), stat.S_IMODE(mode), str(first) if first else "")


def read_directory(path: Path) -> Directory:
    """Describe a directory; its free space is the part that is left for users other than root."""
    figures = os.statvfs(path)
    return Directory(
        path=str(path),
        file_system=file_system(path),
        free_bytes=figures.f_bavail * figures.f_frsize,
        free_inodes=figures.f_favail if figures.f_files else None,
        writable=os.access(path, os.W_OK | os.X_OK),
    )


def file_system(path: Path) -> str:
    """Return the type of a path's file system, such as ``tmpfs``; empty if nothing tells the type."""
    types = {Path(part.mountpoint): part.fstype for part in psutil.disk_partitions(all=True)}
    resolved = path.resolve()
    return next((types[parent] for parent in (resolved, *resolved.parents) if parent in types), "")


def program_output(*command: str) -> str:
    """Return a program's output. Raises ``OSError`` if the program is missing or takes too long."""
    try:
        result = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=PROGRAM_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise TimeoutError(0, f"{command[0]} did not end within {PROGRAM_SECONDS:g} s") from None
    return result.stdout


def _members(name: str, passwd: Path) -> tuple[str, ...]:
    try:
        group = grp.getgrnam(name)
    except KeyError:
        return ()
    rows = (line.split(":") for line in passwd.read_text(errors="replace").splitlines())
    first = {row[0] for row in rows if len(row) > 3 and row[3] == str(group.gr_gid)}  # noqa: PLR2004 - passwd(5)
    return tuple(sorted((first | set(group.gr_mem)) - {"root"}))


def _properties(unit: str) -> dict[str, str]:
    properties = "--property=MainPID,KillMode,RuntimeDirectoryPreserve"
    lines = program_output("systemctl", "show", properties, unit).splitlines()
    return dict(line.split("=", 1) for line in lines if "=" in line)


def _missing_char_links(root: Path) -> Iterator[str]:
    """Return the nodes without a link by which systemd looks devices up: ``/dev/char/<major>:<minor>``."""
    for node in sorted((root / "dev").glob("nvidia*")):
        about = node.stat()
        if stat.S_ISCHR(about.st_mode):
            link = f"{os.major(about.st_rdev)}:{os.minor(about.st_rdev)}"
            if not (root / "dev/char" / link).exists():
                yield f"/dev/{node.name}"


def _memory_limit(root: Path) -> int | None:
    """Return the tightest limit of this process's cgroup and those above it."""
    limits = [limit for file in _limit_files(root) if (limit := _number(file)) is not None]
    return min(limits, default=None)


def _limit_files(root: Path) -> Iterator[Path]:
    for controllers, path in _own_cgroups(root):
        if not controllers:
            home, name = root / "sys/fs/cgroup", "memory.max"
        elif "memory" in controllers.split(","):
            home, name = root / "sys/fs/cgroup/memory", "memory.limit_in_bytes"
        else:
            continue
        own = _under(home, path)
        yield from (directory / name for directory in (own, *own.parents) if directory.is_relative_to(home))


def _own_cgroups(root: Path) -> Iterator[tuple[str, str]]:
    """Yield controllers (none for cgroup v2) and path of each line, see cgroups(7)."""
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        yield controllers, path


def _number(file: Path) -> int | None:
    text = _text(file)
    return int(text) if text.isdecimal() and int(text) < NO_LIMIT_BYTES else None


def _text(file: Path) -> str:
    """Return a file's text; empty if there is no such file."""
    try:
        return file.read_text().strip()
    except (FileNotFoundError, NotADirectoryError):
        return ""


def _under(root: Path, path: str) -> Path:
    return root / path.lstrip("/")


def read_mps(binary: str, home: Path, *, enabled: bool) -> MpsReport:
    """Read MPS. ``binary``: the configured program, or an empty text; ``home``: our own daemons' place."""
    program, pipe = Path(binary or find_program(MPS_PROGRAM)), Path(DEFAULT_PIPE)
    return MpsReport(
        enabled=enabled,
        program=read_program(program) if program.is_file() else None,
        default_pipe=pipe.exists(),
        default_pipe_answers=_is_listened_on(pipe / "control"),
        foreign_pids=tuple(_foreign_pids(home)),
    )


def read_program(path: Path) -> MpsProgram:
    """Read the control daemon's file; running it to ask would reach for a daemon instead."""
    with path.open("rb") as file:
        content = file.read(MOST_PROGRAM_BYTES)
    version = _VERSION.search(content)
    return MpsProgram(str(path), version[1].decode() if version else "", _SERVES_MANY in content)


def read_toolkit(config: Path = TOOLKIT_CONFIG) -> Toolkit | None:
    """Read the toolkit; None if neither its program nor its configuration is there."""
    program = find_program(TOOLKIT_PROGRAM)
    if not program and not config.exists():
        return None
    version = _TOOLKIT_VERSION.search(program_output(program, "--version")) if program else None
    return Toolkit(version[1] if version else "", _env_switch(config))


def read_engine(socket: str) -> EngineReport:
    """Read the engine. Raises ``EngineUnavailable`` and ``TimedOut``."""
    connector = Connector(socket, ENGINE_SECONDS)
    with connector.translated("describe itself"), connector.open() as client:
        version, info = client.version(), client.info()
    facts = engine_facts(version, info, simulated_gpus=False)
    dirs = spec_dirs(info)
    return EngineReport(
        version=facts.version,
        api_version=facts.api_version,
        gpu_mechanism=facts.gpu_mechanism,
        cgroup_driver=str(info.get("CgroupDriver") or ""),
        default_runtime=str(info.get("DefaultRuntime") or ""),
        cdi_dirs=tuple(map(str, dirs)),
        nvidia_specs=read_specs(dirs),
        authorization_plugins=tuple((info.get("Plugins") or {}).get("Authorization") or ()),
        warnings=tuple(info.get("Warnings") or ()),
        socket_mode=Path(connector.address).stat().st_mode & 0o777,
    )


def read_specs(dirs: tuple[Path, ...]) -> NvidiaSpecs:
    texts = nvidia_specs(dirs)
    return NvidiaSpecs(
        files=tuple(map(str, texts)),
        driver_versions=frozenset(v for text in texts.values() for v in _LIBRARY.findall(text)),
        uuids=frozenset(uuid for text in texts.values() for uuid in _UUID.findall(text)),
    )


def _env_switch(config: Path) -> bool:
    """Return the toolkit's switch; accepting the variable is the toolkit's default."""
    try:
        tree = tomllib.loads(config.read_text())
    except FileNotFoundError:
        return True
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise Unavailable(f"{config} cannot be read: {error}", hint="`nvidia-ctk config` shows it") from error
    return bool(tree.get(ENV_SWITCH, True))


def _is_listened_on(path: Path) -> bool:
    """Look in the kernel's table, because connecting to a control daemon keeps it from others."""
    rows = Path("/proc/net/unix").read_text(errors="replace").splitlines()
    return any(row.endswith(f" {path}") for row in rows)


def _foreign_pids(home: Path) -> list[int]:
    """Return the control daemons whose pipe directory is not below ``home``."""
    pids = []
    for process in psutil.process_iter():
        try:
            if process.name().startswith(MPS_PROGRAM[:15]) and _is_control(process):
                pipe = process.environ().get("CUDA_MPS_PIPE_DIRECTORY", DEFAULT_PIPE)
                if not Path(pipe).is_relative_to(home):
                    pids.append(process.pid)
        except psutil.Error:
            continue  # the process ended, or is in a place that we may not see
    return sorted(pids)


def _is_control(process: psutil.Process) -> bool:
    """Return True for a control daemon, but not for a server, nor for a command that somebody is typing."""
    argv = process.cmdline()
    return bool(argv) and Path(argv[0]).name == MPS_PROGRAM and any(w.startswith("-") for w in argv[1:])
