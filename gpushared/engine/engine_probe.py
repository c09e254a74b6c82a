"""Find out the engine's abilities, from its answers and the machine. This reads files: off the event loop."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gpushared.domain.model.errors import EngineUnavailable
from gpushared.ports import CgroupDriver, DeviceMechanism, EngineFacts

NVIDIA_RUNTIME = "nvidia"
DEVICE_REQUEST_HOOK = "nvidia-container-runtime-hook"
"""The Docker engine offers ``--gpus`` if it finds this program on its path at start."""

# Specs are YAML or JSON; these two lines of them do not need a parser for both.
_NVIDIA_KIND = re.compile(
    r"""(?:^|[\s{,])["']?kind["']?\s*:\s*["']?nvidia\.com/gpu["']?\s*(?:[,}#]|$)""", re.MULTILINE
)
_UUID = r"(?:GPU|MIG)-[0-9a-f-]+"
_UUID_DEVICE = re.compile(rf"""["']?name["']?\s*:\s*["']?({_UUID})""")
_UUID_DISCOVERED = re.compile(rf"nvidia\.com/gpu=({_UUID})")
_SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def engine_facts(version: Mapping[str, Any], info: Mapping[str, Any], *, simulated_gpus: bool) -> EngineFacts:
    """Return the facts of ``GET /version`` and ``GET /info``.

    Engines list CDI directories only if CDI is switched on: it is by default since 28.2, and since 25.0 on
    request.
    """
    try:
        uuids = frozenset() if simulated_gpus else _nvidia_uuids(info)
        other = DeviceMechanism.PLAIN if simulated_gpus else _other_mechanism(info)
        return EngineFacts(
            version=version["Version"],
            api_version=version["ApiVersion"],
            lease_devices=bool(spec_dirs(info)),
            gpu_mechanism=DeviceMechanism.CDI if uuids else other,
            # Engines older than 20.10 know v1 only and do not say so.
            cgroup_version=int(info.get("CgroupVersion") or 1),
            cgroup_driver=_cgroup_driver(info),
            cdi_gpus=uuids,
            other_mechanism=other,
            nvidia_by_default=_nvidia_by_default(info),
            maps_users="name=userns" in (info.get("SecurityOptions") or ()),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise EngineUnavailable(f"the Docker engine describes itself in unknown words: {error!r}") from error


def _cgroup_driver(info: Mapping[str, Any]) -> CgroupDriver:
    """Return the cgroup driver.

    An engine without root may have none, and puts containers where it is itself.
    """
    says_systemd = info.get("CgroupDriver") == CgroupDriver.SYSTEMD
    return CgroupDriver.SYSTEMD if says_systemd else CgroupDriver.CGROUPFS


def spec_dirs(info: Mapping[str, Any]) -> tuple[Path, ...]:
    """Return the directories of the engine's CDI specs, the one that wins last; none without CDI."""
    return tuple(Path(path) for path in info.get("CDISpecDirs") or ())


def runtime_spec_dir(dirs: Sequence[Path]) -> Path:
    """Return the place of specs that need not outlive a boot: on a tmpfs if there is one, else the last."""
    mounts = _mounts()
    return next((path for path in reversed(dirs) if _file_system(path, mounts) == "tmpfs"), dirs[-1])


def _other_mechanism(info: Mapping[str, Any]) -> DeviceMechanism:
    """Return how GPUs come into containers if no CDI spec of NVIDIA's names them."""
    if shutil.which(DEVICE_REQUEST_HOOK, path=f"{os.environ.get('PATH', '')}:{_SYSTEM_PATH}"):
        return DeviceMechanism.DEVICE_REQUEST
    if NVIDIA_RUNTIME in (info.get("Runtimes") or {}):
        return DeviceMechanism.NVIDIA_RUNTIME
    return DeviceMechanism.PLAIN


def _nvidia_by_default(info: Mapping[str, Any]) -> bool:
    """Return True if the default runtime is NVIDIA's, by its name or its program's.

    Administrators choose the name freely.
    """
    name = info.get("DefaultRuntime") or ""
    runtime = (info.get("Runtimes") or {}).get(name) or {}
    return any("nvidia" in str(word) for word in (name, runtime.get("path") or ""))


def _nvidia_uuids(info: Mapping[str, Any]) -> frozenset[str]:
    """Return the UUIDs for which ``nvidia.com/gpu=<uuid>`` works: specs may name GPUs by index only."""
    discovered = (
        _UUID_DISCOVERED.fullmatch(one.get("ID", "")) for one in info.get("DiscoveredDevices") or ()
    )
    in_files = (_UUID_DEVICE.findall(text) for text in nvidia_specs(spec_dirs(info)).values())
    return frozenset(match[1] for match in discovered if match).union(*in_files)


def nvidia_specs(dirs: Sequence[Path]) -> dict[Path, str]:
    """Return the CDI specs of NVIDIA's GPUs in these directories, as text, without unreadable files."""
    files = (path for directory in dirs for path in sorted(directory.glob("*")))
    texts = {path: _read(path) for path in files if path.suffix in {".json", ".yaml", ".yml"}}
    return {path: text for path, text in texts.items() if _NVIDIA_KIND.search(text)}


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""  # an engine that cannot read it either, or a file that just went


def _mounts() -> dict[Path, str]:
    """Return mount points and their types, from the machine's own table (proc(5))."""
    rows = (line.split(" ") for line in Path("/proc/self/mounts").read_text().splitlines())
    return {Path(row[1]): row[2] for row in rows}


def _file_system(path: Path, mounts: Mapping[Path, str]) -> str:
    resolved = path.resolve()
    return next((mounts[parent] for parent in (resolved, *resolved.parents) if parent in mounts), "")
