"""A made-up machine: a driver that keeps accounts only, an nvidia-smi that prints one row."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from bench.gpu.lab import build_probe
from bench.gpu.machine import GPU_FIELDS

ROOT = Path(__file__).resolve().parents[2]
RUN = ROOT / "bench" / "gpu" / "run"
UUID = "GPU-00010203-0405-0607-0809-0a0b0c0d0e0f"
ROW = {
    "index": "0",
    "name": "Made-up GPU",
    "uuid": UUID,
    "driver_version": "580.0.0",
    "compute_mode": "Default",
    "persistence_mode": "Disabled",
    "mig.mode.current": "Disabled",
    "memory.total": "16384",
    "memory.used": "300",
    "memory.free": "16084",
    "compute_cap": "9.0",
}


@dataclass(frozen=True)
class MadeUpMachine:
    """Its programs and libraries in one directory, found by this environment only."""

    directory: Path
    environ: dict[str, str]

    def says(self, text: str, *, status: int = 0) -> None:
        """What its nvidia-smi answers."""
        program = self.directory / "nvidia-smi"
        program.write_text(f"#!/bin/sh\ncat <<'END'\n{text}\nEND\nexit {status}\n")
        program.chmod(0o755)


def run(*words: str, environ: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """The command of the steps."""
    return subprocess.run(
        [sys.executable, RUN, *words], env=environ, capture_output=True, text=True, check=False, timeout=120
    )


@pytest.fixture(scope="session")
def nvcc() -> str:
    found = shutil.which("nvcc")
    if found is None:
        pytest.skip("nvcc is not installed, so the CUDA probe cannot be built")
    return found


@pytest.fixture(scope="session")
def probe(nvcc: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The CUDA probe, built."""
    directory = tmp_path_factory.mktemp("probe")
    asyncio.run(build_probe(nvcc, directory))
    return directory / "probe"


@pytest.fixture(scope="session")
def driver(nvcc: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a driver that keeps accounts of memory and does nothing else."""
    directory = tmp_path_factory.mktemp("driver")
    source = Path(__file__).with_name("fake_cuda.c")
    # nvcc knows where its own cuda.h is.
    words: list[str | Path] = [
        nvcc,
        "-shared",
        "-Xcompiler",
        "-fPIC,-Wall,-Wextra",
        "-o",
        directory / "libcuda.so.1",
        source,
    ]
    subprocess.run(words, check=True, timeout=60)
    return directory


@pytest.fixture
def driver_environ(driver: Path) -> dict[str, str]:
    return {**os.environ, "LD_LIBRARY_PATH": str(driver)}


@pytest.fixture
def hanging_environ(driver: Path, tmp_path: Path) -> dict[str, str]:
    """Of programs whose driver never comes back."""
    directory = tmp_path / "hanging"
    directory.mkdir()
    (directory / "libcuda.so.1").symlink_to(driver / "libcuda.so.1")
    (directory / "hangs").touch()
    return {**os.environ, "LD_LIBRARY_PATH": str(directory)}


@pytest.fixture
def machine(driver_environ: dict[str, str], tmp_path: Path) -> MadeUpMachine:
    directory = tmp_path / "programs"
    directory.mkdir()
    environ = driver_environ | {"PATH": f"{directory}:{os.environ['PATH']}"}
    made = MadeUpMachine(directory, environ)
    made.says(", ".join(ROW[name] for name in GPU_FIELDS))
    return made
