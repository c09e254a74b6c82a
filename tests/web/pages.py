"""A page's end of a stream: a real HTTP connection, its events, and what the page makes of them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

from gpushared.api.v1 import jobs_pb2, leases_pb2
from gpushared.domain.model.errors import GpushareError
from gpushared.domain.model.request import Caller
from gpushared.net.http_server import Exchange, Routes
from gpushared.net.loopback import LoopbackGate
from gpushared.net.revisions import Revisions
from gpushared.net.unary_json import JsonApi, Unary
from gpushared.web.live_answers import Pace
from gpushared.web.log_feed import LogSource
from gpushared.web.stream import EventStreams
from gpushared.web.watches import CallWatch
from tests.web.page_changes import applied

ANNA, BEN = Caller(61041, 61041, "anna"), Caller(61042, 61042, "ben")
LEASES = {"leases": ["Leases/List", {}]}
SOON_SECONDS = 30.0
QUICK = Pace(0.0, 0.01)


@dataclass
class Event:
    """One server-sent event."""

    id: str
    kind: str
    data: dict[str, Any]


class Page:
    """Read a stream's events, and keep the answers as a page does."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.status, self.headers = 0, dict[str, str]()
        self.answers: dict[str, dict[str, Any]] = {}
        self.mark = ""
        self.writer = writer
        self._reader = reader
        self._text = ""

    async def head(self) -> None:
        head = (await self._reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        self.status = int(head[0].split()[1])
        self.headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in head[1:])}

    async def body(self) -> Any:
        return json.loads(await self._reader.readexactly(int(self.headers["content-length"])))

    async def event(self) -> Event:
        """The next event, which is no comment."""
        async with asyncio.timeout(SOON_SECONDS):
            while True:
                fields = dict(line.partition(": ")[::2] for line in (await self._block()).split("\n"))
                if "data" in fields:
                    return self._taken(Event(fields["id"], fields["event"], json.loads(fields["data"])))

    async def until(self, name: str, **members: Any) -> Event:
        """The next event of this name and with these members."""
        while True:
            event = await self.event()
            if event.data["name"] == name and members.items() <= event.data.items():
                return event

    async def has_ended(self) -> bool:
        """Read to the end; False if the connection broke before the end of the answer."""
        async with asyncio.timeout(SOON_SECONDS):
            try:
                while True:
                    await self._chunk()
            except (asyncio.IncompleteReadError, ConnectionError):
                return False
            except EOFError:
                return True

    def _taken(self, event: Event) -> Event:
        name, self.mark = event.data["name"], event.id
        if event.kind == "state":
            self.answers[name] = event.data["answer"]
        elif event.kind == "change":
            self.answers[name] = applied(self.answers[name], event.data)
        return event

    async def _block(self) -> str:
        while "\n\n" not in self._text:
            self._text += (await self._chunk()).decode()
        block, _, self._text = self._text.partition("\n\n")
        return block

    async def _chunk(self) -> bytes:
        size = int(await self._reader.readuntil(b"\r\n"), 16)
        data = (await self._reader.readexactly(size + 2))[:-2]
        if not size:
            raise EOFError
        return data


def request_of(watch: Mapping[str, Any], mark: str = "") -> bytes:
    """The head of the request for a stream."""
    last = f"Last-Event-ID: {mark}\r\n" if mark else ""
    return f"GET /stream?watch={quote(json.dumps(watch))} HTTP/1.1\r\nHost: x\r\n{last}\r\n".encode()


@dataclass
class Site:
    """A daemon that answers ``Leases/List`` from a field, and counts how often."""

    leases: leases_pb2.ListLeasesResponse = field(default_factory=leases_pb2.ListLeasesResponse)
    error: GpushareError | None = None
    job: jobs_pb2.Job = field(default_factory=jobs_pb2.Job)
    logs: LogSource | None = None
    pace: Pace = QUICK
    made: list[Caller] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._writers: list[asyncio.StreamWriter] = []
        self.revisions = Revisions()
        self.gate = LoopbackGate()
        calls = {
            "gpushare.v1.Leases/List": Unary(leases_pb2.ListLeasesRequest, self._list),
            "gpushare.v1.Leases/Stop": Unary(leases_pb2.StopRequest, self._list),
            "gpushare.v1.Jobs/Get": Unary(jobs_pb2.JobRef, self._job),
        }
        self.streams = EventStreams(
            JsonApi(calls, revision=lambda: self.revisions),
            self.revisions,
            self._pace_of,
            self.logs,
        )

    def change(self, lease: str, state: str) -> None:
        """Change a lease, or add it."""
        known = next((one for one in self.leases.leases if one.id == lease), None)
        (known or self.leases.leases.add(id=lease)).state = state
        self.revisions.state_changed()

    async def _list(self, message: leases_pb2.ListLeasesRequest, caller: Caller) -> Any:
        self.made.append(caller)
        if self.error is not None:
            raise self.error
        answer = leases_pb2.ListLeasesResponse()
        answer.CopyFrom(self.leases)
        return answer

    async def _job(self, message: jobs_pb2.JobRef, caller: Caller) -> jobs_pb2.Job:
        return self.job

    def _pace_of(self, watch: CallWatch) -> Pace:
        return self.pace

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[Site]:
        self.gate.serve(Routes(json=self.streams.live.calls.answer, docker=self._stream))
        try:
            yield self
        finally:
            await self.gate.close()
            await self.streams.close()
            for writer in self._writers:
                writer.transport.abort()
            await asyncio.sleep(0)  # so that they close

    async def _stream(self, exchange: Exchange) -> None:
        query = exchange.target.partition(b"?")[2].decode()
        await self.streams.serve(exchange, exchange.caller, query)

    async def open(self, watch: Mapping[str, Any], caller: Caller = ANNA, mark: str = "") -> Page:
        """Ask for a stream, and read the head of the answer."""
        return await self.ask(request_of(watch, mark), caller)

    async def ask(self, request: bytes, caller: Caller = ANNA) -> Page:
        """Send a request on a new connection, and read the head of the answer."""
        reader, writer = await self.gate.open_as(caller)
        self._writers.append(writer)
        writer.write(request)
        page = Page(reader, writer)
        await page.head()
        return page
