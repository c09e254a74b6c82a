"""One pool for all tests of a run; one that a test left in pieces is built anew."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from tests.pool.failures.booted import BootedPool
from tests.pool.failures.world import World


class _Kept:
    world: World | None = None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """The daemons' own words, where a test failed."""
    report = yield
    kept, pool = (getattr(item, "funcargs", {}).get(name) for name in ("_kept", "_pool"))
    world = kept.world if isinstance(kept, _Kept) else pool
    if report.failed and isinstance(world, World | BootedPool):
        report.sections.append(("daemons", world.logs()))
    return report


@pytest.fixture(scope="session")
def _kept(docker_cli: Path) -> Iterator[_Kept]:
    kept = _Kept()
    yield kept
    if kept.world is not None:
        kept.world.dispose()


@pytest.fixture
def world(_kept: _Kept, docker_engine: str) -> Iterator[World]:
    """A pool in which all is well. After the test all its jobs end, and what they did is judged."""
    if _kept.world is not None and _kept.world.broken:
        _kept.world.dispose()
        _kept.world = None
    if _kept.world is None:
        _kept.world = World()
        _kept.world.broken = True
        _kept.world.build()
    world = _kept.world
    world.broken = True
    yield world
    world.judge()
    world.broken = False
