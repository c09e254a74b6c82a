"""One machine for all tests of this folder; each gets it with a fresh service."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.systemd.node import COMMANDS, CONFIG, Node, build_wheel, node


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The checkout as it would be published."""
    return build_wheel(tmp_path_factory.mktemp("wheels"))


@pytest.fixture(scope="session")
def _machine(
    docker_engine: str, systemd_image: str, docker_cli: Path, mps_control_binary: Path, wheel: Path
) -> Iterator[Node]:
    programs = {
        docker_cli.resolve(): "/usr/local/bin/docker",
        mps_control_binary.resolve(): "/usr/local/bin/nvidia-cuda-mps-control",
    }
    with node(docker_engine, wheel.parent, programs) as made:
        yield made


@pytest.fixture
def machine(_machine: Node) -> Iterator[Node]:
    """The package is installed and configured for simulated GPUs; the service is not started."""
    config = f'[engine]\nsocket = "{_machine.engine.socket}"\n[gpus]\nsimulate = "h100:1"\n'
    _machine.write(CONFIG, config)
    _machine.check(f"{COMMANDS}/gpushared", "install")
    yield _machine
    _machine.clear()


@pytest.fixture
def running(machine: Node) -> Node:
    """The service runs."""
    machine.check("systemctl", "start", "gpushared")
    return machine
