"""Read MPS, NVIDIA's toolkit and the Docker engine. This blocks: for ``Readers``."""

from __future__ import annotations

import os
import re
import shutil
import tomllib
from pathlib import Path

import psutil

from gpushared.doctor.facts import EngineReport, MpsProgram, MpsReport, NvidiaSpecs, Toolkit
from gpushared.doctor.gpu_checks import DEFAULT_PIPE
from gpushared.doctor.read_host import program_output
from gpushared.domain.model.errors import Unavailable
from gpushared.engine.connection import Connector
from gpushared.engine.probe import engine_facts, nvidia_specs, spec_dirs

MPS_PROGRAM = "nvidia-cuda-mps-control"
TOOLKIT_PROGRAM = "nvidia-ctk"
TOOLKIT_CONFIG = Path("/etc/nvidia-container-runtime/config.toml")
ENV_SWITCH = "accept-nvidia-visible-devices-envvar-when-unprivileged"
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
MOST_PROGRAM_BYTES = 32 * 1024 * 1024
ENGINE_SECONDS = 6.0

_VERSION = re.compile(rb"\0(\d{3,4}\.\d{2,3}(?:\.\d{2,3})?)\0")
_TOOLKIT_VERSION = re.compile(r"version (\d+\.\d+\.\d+\S*)")
_LIBRARY = re.compile(r"lib(?:cuda|nvidia-ml)\.so\.(\d{3,4}\.\d+(?:\.\d+)?)")
_UUID = re.compile(r"(?:GPU|MIG)-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_SERVES_MANY = b"multiuser-server"


def read_mps(binary: str, home: Path, *, wanted: bool) -> MpsReport:
    """Read MPS. ``binary``: the configured program, or an empty text; ``home``: our own daemons' place."""
    found = binary or find_program(MPS_PROGRAM)
    pipe = Path(DEFAULT_PIPE)
    return MpsReport(
        wanted=wanted,
        program=read_program(Path(found)) if found and Path(found).is_file() else None,
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
        socket_mode=Path(connector.place).stat().st_mode & 0o777,
    )


def read_specs(dirs: tuple[Path, ...]) -> NvidiaSpecs:
    texts = nvidia_specs(dirs)
    return NvidiaSpecs(
        files=tuple(map(str, texts)),
        driver_versions=frozenset(v for text in texts.values() for v in _LIBRARY.findall(text)),
        uuids=frozenset(uuid for text in texts.values() for uuid in _UUID.findall(text)),
    )


def find_program(name: str) -> str:
    """Return a program's path, as root's shell and the Docker engine would find it; empty without one."""
    return shutil.which(name, path=f"{os.environ.get('PATH', '')}:{SYSTEM_PATH}") or ""


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
    found = []
    for process in psutil.process_iter():
        try:
            if process.name().startswith(MPS_PROGRAM[:15]) and _is_control(process):
                pipe = process.environ().get("CUDA_MPS_PIPE_DIRECTORY", DEFAULT_PIPE)
                if not Path(pipe).is_relative_to(home):
                    found.append(process.pid)
        except psutil.Error:
            continue  # the process ended, or is in a place that we may not see
    return sorted(found)


def _is_control(process: psutil.Process) -> bool:
    """Return True for a control daemon, but not for a server, nor for a command that somebody is typing."""
    words = process.cmdline()
    return bool(words) and Path(words[0]).name == MPS_PROGRAM and any(w.startswith("-") for w in words[1:])
