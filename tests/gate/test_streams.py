"""Long bodies and raw streams through the gate: nothing is lost, doubled or moved, however it comes."""

from __future__ import annotations

import asyncio
import random
import socket
from collections.abc import Iterator

import h11
import pytest

from gpushared.net.http_parser import CHUNKS_AT_ONCE, FIRST_BYTES, Incoming, PlainChunks
from gpushared.net.limits import UserLimits, UserShare
from gpushared.net.socket_wire import BUFFER_BYTES, GATHERED_BYTES, End, Flow, Wire, taken_over

HEAD = b"PUT /x HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
NEXT = b"GET /next HTTP/1.1\r\nHost: x\r\n\r\n"
END = b"0\r\n\r\n"


def joined() -> Iterator[tuple[socket.socket, socket.socket]]:
    left, right = socket.socketpair(socket.AF_UNIX)
    with left, right:
        left.setblocking(False)
        right.setblocking(False)
        yield left, right


pair = pytest.fixture(joined, name="pair")
other = pytest.fixture(joined, name="other")


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def noise(size: int) -> bytes:
    return random.Random(size).randbytes(size)


async def body_of(
    raw: bytes, sock: socket.socket, feed: socket.socket, cuts: list[int]
) -> tuple[bytes, bytes]:
    """The body that is read of ``raw``, sent in pieces that end at ``cuts``, and what is left then."""

    async def send() -> None:
        for begin, end in zip([0, *cuts], [*cuts, len(raw)], strict=True):
            await asyncio.get_running_loop().sock_sendall(feed, raw[begin:end])
            await asyncio.sleep(0)
        feed.shutdown(socket.SHUT_WR)

    http = h11.Connection(h11.SERVER)
    incoming = Incoming(http, Wire(sock), UserShare(UserLimits()).turn, read_bytes=65536)
    sending = asyncio.create_task(send())
    assert isinstance(await incoming.event(), h11.Request)
    body = b""
    while (piece := await incoming.piece()) is not None:
        body += piece
    await sending
    return body, incoming.unparsed


BODIES: dict[str, tuple[bytes, bytes]] = {
    "one chunk": (chunk(b"abc"), b"abc"),
    "many small ones": (
        b"".join(chunk(b"%d" % n) for n in range(3 * CHUNKS_AT_ONCE)),
        b"".join(b"%d" % n for n in range(3 * CHUNKS_AT_ONCE)),
    ),
    "as long as the first buffer": (chunk(noise(FIRST_BYTES - 8)) * 9, noise(FIRST_BYTES - 8) * 9),
    "longer than all buffers": (
        chunk(noise(700_000)) + chunk(b"x") + chunk(noise(300_001)),
        noise(700_000) + b"x" + noise(300_001),
    ),
    "sizes in capitals and with zeros": (
        b"00A\r\n0123456789\r\nB\r\n0123456789a\r\n" + chunk(b"x"),
        b"01234567890123456789ax",
    ),
    "an extension among plain ones": (chunk(b"a") + b"1;x=y\r\nb\r\n" + chunk(b"c"), b"abc"),
    "data that looks like framing": (chunk(END) + chunk(NEXT), END + NEXT),
    "none": (b"", b""),
}


@pytest.mark.parametrize("name", BODIES)
@pytest.mark.parametrize("trailer", [b"0\r\n\r\n", b"0\r\nX: y\r\n\r\n", b"000\r\n\r\n"])
@pytest.mark.parametrize("seed", range(3))
async def test_a_chunked_body_is_the_same_wherever_it_is_cut_and_ends_where_it_ends(
    pair: tuple[socket.socket, socket.socket], name: str, trailer: bytes, seed: int
) -> None:
    encoded, body = BODIES[name]
    raw = HEAD + encoded + trailer + NEXT
    some = random.Random(seed)
    last = [len(raw) - len(NEXT) - near for near in range(8)]
    cuts = sorted({some.randrange(len(raw)) for _ in range(20)} | set(last if seed else []))
    read, held = await body_of(raw, *pair, cuts)
    assert read == body
    assert NEXT.startswith(held)
    assert held or seed


@pytest.mark.parametrize(
    "broken",
    [
        b"3\r\nabcd\r\n",
        b"3\r\nab",
        b"3\r\nabc\r",
        chunk(b"a") + b"3\r\nabc\n0\r\n\r\n",
        chunk(b"a") + b"-1\r\nabc\r\n",
        chunk(b"a") + b"0x3\r\nabc\r\n",
        chunk(b"a") + b" 3\r\nabc\r\n",
        chunk(b"a") + b"3\nabc\r\n",
        chunk(b"a") + b"\r\n0\r\n\r\n",
        chunk(b"a"),
        chunk(b"a") + b"3",
        chunk(b"a") + b"f" * 21 + b"\r\n",
    ],
)
async def test_a_body_that_is_not_framed_properly_has_no_end(
    pair: tuple[socket.socket, socket.socket], broken: bytes
) -> None:
    with pytest.raises(h11.RemoteProtocolError):
        await body_of(HEAD + broken, *pair, [])


async def test_who_sends_tiny_chunks_lets_others_have_a_turn(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    turns = 0

    async def turn() -> None:
        nonlocal turns
        turns += 1

    chunks = PlainChunks(Wire(pair[0]), chunk(b"x") * 10_000 + END, turn)
    size = 0
    while piece := await chunks.next():
        size += len(piece)
    assert (size, chunks.rest) == (10_000, END)
    assert turns >= 10_000 // CHUNKS_AT_ONCE


async def drained(sock: socket.socket, limit: int = 1 << 30) -> bytes:
    got = bytearray()
    while len(got) < limit and (data := await asyncio.get_running_loop().sock_recv(sock, 65536)):
        got += data
    return bytes(got)


@pytest.mark.parametrize("size", [1, 4096, GATHERED_BYTES, 3_000_001])
@pytest.mark.parametrize("step", [1000, 4104, 1 << 20])
async def test_a_flow_passes_on_all_that_comes_in_its_order(
    pair: tuple[socket.socket, socket.socket],
    other: tuple[socket.socket, socket.socket],
    size: int,
    step: int,
) -> None:
    sent = noise(size)

    async def send() -> None:
        for begin in range(0, size, step):
            await asyncio.get_running_loop().sock_sendall(pair[0], sent[begin : begin + step])
        pair[0].close()

    flow = asyncio.create_task(Flow(Wire(pair[1]), Wire(other[0]), UserShare(UserLimits())).run())
    sending = asyncio.create_task(send())
    got = await drained(other[1], size)
    assert got == sent
    assert await flow is End.SOURCE_ENDED
    await sending


async def test_a_flow_to_one_who_does_not_read_takes_no_more_than_its_buffer_and_loses_nothing(
    pair: tuple[socket.socket, socket.socket], other: tuple[socket.socket, socket.socket]
) -> None:
    sent = 0

    async def send() -> None:
        nonlocal sent
        while True:
            await asyncio.get_running_loop().sock_sendall(pair[0], bytes(1000))
            sent += 1000

    flow = asyncio.create_task(Flow(Wire(pair[1]), Wire(other[0]), UserShare(UserLimits())).run())
    sending = asyncio.create_task(send())
    before = -1
    while sent > before:
        before = sent
        await asyncio.sleep(0.05)
    assert sent < 2 * 425_984 + BUFFER_BYTES, "two sockets' buffers and its own"
    sending.cancel()
    await asyncio.gather(sending, return_exceptions=True)
    pair[0].close()
    assert sent <= len(await drained(other[1], sent)) < sent + 1000
    assert await flow is End.SOURCE_ENDED


async def test_a_flow_says_which_end_was_lost(
    pair: tuple[socket.socket, socket.socket], other: tuple[socket.socket, socket.socket]
) -> None:
    flow = asyncio.create_task(Flow(Wire(pair[1]), Wire(other[0]), UserShare(UserLimits())).run())
    other[1].close()
    pair[0].send(b"x")
    assert await flow is End.SINK_LOST
    pair[1].send(b"never read")
    reset = asyncio.create_task(Flow(Wire(pair[1]), Wire(other[0]), UserShare(UserLimits())).run())
    pair[0].close()
    assert await reset is End.SOURCE_LOST


async def test_many_flows_of_one_user_take_turns_and_all_come_to_their_end() -> None:
    share, ways = UserShare(UserLimits()), []
    for _ in range(30):
        source, sink = socket.socketpair(), socket.socketpair()
        for sock in (*source, *sink):
            sock.setblocking(False)
        ways.append((source, sink))
    flows = [asyncio.create_task(Flow(Wire(a[1]), Wire(b[0]), share).run()) for a, b in ways]
    cancelled = flows.pop()
    for source, _ in ways:
        source[0].send(noise(5000))
    await asyncio.sleep(0)
    cancelled.cancel()
    for source, _ in ways:
        source[0].close()
    async with asyncio.timeout(30):
        assert set(await asyncio.gather(*flows)) == {End.SOURCE_ENDED}
    for _, sink in ways[:-1]:
        assert await drained(sink[1], 5000) == noise(5000)
    for way in ways:
        for sock in (*way[0], *way[1]):
            sock.close()


@pytest.mark.parametrize("passes", range(8))
async def test_a_flow_that_is_cancelled_while_it_waits_for_its_turn_leaves_no_reader_to_the_next_socket(
    pair: tuple[socket.socket, socket.socket], other: tuple[socket.socket, socket.socket], passes: int
) -> None:
    share = UserShare(UserLimits())
    flow = asyncio.create_task(Flow(Wire(pair[1]), Wire(other[0]), share).run())
    await asyncio.sleep(0)
    before = [share.queue_for_turn() for _ in range(4)]
    assert share.take_turn()
    pair[0].send(b"x")
    for _ in range(passes):
        await asyncio.sleep(0)
    flow.cancel()
    await asyncio.gather(flow, *before, return_exceptions=True)
    await share.turn()
    assert not asyncio.get_running_loop().remove_reader(pair[1])


@pytest.mark.parametrize("size", [0, 3, 100_000, 1_000_000])
async def test_what_asyncio_had_read_of_a_connection_is_not_lost_when_it_is_taken_over(
    pair: tuple[socket.socket, socket.socket], size: int
) -> None:
    sent = noise(size)
    reader, writer = await asyncio.open_unix_connection(sock=pair[1])
    sending = asyncio.create_task(asyncio.get_running_loop().sock_sendall(pair[0], sent))
    for _ in range(10):
        await asyncio.sleep(0)
    wire, got = await taken_over(reader, writer)
    while len(got) < size:
        got += await wire.read()
    assert got == sent
    await sending
    pair[0].close()
    assert await wire.read() == b""
    wire.close()
    writer.close()
    await writer.wait_closed()
