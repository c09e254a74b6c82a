from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.bed import parts
from tests.gpus.drivers import Driver, FakeNvmlDriver, PlayableDriver, RealDriver, SimulatedDriver
from tests.gpus.fake_nvml import OLD_DRIVER, STATE_VARIABLE, FakeGpu, FakeMachine, fake_nvml_library


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fake_nvml_library(tmp_path_factory.mktemp("nvml"))


@pytest.fixture(scope="session")
def old_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fake_nvml_library(tmp_path_factory.mktemp("nvml-old"), without=OLD_DRIVER)


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeMachine:
    """Two healthy GPUs behind the fake library."""
    state = tmp_path / "state"
    monkeypatch.setenv(STATE_VARIABLE, str(state))
    return FakeMachine(state, gpus=[FakeGpu("GPU-fake-a"), FakeGpu("GPU-fake-b")])


@pytest.fixture
async def fake(library: Path, machine: FakeMachine) -> AsyncIterator[FakeNvmlDriver]:
    driver = FakeNvmlDriver(library, machine)
    yield driver
    await driver.close()


@pytest.fixture(params=["simulated", "fake", pytest.param("real", marks=pytest.mark.gpu)])
async def driver(request: pytest.FixtureRequest) -> AsyncIterator[Driver]:
    """Every driver there is."""
    made: Driver = _real() if request.param == "real" else _playable(request.param, request)
    yield made
    await made.close()


@pytest.fixture(params=["simulated", "fake"])
async def playable(request: pytest.FixtureRequest) -> AsyncIterator[PlayableDriver]:
    """Drivers that the test plays."""
    made = _playable(request.param, request)
    yield made
    await made.close()


def _real() -> RealDriver:
    if not parts.has_driver():
        pytest.skip("no NVIDIA driver is loaded here")
    return RealDriver()


def _playable(kind: str, request: pytest.FixtureRequest) -> PlayableDriver:
    if kind == "simulated":
        return SimulatedDriver()
    return FakeNvmlDriver(request.getfixturevalue("library"), request.getfixturevalue("machine"))
