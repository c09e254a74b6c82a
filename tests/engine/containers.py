"""What tests do to real containers, and a stand-in for an engine that misbehaves."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Protocol

from docker import APIClient
from docker.errors import APIError
from docker.types import DeviceRequest

from gpushared.domain.model.lease import ContainerId
from gpushared.engine.cdi import qualified_name
from gpushared.ports import LABEL_DEVICE, LABEL_OWNER, ContainerFacts, ContainerStatus, Engine
from tests.bed.parts import BUSYBOX_IMAGE

OBEDIENT = (
    "trap 'exit 143' TERM; [ -p /order ] || mkfifo /order; cat /order >/code & wait $!; exit $(cat /code)"
)
"""Runs until it is told an exit code, or asked to stop."""
PATIENCE_SECONDS = 30


class Containers(Protocol):
    """What a test does to containers behind the adapter's back; `FakeEngine` has the same."""

    def create(
        self,
        device_name: str = "",
        *,
        name: str = "",
        owner_uid: int | None = None,
        restart_policy: str = "no",
    ) -> ContainerId: ...
    def start(self, container: ContainerId) -> None: ...
    def exit(self, container: ContainerId, code: int = 0) -> None: ...
    def pause(self, container: ContainerId) -> None: ...
    def unpause(self, container: ContainerId) -> None: ...
    def remove(self, container: ContainerId) -> None: ...


class DockerContainers:
    """Containers of one engine, all of which `clean_up` removes."""

    def __init__(self, socket: str) -> None:
        self.client = APIClient(f"unix://{socket}", version="auto")
        self._made: list[ContainerId] = []

    def create(
        self,
        device_name: str = "",
        *,
        name: str = "",
        owner_uid: int | None = None,
        restart_policy: str = "no",
        command: Sequence[str] = ("sh", "-c", OBEDIENT),
        environment: Mapping[str, str] | None = None,
        leases: Sequence[str] = (),
        auto_remove: bool = False,
    ) -> ContainerId:
        labels = {LABEL_DEVICE: device_name} if device_name else {}
        if owner_uid is not None:
            labels[LABEL_OWNER] = str(owner_uid)
        host_config = self.client.create_host_config(
            network_mode="none",
            restart_policy={"Name": restart_policy, "MaximumRetryCount": 0},
            device_requests=[
                DeviceRequest(driver="cdi", device_ids=[qualified_name(lease)]) for lease in leases
            ],
            auto_remove=auto_remove,
        )
        answer = self.client.create_container(
            BUSYBOX_IMAGE,
            list(command),
            name=name or unique_name(),
            labels=labels,
            environment=dict(environment or {}),
            host_config=host_config,
        )
        container = ContainerId(answer["Id"])
        self._made.append(container)
        return container

    def start(self, container: ContainerId) -> None:
        self.client.start(container)

    def exit(self, container: ContainerId, code: int = 0) -> None:
        order = f"until [ -p /order ]; do sleep 0.01; done; echo {code} >/order"
        self.client.exec_start(self.client.exec_create(container, ["sh", "-c", order])["Id"])

    def pause(self, container: ContainerId) -> None:
        self.client.pause(container)

    def unpause(self, container: ContainerId) -> None:
        self.client.unpause(container)

    def remove(self, container: ContainerId) -> None:
        self.client.remove_container(container, force=True)

    def output(self, container: ContainerId) -> str:
        """What the container wrote to its standard output, once it has ended."""
        self.client.wait(container)
        return self.client.logs(container, stdout=True, stderr=False).decode()

    def clean_up(self) -> None:
        for container in self._made:
            try:
                self.remove(container)
            except APIError as error:
                # Gone, or about to: the engine itself is removing it.
                if error.status_code not in {404, 409}:
                    raise
        self.client.close()


def unique_name() -> str:
    return f"gpushared-test-{uuid.uuid4().hex[:12]}"


Event = ContainerFacts | ContainerId


def is_now(container: ContainerId, status: ContainerStatus) -> Callable[[Event], bool]:
    return lambda told: isinstance(told, ContainerFacts) and (told.id, told.status) == (container, status)


def is_gone(container: ContainerId) -> Callable[[Event], bool]:
    return lambda told: told == container


async def event(stream: AsyncIterator[Event], wanted: Callable[[Event], bool]) -> Event:
    """The first event that is wanted; others are read over: engines repeat themselves, and are shared."""
    return (await events_until(stream, wanted))[-1]


async def events_until(stream: AsyncIterator[Event], wanted: Callable[[Event], bool]) -> list[Event]:
    """All events up to the first one that is wanted."""
    told: list[Event] = []
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not told or not wanted(told[-1]):
            told.append(await anext(stream))
    return told


async def facts(engine: Engine, container: ContainerId) -> ContainerFacts:
    found = await engine.inspect(container)
    assert found is not None, f"container {container} is gone"
    return found


Answer = Callable[[str, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def stand_in(socket: Path, answer: Answer) -> AsyncIterator[None]:
    """Something on a socket that is no good engine: `answer` gets each request line and may write anything.

    The connection stays open until the end of the block unless `answer` closes it.
    """
    before = asyncio.all_tasks()
    served: list[asyncio.StreamWriter] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        served.append(writer)
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                await answer(head.split(b"\r\n")[0].decode(), writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            return
        finally:
            writer.close()

    server = await asyncio.start_unix_server(serve, socket)
    try:
        yield
    finally:
        server.close()
        # Connections may still be on their way in; each ends with its task.
        while tasks := asyncio.all_tasks() - before:
            for writer in served:
                writer.transport.abort()
            await asyncio.wait(tasks, timeout=0.05)


def reply(body: bytes, status: str = "200 OK") -> bytes:
    return (
        f"HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n".encode()
        + body
    )


VERSION_REPLY = reply(b'{"ApiVersion": "1.41", "Version": "20.10"}')
STREAM_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"


def chunk(text: bytes) -> bytes:
    return f"{len(text):x}\r\n".encode() + text + b"\r\n"
