"""Daemons for the tests of the node."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.node.daemon import DaemonProcess, make_directory

NewDaemon = Callable[..., DaemonProcess]


@pytest.fixture
def new_daemon() -> Iterator[NewDaemon]:
    """Makes daemons that are not started yet: call it with the fields of ``DaemonProcess``."""
    made: list[DaemonProcess] = []

    def make(**fields: Any) -> DaemonProcess:
        fields.setdefault("engine", "/nonexistent/docker.sock")
        made.append(DaemonProcess(make_directory(), **fields))
        return made[-1]

    yield make
    for one in made:
        one.dispose()


@pytest.fixture
def daemon(new_daemon: NewDaemon, docker_engine: str) -> DaemonProcess:
    """A daemon with two simulated GPUs on the shared plain engine, ready."""
    started = new_daemon(engine=docker_engine)
    started.start()
    return started


@pytest.fixture
def lone_daemon(new_daemon: NewDaemon) -> DaemonProcess:
    """A daemon with two simulated GPUs and no engine at all, ready."""
    started = new_daemon()
    started.start()
    return started
