"""Gates before a recording engine, one for each kind of caller, in an event loop of their own."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from gpushared.domain.model.errors import GpushareError
from gpushared.domain.model.request import Caller
from gpushared.gate.api.routes import Target, parse_target
from gpushared.gate.docker_gate import Gate
from gpushared.net.http_server import Exchange, Limits
from gpushared.storage.audit.line import AuditLine
from tests.gate.fuzz.recording import Recorder, recording
from tests.gate.fuzz.rig import Rig
from tests.gate.lease_services import FakeLeaseService
from tests.gate.serving import ALICE, ROOT, ServedSocket, raw_client, serving_gate

LIMITS = Limits(head_seconds=0.3, body_seconds=0.3)
ANSWER_SECONDS = 20


@dataclass(frozen=True)
class UnderstoodRequest:
    """A request that came to the gate, as the gate understood it; None where it did not."""

    method: str
    target: Target | None
    streamed: str
    """The digest of the body as it was read."""


@dataclass
class Outcome:
    """What one client's bytes led to."""

    answers: bytes = b""
    judged: list[UnderstoodRequest] = field(default_factory=list)
    lines: list[AuditLine] = field(default_factory=list)
    reached: list[bytes] = field(default_factory=list)
    """What the engine got, by connection."""


class _WatchedGate(Gate):
    """Record the requests as the gate understands them."""

    def __init__(self, engine: str, lease_service: FakeLeaseService, outcome: Outcome) -> None:
        super().__init__(engine, lease_service, audit=outcome.lines.append)
        self._outcome = outcome

    async def handle(self, exchange: Exchange) -> None:
        try:
            await super().handle(exchange)
        finally:
            self._outcome.judged.append(
                UnderstoodRequest(exchange.method, _understood(exchange), exchange.body_digest)
            )


def _understood(exchange: Exchange) -> Target | None:
    try:
        return parse_target(exchange.target)
    except GpushareError:
        return None


class RecordedGates(Rig):
    """``talk`` is one client's connection from its first byte to the end of everything it started."""

    def __init__(self) -> None:
        super().__init__()
        self._outcome = Outcome()
        self._recorder = Recorder()
        self.lease_service = FakeLeaseService()
        self._served: dict[Caller, ServedSocket] = {}

    def talk(self, raw: bytes, caller: Caller) -> Outcome:
        """Send ``raw`` and no more; what came of it."""
        return self.runner.run(self._talk(raw, caller))

    async def open(self) -> None:
        self._recorder = await self.stack.enter_async_context(recording())
        for caller in (ROOT, ALICE):
            gate = _WatchedGate(self._recorder.path, self.lease_service, self._outcome)
            serving = serving_gate(gate, caller, LIMITS)
            self._served[caller] = await self.stack.enter_async_context(serving)

    async def _talk(self, raw: bytes, caller: Caller) -> Outcome:
        outcome = self._outcome
        for kept in (outcome.judged, outcome.lines, outcome.reached, self._recorder.connections):
            kept.clear()
        async with asyncio.timeout(ANSWER_SECONDS), raw_client(self._served[caller]) as client:
            try:
                await client.send(raw)
                client.writer.write_eof()
                answers = await client.reader.read()
            except ConnectionError:
                answers = b""
        await self._settled()
        reached = [bytes(got) for got in self._recorder.connections]
        return Outcome(answers, list(outcome.judged), list(outcome.lines), reached)

    async def _settled(self) -> None:
        async with asyncio.timeout(ANSWER_SECONDS):
            while any(len(served.connections) for served in self._served.values()):  # noqa: ASYNC110 - no event says it
                await asyncio.sleep(0.001)
            while self._recorder.open:  # noqa: ASYNC110 - as above
                await asyncio.sleep(0.001)
