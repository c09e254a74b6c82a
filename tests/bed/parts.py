"""Where `scripts/bed` leaves the real parts, and what happens to a test whose part is missing."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Final, NoReturn

import pytest

ROOT: Final = Path(__file__).resolve().parents[2]
CACHE: Final = Path(os.environ.get("GPUSHARED_CACHE") or ROOT / ".cache")
DOCKER: Final = CACHE / "bin/docker"
COMPOSE: Final = CACHE / "docker-config/cli-plugins/docker-compose"
MPS_CONTROL: Final = CACHE / "bin/nvidia-cuda-mps-control"
BUSYBOX_TAR: Final = CACHE / "busybox.tar"
CDI_ROOT: Final = CACHE / "cdi/rootfs"
ENTER_ROOT: Final = ROOT / "scripts/bed.d/enter-root"
PLAIN_SOCKET: Final = Path("/var/run/docker.sock")
CDI_SOCKET: Final = Path("/run/gpushared-bed/cdi-engine/docker.sock")
CDI_SPECS: Final = Path("/run/gpushared-bed/cdi-engine/specs")
BUSYBOX_IMAGE: Final = "gpushared-test/busybox:latest"
SYSTEMD_IMAGE: Final = "gpushared-test/systemd:latest"


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


def docker(socket: Path | str, *words: str, timeout_seconds: float = 60) -> subprocess.CompletedProcess[str]:
    """Runs the docker CLI against one engine; the caller judges the exit status."""
    command = [str(DOCKER), "-H", f"unix://{socket}", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout_seconds, check=False)


def need_engine(part: str, socket: Path) -> Path:
    need_file("cli", DOCKER)
    answer = docker(socket, "version", "--format", "{{.Server.Version}}")
    if answer.returncode:
        absent(part, f"no Docker engine answers on {socket}")
    return socket


def need_image(part: str, socket: Path | str, image: str) -> str:
    if docker(socket, "image", "inspect", image).returncode:
        absent(part, f"the engine on {socket} has no image {image}")
    return image
