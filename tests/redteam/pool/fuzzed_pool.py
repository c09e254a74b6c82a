"""A coordinator under attack, and the oracles that tell whether an attack came through."""

from __future__ import annotations

import asyncio
import re
import secrets
import ssl
import statistics
import struct
import time
from collections.abc import Awaitable, Sequence
from contextlib import suppress
from typing import Any, TypeVar

import grpc
import psutil
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass

from gpushared.api.v1 import link_pb2
from gpushared.domain.model.lease import JobId
from gpushared.pool.link import codec
from gpushared.pool.member.enrolment import Enrolment
from gpushared.pool.trust.assertions import _CONTEXT, ASSERTION_METADATA, request_digest
from gpushared.pool.trust.people import coordinator_host
from tests.gate.fuzz.rig import Rig
from tests.node.daemon import make_directory
from tests.pool.processes import POOL, CoordinatorProcess
from tests.redteam.pool.honest import NODE, PERSON, HonestNode, HonestUser
from tests.redteam.pool.hostile import (
    ATTACKER,
    CONNECT,
    DIGEST,
    ME,
    MEMBERS,
    METHODS,
    NONCE,
    NOW,
    RENEW,
    SERVE,
    SIGN,
    SIGNED,
    TOKEN,
    Call,
)

MIB = 1 << 20
BOUND_BYTES = 600 * MIB
"""A coordinator begins with 80 MiB, and holds 250 MiB at most of messages under way (``test_memory``). The
rest is for the jobs that attackers may keep, by the bounds of each person's queue: 3 000 batches led to
370 MiB in all."""
ANSWER_SECONDS = 1.0
"""So long may the coordinator work before somebody else is answered."""
WAIT_SECONDS = 5.0
"""So long may somebody else wait, which is longer because this machine runs other tests, too."""
SLOWER = 20
"""On a slow machine the wait may be so many times that of a quiet moment."""
CALL_SECONDS = 0.3
"""An attacker does not wait for longer."""
ROWS_SECONDS = 20.0
TROUBLE = re.compile(
    rb"Traceback|exception was never retrieved|was destroyed but it is pending|Unhandled|not handled"
)
LAST_BEAT = 1 << 40
TOKEN_FIELD = b"\x1a\x05" + TOKEN.encode()
"""The field of a join token, by its number and its length."""
GIVEN_UP = (TimeoutError, grpc.aio.AioRpcError, asyncio.InvalidStateError, OSError, asyncio.CancelledError)
_Answer = TypeVar("_Answer")


class FuzzedPool(Rig):
    """A coordinator with a store in a process of its own, the honest ones, and the attackers' connections.

    ``most_bytes`` and ``slowest``: the most memory that the coordinator held, and its longest work in
    seconds before an answer, for whoever sets the bounds.
    """

    def __init__(self) -> None:
        super().__init__()
        self.coordinator = CoordinatorProcess(make_directory(), config="[users.boss]\nadmin = true\n")
        self.members: dict[str, Enrolment] = {}
        self.tokens: dict[str, str] = {}
        self.baseline = 0.0
        self.most_bytes = 0
        self.slowest = 0.0
        self._read_log = 0
        self._connections = 0
        self._recent: list[Sequence[Call]] = []

    async def open(self) -> None:
        self.stack.callback(self.coordinator.dispose)
        await asyncio.to_thread(self.coordinator.start)
        for person, scopes in (("user", ()), ("admin", ("admin",)), (PERSON, ())):
            name = {"user": ATTACKER, "admin": "boss"}.get(person, person)
            self.tokens[person] = (
                await asyncio.to_thread(self.coordinator.token_file, name, *scopes)
            ).read_text()
        self.anchors = await asyncio.to_thread(self.coordinator.admin.anchors)
        for name in [NODE, *(f"{ME}{number}" for number in range(MEMBERS))]:
            self.members[name] = await self._joined(name)
        token = await asyncio.to_thread(self.coordinator.admin.create_join_token, node="new")
        self._token = token.token.encode()
        forwarder = await asyncio.start_server(self._forward, "127.0.0.1", 0)
        self.stack.push_async_callback(self._end_forwarder, forwarder)
        self._forwarder = forwarder.sockets[0].getsockname()[1]
        self._channels = {
            "user": await self.stack.enter_async_context(self._by_token(self.coordinator.ports[0])),
            **{name: await self.stack.enter_async_context(self._of_member(name)) for name in self.members},
        }
        self._channels["admin"] = self._channels["user"]
        await self._open_honest()

    async def _open_honest(self) -> None:
        channel = await self.stack.enter_async_context(self._by_token(self.coordinator.ports[0], own=True))
        self.user = HonestUser(channel, self.tokens[PERSON])
        self.node = HonestNode(self.members[NODE])
        self.stack.push_async_callback(self.node.close)
        await self.node.beat()
        await self.user.begin()
        async with asyncio.timeout(ROWS_SECONDS):
            await self.node.runs.wait()
            while (await self.user.job()).state != "running":  # noqa: ASYNC110 - the coordinator tells nobody
                await asyncio.sleep(0.05)
        await self.node.beat()
        self._rows = await self._told_rows()
        quiet = []
        for _ in range(5):
            since = time.monotonic()
            await self._ask()
            quiet.append(time.monotonic() - since)
        self.baseline = statistics.median(quiet)

    async def _joined(self, name: str) -> Enrolment:
        token = (await asyncio.to_thread(self.coordinator.admin.create_join_token, node=name)).token
        enrolment = Enrolment(self.coordinator.directory / "members" / name, time.time, lambda _: None)
        await enrolment.join(self.coordinator.address, token, name)
        return enrolment

    def _by_token(self, port: int, *, own: bool = False) -> grpc.aio.Channel:
        """Open a channel, with ``own`` over a connection that no other channel uses."""
        options = [
            ("grpc.ssl_target_name_override", coordinator_host(POOL)),
            ("grpc.use_local_subchannel_pool", int(own)),
        ]
        return grpc.aio.secure_channel(
            f"127.0.0.1:{port}", grpc.ssl_channel_credentials(self.anchors), options
        )

    def _of_member(self, name: str) -> grpc.aio.Channel:
        enrolment = self.members[name]
        options = [("grpc.ssl_target_name_override", enrolment.server_name())]
        return grpc.aio.secure_channel(enrolment.addresses()[0], enrolment.credentials(), options)

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Lend each connection of nobody an address of its own, else one address would soon try too often."""
        self._connections += 1
        high, low = divmod(self._connections % 60_000, 250)
        there = await asyncio.open_connection(
            "127.0.0.1", self.coordinator.ports[0], local_addr=(f"127.1.{high}.{low + 1}", 0)
        )
        ways = [asyncio.create_task(_copy(reader, there[1])), asyncio.create_task(_copy(there[0], writer))]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            for end in (there[1], writer):
                end.transport.abort()

    async def _end_forwarder(self, forwarder: asyncio.Server) -> None:
        forwarder.close()

    # --- attacks -------------------------------------------------------------------------------------------

    def attack(self, batch: Sequence[Call]) -> None:
        """Make all calls at once while the honest ones ask, and judge by the oracles."""
        self._recent = [*self._recent[-1:], batch]
        self.runner.run(self._attack(batch))

    async def _attack(self, batch: Sequence[Call]) -> None:
        attacks = asyncio.gather(*(self._make(call) for call in batch))
        try:
            while not attacks.done():
                await self._judge()
        finally:
            attacks.cancel()
            await asyncio.gather(attacks, return_exceptions=True)
        attacks.result()
        await self._judge()
        await self._judge_rows()

    async def _make(self, call: Call) -> None:
        with suppress(*GIVEN_UP):
            async with asyncio.timeout(CALL_SECONDS):
                if not call.path:
                    await self._make_noise(call)
                elif call.who == "nobody":
                    async with self._by_token(self._forwarder, own=True) as channel:
                        await self._talk(channel, call)
                else:
                    await self._talk(self._channels[call.who], call)

    async def _talk(self, channel: grpc.aio.Channel, call: Call) -> None:
        messages = [self._prepared(call, message) for message in call.messages]
        stream: Any = channel.stream_stream(call.path)(metadata=self._metadata(call, messages))
        writing = asyncio.create_task(_write(stream, messages, ends=call.path not in {CONNECT, SERVE}))
        try:
            while (answer := await stream.read()) is not grpc.aio.EOF:
                if call.path == CONNECT and _is_last(answer):
                    break
        finally:
            writing.cancel()
            stream.cancel()
            await asyncio.gather(writing, return_exceptions=True)

    def _metadata(self, call: Call, messages: Sequence[bytes]) -> tuple[tuple[str, str | bytes], ...]:
        if call.who in {"user", "admin"}:
            return (("authorization", f"Bearer {self.tokens[call.who].strip()}"),)
        if not call.who.startswith(ME) or call.path in {CONNECT, SERVE} or not messages:
            return ()
        kind: type[Message] = GetMessageClass(METHODS[call.path].input_type)
        with suppress(DecodeError):
            digest = request_digest(kind.FromString(messages[0]))
            signed = self._odd_word(call, digest) if call.word else self._signed(call.who, digest)
            return ((ASSERTION_METADATA, signed),)
        return ()

    def _odd_word(self, call: Call, digest: bytes) -> bytes:
        """Sign what is no assertion, or an odd one; gRPC takes 8 KiB of metadata."""
        membership = self.members[call.who].membership
        assert membership is not None
        text = call.word[:6000].replace(f"@{ME}".encode(), f"@{call.who}".encode())
        text = text.replace(DIGEST.encode() + b'",', digest.hex().encode() + b'",')
        text = text.replace(NONCE.encode(), secrets.token_hex(16).encode())
        for seconds in (0, 50):
            text = text.replace(str(NOW + seconds).encode(), str(time.time() + seconds).encode())
        return membership.speaks.sign(_CONTEXT + text) + text

    def _signed(self, member: str, digest: bytes) -> bytes:
        return self.members[member].asserter().sign(f"{ATTACKER}@{member}", (), digest, time.time())

    def _prepared(self, call: Call, message: bytes | int) -> bytes:
        """Return the message with the member's own name, the time, a join token and valid assertions."""
        if isinstance(message, int):
            return self.node.sent[message % len(self.node.sent)]
        if call.path in {SIGN, RENEW}:
            now = struct.pack("<d", NOW), struct.pack("<d", time.time())
            return message.replace(*now).replace(
                TOKEN_FIELD, b"\x1a" + bytes([len(self._token)]) + self._token
            )
        if call.path != CONNECT:
            return message
        try:
            up = link_pb2.Up.FromString(message)
        except DecodeError:
            return message
        if up.hello.node == ME:
            up.hello.node = call.who
        digests = {
            "job": lambda: codec.job_digest(JobId(up.job.job_id), up.job.spec),
            "cancel": lambda: codec.cancel_digest(JobId(up.cancel.job_id), up.cancel.grace_seconds),
            "client_gone": lambda: codec.gone_digest(JobId(up.client_gone.job_id)),
        }
        what = up.WhichOneof("what") or ""
        if what in digests and call.who in self.members and getattr(up, what).assertion == SIGNED:
            getattr(up, what).assertion = self._signed(call.who, digests[what]())
        return up.SerializeToString()

    async def _make_noise(self, call: Call) -> None:
        context = None
        if call.who.endswith("TLS"):
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            context.set_alpn_protocols(["h2"])
        port = self.coordinator.ports[0 if call.who.startswith("users") else 1]
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
        try:
            for message in call.messages:
                assert isinstance(message, bytes)
                writer.write(message)
            async with asyncio.timeout(0.2):
                await reader.read(100)
        finally:
            writer.transport.abort()

    # --- oracles -------------------------------------------------------------------------------------------

    async def _judge(self) -> None:
        await self._ask()
        held = self.process.memory_info().rss
        self.most_bytes = max(self.most_bytes, held)
        assert held < BOUND_BYTES, f"the coordinator holds {held // MIB} MiB"
        self.check_log()

    @property
    def process(self) -> psutil.Process:
        assert self.coordinator.process is not None
        return psutil.Process(self.coordinator.process.pid)

    async def _ask(self) -> None:
        """Make the calls that the honest ones make all the time, and time each."""
        await self._timed("a beat", self.node.beat())
        job = await self._timed("Submit", self.user.submit())
        assert (await self._timed("Get", self.user.job(job))).state == "held"
        await self._timed("List", self.user.listed())
        await self._timed("Cancel", self.user.cancel(job))

    async def _timed(self, what: str, asking: Awaitable[_Answer]) -> _Answer:
        """Return the answer. The coordinator may not work for long before it gives the answer.

        Its work is counted in seconds of the processor, as another test may have the processor meanwhile. A
        coordinator that only waits fails, too, but after a longer time.
        """
        since, worked = time.monotonic(), self._worked()
        longest = max(WAIT_SECONDS, SLOWER * self.baseline)
        try:
            async with asyncio.timeout(longest):
                answer = await asking
        except TimeoutError:
            raise AssertionError(f"{what} was not answered in {longest:.1f} s") from None
        seconds = min(time.monotonic() - since, self._worked() - worked)
        self.slowest = max(self.slowest, seconds)
        assert seconds <= ANSWER_SECONDS, f"{what} was answered after {seconds:.1f} s of work"
        return answer

    def _worked(self) -> float:
        times = self.process.cpu_times()
        return times.user + times.system

    def check_log(self) -> None:
        with (self.coordinator.directory / "log").open("rb") as log:
            log.seek(self._read_log)
            text = log.read()
        self._read_log += len(text)
        found = TROUBLE.search(text)
        assert found is None, (
            f"after {self._recent}:\n{text[max(0, found.start() - 500) : found.end() + 4000].decode()}"
        )

    async def _told_rows(self) -> tuple[object, object]:
        """Return the honest rows of ``nodes`` and ``jobs``.

        A member may claim to know more than the coordinator, and then not tell what it has. Meanwhile a job
        that was cancelled stays, as ``cancelling``: it may run there.
        """
        jobs = [job for job in await self.user.listed() if job.state != "cancelling"]
        for job in jobs:
            job.ClearField("token")
        return await self.user.node(), jobs

    async def _judge_rows(self) -> None:
        """Check that the honest ones are shown what they were shown before the attacks.

        A claim of a node may end all streams, so the honest node connects again first.
        """
        until = time.monotonic() + ROWS_SECONDS
        while (rows := await self._told_rows()) != self._rows:
            assert time.monotonic() < until, f"the honest rows are {rows}, and were {self._rows}"
            await self.node.beat()
            await asyncio.sleep(0.1)


async def _write(stream: Any, messages: Sequence[bytes], *, ends: bool) -> None:
    for message in messages:
        await stream.write(message)
    if ends:
        await stream.done_writing()
    else:
        await stream.write(link_pb2.Up(beat=link_pb2.Beat(seq=LAST_BEAT)).SerializeToString())


def _is_last(answer: bytes) -> bool:
    down = link_pb2.Down.FromString(answer)
    return down.HasField("refuse") or down.beat_ack.seq == LAST_BEAT


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
