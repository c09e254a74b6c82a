"""Receivers of webhooks, and outboxes to send to them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpushared.config.notify import NotifyConfig, ProjectNotifyConfig
from gpushared.daemon.troubles import Troubles
from gpushared.domain.model.lease import LeaseId
from gpushared.domain.model.notification import GpuPart, Notification, NotificationKind
from gpushared.notify.outbox import DeliveryTiming, NotificationOutbox
from gpushared.notify.payload import Origin
from gpushared.notify.targets import routes_of
from gpushared.storage.notification_file import SqliteNotifications
from gpushared.testing import ManualClock

QUICK = DeliveryTiming(first_seconds=0.01, longest_seconds=0.05, file_seconds=0.02)
NOW = 1_800_000_000.0


@dataclass
class ReceivedRequest:
    """A request that a receiver was sent."""

    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def fields(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.body)
        return found


@dataclass
class Receiver:
    """An HTTP server; ``answer`` returns a status, or None to answer nothing at all."""

    answer: Callable[[ReceivedRequest], int | None] = lambda _: 204
    got: list[ReceivedRequest] = field(default_factory=list)
    port: int = 0
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def url(self, path: str = "/hook") -> str:
        return f"http://127.0.0.1:{self.port}{path}"

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[Receiver]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            server.close()

    async def has(self, count: int) -> list[ReceivedRequest]:
        """Return the requests once there are so many."""
        async with asyncio.timeout(20):
            while len(self.got) < count:
                await self.changed.wait()
                self.changed.clear()
        return self.got

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
            headers = {name.lower(): value.strip() for name, _, value in (h.partition(":") for h in head[1:])}
            body = await reader.readexactly(int(headers["content-length"]))
            got = ReceivedRequest(head[0].split(" ")[1], headers, body)
            status = self.answer(got)
            self.got.append(got)
            self.changed.set()
            if status is None:
                await reader.read()  # until the client goes
                return
            place = "location: http://127.0.0.1:9/\r\n" if 300 <= status < 400 else ""
            writer.write(f"HTTP/1.1 {status} X\r\n{place}content-length: 0\r\n\r\n".encode())
            await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


def event(
    number: int = 1,
    kind: NotificationKind = NotificationKind.ENDED,
    *,
    owner: str = "ada",
    uid: int | None = 1000,
    project: str = "vision",
    targets: tuple[str, ...] = (),
) -> Notification:
    lease = LeaseId(f"l-{number}")
    return Notification(
        kind,
        lease,
        "",
        NOW,
        f"{lease} of {owner} ended: exit code 0",
        lease=lease,
        owner=owner,
        owner_uid=uid,
        project=project,
        lease_class="train",
        gpus=(GpuPart("0", 1 << 30, 250),),
        outcome="finished",
        exit_code=0,
        container="my-box",
        image="secret/image",
        targets=targets,
    )


@dataclass
class OutboxWorld:
    """An outbox over a real file, whose configuration tests may change."""

    path: Path
    site: NotifyConfig = field(default_factory=NotifyConfig)
    projects: dict[str, ProjectNotifyConfig | None] = field(default_factory=dict)
    troubles: Troubles = field(default_factory=Troubles)
    clock: ManualClock = field(default_factory=lambda: ManualClock(NOW))

    @property
    def trouble(self) -> str:
        return self.troubles.of("notifications")

    @asynccontextmanager
    async def running(self) -> AsyncIterator[NotificationOutbox]:
        outbox = self.outbox()
        await outbox.open()
        running = asyncio.create_task(outbox.run())
        try:
            yield outbox
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            await outbox.close()

    def outbox(self) -> NotificationOutbox:
        return NotificationOutbox(
            SqliteNotifications(self.path),
            self.troubles,
            lambda: routes_of(self.site, self.projects),
            self.clock,
            Origin("gpu1", lambda: True, lambda at: at + 5),
            QUICK,
        )

    async def until(self, done: Callable[[], bool]) -> None:
        async with asyncio.timeout(20):
            while not done():  # noqa: ASYNC110 - a file and a program have no events
                await asyncio.sleep(0.01)
