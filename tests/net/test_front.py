"""The public socket: who is let in, and what those hear who have too much already."""

from __future__ import annotations

import asyncio
import os
import resource
import socket
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path

import pytest

from gpushared.domain.model.request import Caller
from gpushared.net import front
from gpushared.net.error_answers import RequestRefusal
from gpushared.net.front import MAX_REFUSALS_AT_ONCE, Front, listen
from gpushared.net.http_server import Exchange, Routes, WebReply, WebRequest
from gpushared.net.identity import Identities, SubordinateIds
from gpushared.net.limits import Shares, UserLimits
from gpushared.storage.audit.line import Origin
from tests.node.daemon import connected, make_directory

pytestmark = pytest.mark.skipif(os.getuid() != 0, reason="only root can become somebody else")
FIRST = 3_000_000_000
OWNER, OTHER = 61031, 61032
FEW = UserLimits(connections=4)
ASKED = b"GET /who HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"


class ServedFront:
    """A front on a socket of its own, and the refusals that it told the audit."""

    def __init__(self, limits: UserLimits = FEW) -> None:
        self.refused: list[tuple[RequestRefusal, Caller]] = []
        self.folder = make_directory()
        self.socket = self.folder / "socket"
        (self.folder / "subuid").write_text(f"{OWNER}:{FIRST}:65536\n")
        self.routes = Routes(json=_no_json, docker=_answer, refused=self._note, shares=Shares(limits))
        identities = Identities((), SubordinateIds(self.folder / "subuid"))
        self.front = Front(self.folder / "inner", identities, self.routes)

    def _note(self, refusal: RequestRefusal, caller: Caller, _: Origin) -> None:
        self.refused.append((refusal, caller))

    @asynccontextmanager
    async def open(self) -> AsyncIterator[ServedFront]:
        async with self.front.serving(listen(self.socket, 0o666)):
            yield self


async def _no_json(_: WebRequest) -> WebReply:
    raise AssertionError


async def _answer(exchange: Exchange) -> None:
    await exchange.respond(200, exchange.caller.name.encode())


async def said(channel: socket.socket, sent: bytes = b"") -> bytes:
    """All that comes back."""
    channel.setblocking(False)
    loop, read = asyncio.get_running_loop(), b""
    async with asyncio.timeout(30):
        if sent:
            await loop.sock_sendall(channel, sent)
        try:
            while data := await loop.sock_recv(channel, 65536):
                read += data
        except ConnectionResetError:
            pass  # it did not wait for what we might have sent
    return read


async def asked(path: Path, uid: int) -> bytes:
    with connected(path, uid) as channel:
        return await said(channel, ASKED)


@pytest.fixture
async def served() -> AsyncIterator[ServedFront]:
    async with ServedFront().open() as opened:
        yield opened


async def test_a_user_is_served_by_the_number_that_the_kernel_says(served: ServedFront) -> None:
    assert (await asked(served.socket, OWNER)).endswith(str(OWNER).encode())


async def test_a_subordinate_id_is_refused_in_words_and_told_to_the_audit(served: ServedFront) -> None:
    answer = await asked(served.socket, FIRST + 9)
    assert answer.startswith(b"HTTP/1.1 403 ")
    assert f"uid {FIRST + 9} is a subordinate id of uid {OWNER}".encode() in answer
    [(refusal, caller)] = served.refused
    assert (refusal.status, caller.uid, caller.trusted) == (403, FIRST + 9, False)


async def test_the_ids_of_a_range_have_the_connections_of_one_user_together(served: ServedFront) -> None:
    with ExitStack() as stack:
        for uid in range(FIRST, FIRST + FEW.connections):
            stack.enter_context(connected(served.socket, uid))
        assert b"429 Too Many Requests" in await asked(served.socket, FIRST + 100)
        assert (await asked(served.socket, OWNER)).endswith(str(OWNER).encode())


async def test_each_connection_beyond_the_bound_hears_so_and_others_are_served(served: ServedFront) -> None:
    with ExitStack() as stack:
        held = [stack.enter_context(connected(served.socket, OWNER)) for _ in range(FEW.connections)]
        more = [stack.enter_context(connected(served.socket, OWNER)) for _ in range(2 * MAX_REFUSALS_AT_ONCE)]
        answers = await asyncio.gather(*map(said, more))
        assert all(b"429 Too Many Requests" in answer for answer in answers)
        assert all(b"you have 4 connections" in answer for answer in answers)
        assert (await asked(served.socket, OTHER)).endswith(str(OTHER).encode())
        assert (await said(held[0], ASKED)).endswith(str(OWNER).encode())
    assert {refusal.status for refusal, _ in served.refused} == {429}


async def test_who_closes_what_he_has_is_let_in_again(served: ServedFront) -> None:
    with ExitStack() as stack:
        held = [stack.enter_context(connected(served.socket, OWNER)) for _ in range(FEW.connections)]
        assert b"429 " in await asked(served.socket, OWNER)
        assert all([await said(channel, ASKED) for channel in held])
    async with asyncio.timeout(30):
        while b"429 " in await asked(served.socket, OWNER):
            pass  # the daemon has not yet seen the last of them end


async def test_thousands_who_come_at_once_fill_no_queue() -> None:
    async with ServedFront(UserLimits(connections=16)).open() as served:
        with ExitStack() as stack:
            for _ in range(3000):  # nobody accepts meanwhile: the loop that would is busy here
                stack.enter_context(connected(served.socket, OWNER))
            assert (await asked(served.socket, OTHER)).endswith(str(OTHER).encode())


async def test_where_the_system_has_no_more_files_connections_wait_until_it_has(
    served: ServedFront, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(front, "PAUSE_SECONDS", 0.01)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with connected(served.socket, OWNER) as channel:
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
        try:
            await asyncio.sleep(0.05)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert (await said(channel, ASKED)).endswith(str(OWNER).encode())
