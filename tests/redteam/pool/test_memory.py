"""What strangers and single callers can make a coordinator hold: attacks by memory, with bare HTTP/2."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import psutil
import pytest

from tests.pool.http2 import Headers, Http2, http2
from tests.pool.processes import CoordinatorProcess

CONNECTIONS = 8
STREAMS = 60
MESSAGE_BYTES = 3_900_000
MIB = 1 << 20
BOUND_BYTES = 250 * MIB
"""So much more may a coordinator hold, whoever sends what."""
SUBMIT, GET_TRUST = "/gpushare.v1.Jobs/Submit", "/gpushare.v1.Join/GetTrust"


@pytest.fixture
def coordinator(tmp_path: Path) -> Iterator[CoordinatorProcess]:
    made = CoordinatorProcess(tmp_path)
    made.start()
    yield made
    made.dispose()


def held_bytes(coordinator: CoordinatorProcess) -> int:
    assert coordinator.process is not None
    return int(psutil.Process(coordinator.process.pid).memory_info().rss)


def bearer(coordinator: CoordinatorProcess, person: str = "ada") -> Headers:
    return [("authorization", f"Bearer {coordinator.token_file(person).read_text().strip()}")]


async def send(attacker: Http2, path: str, headers: Headers, size: int) -> tuple[int, int]:
    """A message that lacks its last byte: the stream, and how many bytes the server took."""
    stream = await attacker.call(path, headers)
    await attacker.announce(stream, size + 1)
    return stream, await attacker.say(stream, size, seconds=8)


@asynccontextmanager
async def flood(port: int, path: str, headers: Headers) -> AsyncIterator[list[tuple[int, int]]]:
    """Many connections with many such messages each."""
    async with AsyncExitStack() as stack:
        attackers = [await stack.enter_async_context(http2(port)) for _ in range(CONNECTIONS)]
        yield list(
            await asyncio.gather(
                *(send(one, path, headers, MESSAGE_BYTES) for one in attackers for _ in range(STREAMS))
            )
        )


async def answers_others(coordinator: CoordinatorProcess) -> float:
    """How long an administrator waits for an answer."""
    since = time.monotonic()
    await asyncio.to_thread(coordinator.admin.status)
    return time.monotonic() - since


@pytest.mark.parametrize("path", [SUBMIT, GET_TRUST])
async def test_nobody_without_a_token_fills_the_memory(coordinator: CoordinatorProcess, path: str) -> None:
    before = held_bytes(coordinator)
    async with flood(coordinator.ports[0], path, ()):
        assert held_bytes(coordinator) - before < BOUND_BYTES
        assert await answers_others(coordinator) < 5


async def test_a_token_does_not_fill_the_memory(coordinator: CoordinatorProcess) -> None:
    headers = bearer(coordinator)
    before = held_bytes(coordinator)
    async with flood(coordinator.ports[0], SUBMIT, headers):
        assert held_bytes(coordinator) - before < BOUND_BYTES
        assert await answers_others(coordinator) < 5


async def test_a_call_with_a_bad_token_is_refused_before_its_message_is_there(
    coordinator: CoordinatorProcess,
) -> None:
    async with http2(coordinator.ports[0]) as attacker:
        stream = await attacker.call(SUBMIT, [("authorization", "Bearer gsp_x_y")])
        assert await attacker.over(stream, 10) in {"end", "reset"}


async def test_a_call_whose_message_does_not_come_ends(coordinator: CoordinatorProcess) -> None:
    """Of a token that counts: it has a turn to be read, which somebody else is to have."""
    async with http2(coordinator.ports[0]) as attacker:
        stream = await attacker.call("/gpushare.v1.Jobs/List", bearer(coordinator))
        assert await attacker.over(stream, 60) in {"end", "reset"}
