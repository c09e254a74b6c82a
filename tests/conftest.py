"""What every test may use: the real parts that `scripts/bed` prepares, and the markers that go with them."""

from __future__ import annotations

import signal

import pytest

pytest_plugins = ["tests.bed.fixtures", "tests.disks"]

_MARKER_OF_FIXTURE = {
    "docker_engine": "docker",
    "private_engine": "docker",
    "cdi_engine": "cdi",
    "unified_engine": "cdi",
    "mps_control_binary": "mps",
    "systemd_image": "systemd",
    "chromium": "browser",
}


def pytest_configure() -> None:
    """Whoever starts the tests in the background has them ignore these, and so would what they start."""
    for ignored in (signal.SIGINT, signal.SIGHUP):
        if signal.getsignal(ignored) is signal.SIG_IGN:
            usual = signal.default_int_handler if ignored is signal.SIGINT else signal.SIG_DFL
            signal.signal(ignored, usual)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Whoever asks for a real part carries its marker, so that `-m` never misses a test.

    A slow test runs only where `-m` names its marker.
    """
    takes_slow = "slow" in str(config.option.markexpr)
    for item in items:
        if item.get_closest_marker("slow") is not None and not takes_slow:
            item.add_marker(pytest.mark.skip(reason="slow: run it by -m slow"))
        for name in getattr(item, "fixturenames", ()):
            if marker := _MARKER_OF_FIXTURE.get(name):
                item.add_marker(marker)
