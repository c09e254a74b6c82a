"""A pool whose nodes give their network to jobs on several nodes, and what such jobs do in it."""

from __future__ import annotations

import re
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from tests.bed import parts
from tests.pool.failures.daemons import Coordinator, Json, Node
from tests.pool.failures.evidence import overlapping
from tests.pool.failures.machine import wait_until
from tests.pool.failures.world import GPUS, OVER, World

RESERVE_SECONDS = 10
"""As short as it may be."""


class ShortReservations(Coordinator):
    def _text(self) -> str:
        return _with(super()._text(), "nodes", f"reserve_seconds = {RESERVE_SECONDS}")


class NodeWithHostNetwork(Node):
    def _text(self) -> str:
        return _with(super()._text(), "gate", 'host_network = "gangs"')


def _with(config: str, table: str, setting: str) -> str:
    return re.sub(rf"^\[{table}\]$", f"[{table}]\n{setting}", config, count=1, flags=re.MULTILINE)


class Gangs:
    """Jobs on several nodes of a pool."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.submitted: list[str] = []

    def submit(self, *options: str, script: str, through: str = "a") -> str:
        """A job whose parts run a shell script, each in the network of its node; its id."""
        node, shared = self.world.nodes[through], self.world.diary.directory
        printed = node.machine.run(
            *("env", f"GPUSHARE_HOST=unix://{node.socket}", "gpushare", "submit", "--pool", *options),
            *("--network", "host", "--stop-timeout", "1", "--tmpfs", "/tmp"),
            *("-v", f"{shared}:{shared}", parts.BUSYBOX_IMAGE, "sh", "-c", script),
        )
        self.submitted.append(printed.stdout.strip())
        return self.submitted[-1]

    def working(self, *options: str, through: str = "a") -> str:
        """One that works until ``finish``, and keeps a diary."""
        job = self.world.submit("--network", "host", *options, through=through)
        self.submitted.append(job)
        return job

    def over(self, job: str) -> Json:
        return self.world.wait_state(job, *OVER)

    def said(self, job: str, rank: int) -> list[str]:
        """What a part wrote, by the command that a user types."""
        return self.world.nodes["a"].gpushare("logs", "--rank", str(rank), job).splitlines()

    def story(self, job: str) -> str:
        return self.world.nodes["a"].gpushare("why", job)

    def leases(self, node: str) -> list[str]:
        return [lease["state"] for lease in self.world.nodes[node].leases().values()]

    def wait_reserved(self, *nodes: str) -> None:
        for node in nodes:
            wait_until(lambda node=node: self.leases(node) == ["reserved"], f"{node} keeps its part")  # type: ignore[misc]

    def end(self) -> None:
        """Let all work end: no two attempts of a job ran at once, and nothing is left of any."""
        self.world.heal()
        self.world.diary.end(*self.submitted)
        for job in self.submitted:
            self.over(job)
            assert not overlapping(self.world.diary.runs(job))
        for name, node in self.world.nodes.items():
            wait_until(lambda name=name: not self.leases(name), f"nothing is leased on {name}")  # type: ignore[misc]
            assert not node.engine.running()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """The daemons' own words, where a test failed."""
    report = yield
    gangs = getattr(item, "funcargs", {}).get("gangs")
    if report.failed and isinstance(gangs, Gangs):
        report.sections.append(("daemons", gangs.world.logs()))
    return report


@pytest.fixture(scope="session")
def _pool(docker_cli: Path, docker_engine: str) -> Iterator[World]:
    world = World()
    world.coordinator = ShortReservations(world.coordinator.machine, tuple(GPUS))
    world.nodes = {
        name: NodeWithHostNetwork(node.machine, node.simulate, world.diary.directory)
        for name, node in world.nodes.items()
    }
    try:
        world.build()
        yield world
    finally:
        world.dispose()


@pytest.fixture
def gangs(_pool: World) -> Iterator[Gangs]:
    made = Gangs(_pool)
    yield made
    made.end()
