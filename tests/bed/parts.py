"""Where `scripts/bed` leaves the real parts, and what happens to a test whose part is missing."""

from __future__ import annotations

import os
import socket
import subprocess
from pathlib import Path
from typing import Final, NoReturn

import pytest

ROOT: Final = Path(__file__).resolve().parents[2]
CACHE: Final = Path(os.environ.get("GPUSHARED_CACHE") or ROOT / ".cache")
DOCKER: Final = CACHE / "bin/docker"
COMPOSE: Final = CACHE / "docker-config/cli-plugins/docker-compose"
BUILDX: Final = CACHE / "docker-config/cli-plugins/docker-buildx"
DEVCONTAINER: Final = CACHE / "bin/devcontainer"
MPS_CONTROL: Final = CACHE / "bin/nvidia-cuda-mps-control"
NVML_LIBRARY: Final = CACHE / "lib/libnvidia-ml.so.1"
BUSYBOX_TAR: Final = CACHE / "busybox.tar"
PROGRAMS: Final = CACHE / "programs"
PROMETHEUS: Final = CACHE / "prometheus/usr/bin"
ETCD: Final = Path(os.environ.get("GPUSHARED_ETCD") or CACHE / "etcd/usr/bin")
CHROMIUM: Final = Path("/usr/bin/chromium")
BROWSER: Final = CACHE / "browser/node_modules"
CDI_ROOT: Final = CACHE / "newest-engine"
ENTER_ROOT: Final = ROOT / "scripts/bed.d/enter-root"
PLAIN_SOCKET: Final = Path("/var/run/docker.sock")
CDI_SOCKET: Final = Path("/run/gpushared-bed/cdi/docker.sock")
CDI_SPECS: Final = Path("/run/gpushared-bed/cdi/specs")
BUSYBOX_IMAGE: Final = "gpushared-test/busybox:latest"
SYSTEMD_IMAGE: Final = "gpushared-test/systemd:latest"
ANSWER_SECONDS: Final = 10


def absent(part: str, why: str) -> NoReturn:
    """Skips the test, except where a missing part would be a hole nobody sees: in CI and when asked for."""
    reason = f"{why}; `scripts/bed {part}` prepares it"
    if os.environ.get("CI") == "true" or os.environ.get("GPUSHARED_BED") == "required":
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)


def need_file(part: str, path: Path) -> Path:
    if not os.access(path, os.R_OK):
        absent(part, f"there is no {path}")
    return path


def has_driver() -> bool:
    """NVIDIA's kernel module is loaded. Nodes in ``/dev`` tell nothing: its user library makes them, too."""
    return Path("/proc/driver/nvidia/version").exists()


def docker(engine: Path | str, *words: str, timeout_seconds: float = 60) -> subprocess.CompletedProcess[str]:
    """Runs the docker CLI against one engine; the caller judges the exit status."""
    command = [str(DOCKER), "-H", f"unix://{engine}", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout_seconds, check=False)


def answers(path: Path | str) -> bool:
    """Whether an engine serves there, without the docker CLI: its start costs as much as many such calls."""
    with socket.socket(socket.AF_UNIX) as channel:
        channel.settimeout(ANSWER_SECONDS)
        try:
            channel.connect(str(path))
            channel.sendall(b"GET /_ping HTTP/1.1\r\nHost: docker\r\nConnection: close\r\n\r\n")
            return channel.recv(1024).startswith(b"HTTP/1.1 200 ")
        except OSError:
            return False


def need_engine(part: str, engine: Path) -> Path:
    need_file("cli", DOCKER)
    if not answers(engine):
        absent(part, f"no Docker engine answers on {engine}")
    return engine


def need_image(part: str, engine: Path | str, image: str) -> str:
    if docker(engine, "image", "inspect", image).returncode:
        absent(part, f"the engine on {engine} has no image {image}")
    return image
