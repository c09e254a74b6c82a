"""Engines that are away, hang, talk nonsense, die and come back."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from gpushared.domain.model.errors import EngineGone, EngineUnavailable, GpushareError, TimedOut
from gpushared.domain.model.lease import ComputeCap, ContainerId, MemoryWall, Walls
from gpushared.engine.docker_engine import CALLS_AT_ONCE, DockerEngine
from gpushared.engine.engine_events import PENDING_LIMIT, ContainerChange, EventFeed
from gpushared.engine.workers import Connector
from gpushared.ports import ContainerStatus, Edits
from tests.bed.engine import PrivateEngine
from tests.engine.containers import (
    STREAM_HEAD,
    VERSION_REPLY,
    Answer,
    DockerContainers,
    chunk,
    event,
    facts,
    is_now,
    reply,
    stand_in,
    unique_name,
)

SOME = ContainerId("ab" * 32)
CALLS: dict[str, Callable[[DockerEngine], Awaitable[object]]] = {
    "probe": lambda engine: engine.probe(),
    "containers": lambda engine: engine.containers(),
    "inspect": lambda engine: engine.inspect(SOME),
    "stop": lambda engine: engine.stop(SOME, 0),
    "events": lambda engine: anext(engine.events()),
}


async def silence(request: str, writer: asyncio.StreamWriter) -> None:
    """Accept, read, and never answer."""


async def trickle(request: str, writer: asyncio.StreamWriter) -> None:
    """A byte now and then keeps every time-out of a socket from striking."""
    writer.write(b"HTTP/1.1 200 OK\r\nX-Slow: ")
    while True:
        writer.write(b".")
        await writer.drain()
        await asyncio.sleep(0.05)


def says(body: bytes, status: str = "200 OK") -> Answer:
    async def answer(request: str, writer: asyncio.StreamWriter) -> None:
        writer.write(VERSION_REPLY if " /version" in request else reply(body, status))

    return answer


async def hang_up(request: str, writer: asyncio.StreamWriter) -> None:
    writer.close()


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
async def test_without_a_socket_the_engine_is_unavailable(
    tmp_path: Path, call: Callable[[DockerEngine], Awaitable[object]]
) -> None:
    """The message names the path, the hint says what to do."""
    engine = DockerEngine(f"unix://{tmp_path}/docker.sock")
    with pytest.raises(EngineGone, match=f"on {tmp_path}/docker.sock: No such file") as caught:
        await call(engine)
    assert "start the engine" in caught.value.hint
    await engine.close()


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
async def test_a_socket_that_nobody_listens_on_is_an_engine_that_is_away(
    tmp_path: Path, call: Callable[[DockerEngine], Awaitable[object]]
) -> None:
    """As an engine leaves it behind that was killed."""
    with socket.socket(socket.AF_UNIX) as left_behind:
        left_behind.bind(str(tmp_path / "docker.sock"))
    engine = DockerEngine(str(tmp_path / "docker.sock"))
    with pytest.raises(EngineGone, match="Connection refused"):
        await call(engine)
    await engine.close()


@pytest.mark.parametrize("answer", [silence, trickle])
@pytest.mark.parametrize("call", [name for name in CALLS if name != "events"])
async def test_an_engine_that_hangs_costs_a_time_out_and_never_the_loop(
    tmp_path: Path, answer: Answer, call: str
) -> None:
    """The stand-in lives on the same loop: that it sees the request shows that the loop runs on."""
    asked = asyncio.Event()

    async def note(request: str, writer: asyncio.StreamWriter) -> None:
        asked.set()
        await answer(request, writer)

    async with stand_in(tmp_path / "docker.sock", note):
        engine = DockerEngine(str(tmp_path / "docker.sock"), timeout_seconds=0.5)
        calling = asyncio.ensure_future(CALLS[call](engine))
        await asked.wait()
        assert not calling.done()
        with pytest.raises(TimedOut, match=f"on {tmp_path}/docker.sock did not"):
            await calling
        await engine.close()


async def test_an_engine_that_hangs_has_no_events(tmp_path: Path) -> None:
    """To a listener, hanging and being away are the same: survey and listen again. But it has not ended."""
    async with stand_in(tmp_path / "docker.sock", silence):
        engine = DockerEngine(str(tmp_path / "docker.sock"), timeout_seconds=0.3)
        with pytest.raises(EngineUnavailable, match="did not report events") as caught:
            await anext(engine.events())
        assert not isinstance(caught.value, EngineGone)
        await engine.close()


async def test_more_calls_than_threads_time_out_as_well(tmp_path: Path) -> None:
    """Those that never got a thread do not wait for those that have one."""
    async with stand_in(tmp_path / "docker.sock", silence):
        engine = DockerEngine(str(tmp_path / "docker.sock"), timeout_seconds=0.5)
        answers = await asyncio.gather(*(engine.inspect(SOME) for _ in range(50)), return_exceptions=True)
        assert {type(answer) for answer in answers} == {TimedOut}
        await engine.close()
        for thread in threading.enumerate():
            if thread.name == "engine-call":
                await asyncio.to_thread(thread.join)


async def test_calls_that_wait_for_a_thread_fail_at_close(tmp_path: Path) -> None:
    """At once, and new ones too."""
    asked, busy = asyncio.Event(), list[str]()

    async def note(request: str, writer: asyncio.StreamWriter) -> None:
        busy.append(request)
        if len(busy) == CALLS_AT_ONCE:
            asked.set()

    async with stand_in(tmp_path / "docker.sock", note):
        engine = DockerEngine(str(tmp_path / "docker.sock"), timeout_seconds=0.5)
        calls = [asyncio.create_task(engine.inspect(SOME)) for _ in range(CALLS_AT_ONCE + 2)]
        await asked.wait()
        await engine.close()
        answers = await asyncio.gather(*calls, return_exceptions=True)
        assert [type(answer) for answer in answers] == [TimedOut] * CALLS_AT_ONCE + [EngineUnavailable] * 2
        with pytest.raises(EngineUnavailable, match="is closed"):
            await engine.inspect(SOME)


@pytest.mark.parametrize(
    "answer",
    [
        says(b"not json"),
        says(b'{"State": 1}'),
        says(b"[]"),
        says(b'{"message": "no space left on device"}', "500 Internal Server Error"),
        hang_up,
    ],
    ids=["no JSON", "half a container", "a list", "its own error", "hangs up"],
)
async def test_an_engine_that_talks_nonsense_is_unavailable(tmp_path: Path, answer: Answer) -> None:
    """Nothing of the SDK, of requests or of Python gets through."""
    async with stand_in(tmp_path / "docker.sock", answer):
        engine = DockerEngine(str(tmp_path / "docker.sock"), timeout_seconds=5)
        with pytest.raises(EngineUnavailable, match="Docker engine"):
            await engine.inspect(SOME)
        await engine.close()


@pytest.mark.parametrize("body", [b"[]", b"{}", b'"1.41"', b'{"ApiVersion": 1.41}'])
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
async def test_what_is_no_docker_engine_is_recognised(
    tmp_path: Path, body: bytes, call: Callable[[DockerEngine], Awaitable[object]]
) -> None:
    """Some other server may own the socket."""

    async def answer(request: str, writer: asyncio.StreamWriter) -> None:
        writer.write(reply(body))

    async with stand_in(tmp_path / "docker.sock", answer):
        engine = DockerEngine(str(tmp_path / "docker.sock"), timeout_seconds=5)
        with pytest.raises(EngineUnavailable, match="is no Docker engine"):
            await call(engine)
        await engine.close()


@pytest.mark.parametrize("body", [b"[1]", b"[{}]", b'{"Id": 1}'])
async def test_a_list_of_containers_that_is_none_is_no_survey(tmp_path: Path, body: bytes) -> None:
    """An empty answer would look as if all containers were gone."""
    async with stand_in(tmp_path / "docker.sock", says(body)):
        engine = DockerEngine(str(tmp_path / "docker.sock"), timeout_seconds=5)
        with pytest.raises(EngineUnavailable, match="unknown words"):
            await engine.containers()
        await engine.close()


async def test_the_engines_own_words_are_in_the_error(tmp_path: Path) -> None:
    """What it complains of is what the admin needs."""
    answer = says(b'{"message": "no space left on device"}', "500 Internal Server Error")
    async with stand_in(tmp_path / "docker.sock", answer):
        engine = DockerEngine(str(tmp_path / "docker.sock"))
        with pytest.raises(
            EngineUnavailable, match=r"could not stop container abab.*no space left on device"
        ):
            await engine.stop(SOME, 0)
        await engine.close()


def streams(*lines: bytes) -> Answer:
    async def answer(request: str, writer: asyncio.StreamWriter) -> None:
        writer.write(VERSION_REPLY if " /version" in request else STREAM_HEAD + b"".join(map(chunk, lines)))
        await writer.drain()

    return answer


@pytest.mark.parametrize("line", [b"nonsense\n", b"[]\n", b'{"Actor": {}}\n', b'{"Actor": "me"}\n'])
async def test_events_that_make_no_sense_end_the_stream(tmp_path: Path, line: bytes) -> None:
    """The caller then surveys, and listens again."""
    async with stand_in(tmp_path / "docker.sock", streams(line)):
        engine = DockerEngine(str(tmp_path / "docker.sock"))
        with pytest.raises(EngineUnavailable, match="reports events"):
            await anext(engine.events())
        await engine.close()


async def test_a_reader_that_falls_far_behind_must_survey_anew(tmp_path: Path) -> None:
    """What waits for it is bounded: by containers, then by a number."""
    ids = [f"{number:064x}" for number in range(PENDING_LIMIT + 10)]
    lines = [json.dumps({"Action": "start", "Actor": {"ID": id_}}).encode() + b"\n" for id_ in ids]
    async with stand_in(tmp_path / "docker.sock", streams(*lines, *lines[:5])):
        feed = EventFeed(Connector(str(tmp_path / "docker.sock"), 5), since=0)
        await asyncio.to_thread(feed.join)
        told = [(await feed.next()).container for _ in range(PENDING_LIMIT + 1)]
        assert told == ids[: PENDING_LIMIT + 1]
        with pytest.raises(EngineUnavailable, match="containers changed at once") as caught:
            await feed.next()
        assert not isinstance(caught.value, EngineGone)
        feed.close()


async def test_a_container_that_changes_often_waits_in_line_once(tmp_path: Path) -> None:
    """A crash loop does not grow the daemon while the reader is busy."""
    lines = [json.dumps({"Action": "start", "Actor": {"ID": SOME}}).encode() + b"\n"] * 1000
    async with stand_in(tmp_path / "docker.sock", streams(*lines, b"end\n")):
        feed = EventFeed(Connector(str(tmp_path / "docker.sock"), 5), since=0)
        await asyncio.to_thread(feed.join)
        assert await feed.next() == ContainerChange(SOME, last_words=None, destroyed=False)
        with pytest.raises(EngineUnavailable, match="no JSON"):
            await feed.next()
        feed.close()


async def test_devices_can_be_written_before_the_engine_is_up(tmp_path: Path) -> None:
    """After a boot the engine restarts containers by itself, and needs their devices at once."""
    engine = DockerEngine(str(tmp_path / "docker.sock"), spec_dir=tmp_path / "cdi")
    edits = Edits((), Walls(MemoryWall.NONE, ComputeCap.NONE), env={"A": "1"})
    await engine.write_device("l-1", edits)
    await engine.write_device("l-2", edits)
    await engine.remove_device("l-1")
    assert [path.name for path in (tmp_path / "cdi").iterdir()] == ["gpushare.io-lease-l-2.json"]


@pytest.mark.parametrize("end", [PrivateEngine.kill, PrivateEngine.stop])
async def test_an_engine_that_went_away_is_used_again_when_it_is_back(
    private_engine: Callable[[], PrivateEngine], end: Callable[[PrivateEngine], None]
) -> None:
    """The stream ends, calls say that it is away, and the same adapter goes on afterwards."""
    real = private_engine()
    engine, containers = DockerEngine(real.socket), DockerContainers(real.socket)
    container = containers.create(unique_name())
    stream = engine.events()
    containers.start(container)
    await event(stream, is_now(container, ContainerStatus.RUNNING))
    await asyncio.to_thread(end, real)
    with pytest.raises(EngineGone, match=real.socket):
        await event(stream, lambda told: False)
    with pytest.raises(EngineGone, match=real.socket):
        await engine.containers()
    await asyncio.to_thread(real.start)
    [found] = await engine.containers()
    assert (found.id, found.status) == (container, ContainerStatus.EXITED)
    stream = engine.events()
    containers.start(container)
    assert await event(stream, is_now(container, ContainerStatus.RUNNING))
    containers.clean_up()
    await engine.close()


async def inspect_until_it_fails(engine: DockerEngine, container: ContainerId) -> None:
    """An engine's threads stop one after the other, so a call or two may still be answered."""
    while True:
        await engine.inspect(container)


async def test_a_real_engine_that_hangs_is_used_again_when_it_goes_on(
    private_engine: Callable[[], PrivateEngine],
) -> None:
    """Stopped by a signal, it accepts connections and answers none."""
    real = private_engine()
    pid = int((real.directory / "pid").read_text())
    engine, containers = DockerEngine(real.socket, timeout_seconds=1), DockerContainers(real.socket)
    container = containers.create(unique_name())
    await facts(engine, container)
    os.kill(pid, signal.SIGSTOP)
    try:
        with pytest.raises(TimedOut):
            await inspect_until_it_fails(engine, container)
    finally:
        os.kill(pid, signal.SIGCONT)
    async with asyncio.timeout(30):
        while True:
            try:
                assert (await facts(engine, container)).id == container
                break
            except GpushareError:
                continue
    containers.clean_up()
    await engine.close()
