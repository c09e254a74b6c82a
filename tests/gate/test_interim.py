"""Clients that wait in the queue are told that their answer is still to come, where they bear to hear it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

import docker as sdk
import pytest

from gpushared.domain.model.lease import ContainerId
from gpushared.domain.model.request import Caller
from gpushared.gate.docker_gate import Gate
from gpushared.gate.handlers.call import MOST_INTERIM_ANSWERS, reads_on
from gpushared.net.http_server import Exchange, Limits, Routes
from tests.gate.docker import Docker
from tests.gate.lease_services import FakeLeaseService, facts
from tests.gate.serving import (
    ROOT,
    RawClient,
    ServedSocket,
    answer_json,
    raw_client,
    request,
    serving,
    serving_gate,
)

SHORT = Limits(interim_seconds=0.05)
SDK = "User-Agent: docker-sdk-python/7.2.0"
GO = "User-Agent: Docker-Client/28.5.2 (linux)"
CREATED, NOTHING, CONTINUE, BAD, GONE = 201, 204, 100, 400, 503


@pytest.fixture
async def served(lease_service: FakeLeaseService, docker_engine: str) -> AsyncIterator[ServedSocket]:
    async with serving_gate(Gate(docker_engine, lease_service), ROOT, SHORT) as served:
        yield served


def create(image: str, *headers: str, version: str = "1.1", lease: str = "") -> bytes:
    """A create that asks for a GPU, or comes with the lease."""
    label = {"gpushare.lease": lease} if lease else {"gpushare.gpu": "1"}
    body = {"Image": image, "Cmd": ["true"], "Labels": label}
    sent = request("POST", "/containers/create", json.dumps(body).encode(), *headers)
    return sent.replace(b"HTTP/1.1", f"HTTP/{version}".encode(), 1)


async def statuses(client: RawClient) -> list[int]:
    """All that a request is answered with, the interim answers first."""
    told = [(await client.reply()).status]
    while told[-1] == CONTINUE:
        told.append((await client.reply()).status)
    return told


@pytest.mark.parametrize(
    ("headers", "version", "hears"),
    [
        ([SDK], "1.1", True),
        (["User-Agent: tc-python/4.15.0"], "1.1", True),
        (["User-Agent: Python/3.11 aiohttp/3.14.5"], "1.1", True),
        (["User-Agent: node"], "1.1", True),
        ([], "1.1", True),
        (["User-Agent: Docker-Client/28.5.2 (linux)"], "1.1", False),
        (["User-Agent: Go-http-client/1.1"], "1.1", False),
        (["User-Agent: moby-client/v0.2.1 linux/amd64"], "1.1", False),
        (["User-Agent: gitlab-runner 18.2.0"], "1.1", False),
        ([SDK], "1.0", False),
    ],
)
async def test_who_waits_hears_so_but_no_program_in_go_and_no_proxy_of_old(
    served: ServedSocket,
    lease_service: FakeLeaseService,
    busybox_image: str,
    headers: list[str],
    version: str,
    hears: bool,
) -> None:
    lease_service.has_capacity.clear()
    async with raw_client(served) as client, asyncio.timeout(30):
        await client.send(create(busybox_image, *headers, version=version))
        await lease_service.waiting.wait()
        await asyncio.sleep(8 * SHORT.interim_seconds)
        lease_service.has_capacity.set()
        told = await statuses(client)
    assert told[-1] == CREATED
    assert (CONTINUE in told) is hears


async def test_a_start_and_a_restart_that_wait_say_so_too(
    lease_service: FakeLeaseService, docker_engine: str, busybox_image: str, name: str
) -> None:
    class SlowLeaseService(FakeLeaseService):
        async def before_start(self, container: ContainerId, caller: Caller) -> None:
            await asyncio.sleep(4 * SHORT.interim_seconds)

        async def before_restart(self, container: ContainerId, caller: Caller) -> None:
            await self.before_start(container, caller)

    lease_service = SlowLeaseService(facts=facts())
    async with (
        serving_gate(Gate(docker_engine, lease_service), ROOT, SHORT) as served,
        raw_client(served) as client,
    ):
        async with asyncio.timeout(60):
            await client.send(create(busybox_image, SDK).replace(b"/create", f"/create?name={name}".encode()))
            assert (await statuses(client))[-1] == CREATED
            for word in ("start", "restart"):
                await client.send(request("POST", f"/containers/{name}/{word}?t=0", b"", SDK))
                told = await statuses(client)
                assert told[0] == CONTINUE
                assert told[-1] == NOTHING
            await client.send(request("DELETE", f"/containers/{name}?force=1"))
            assert (await client.head())[0] == NOTHING


async def test_who_hears_nothing_more_after_a_hundred_is_answered_all_the_same(
    lease_service: FakeLeaseService, docker_engine: str, busybox_image: str
) -> None:
    often = Limits(interim_seconds=0.001)
    lease_service.has_capacity.clear()
    async with (
        serving_gate(Gate(docker_engine, lease_service), ROOT, often) as served,
        raw_client(served) as client,
    ):
        async with asyncio.timeout(30):
            await client.send(create(busybox_image, SDK))
            await lease_service.waiting.wait()
            for _ in range(MOST_INTERIM_ANSWERS):
                assert (await client.head())[0] == CONTINUE
            await asyncio.sleep(0.1)
            lease_service.has_capacity.set()
            assert (await client.head())[0] == CREATED


async def test_who_goes_away_while_told_to_wait_leaves_the_queue(
    served: ServedSocket, lease_service: FakeLeaseService, busybox_image: str
) -> None:
    lease_service.has_capacity.clear()
    async with raw_client(served) as client, asyncio.timeout(30):
        await client.send(create(busybox_image, SDK))
        assert (await client.head())[0] == CONTINUE
    async with asyncio.timeout(30):
        await lease_service.left_queue.wait()
    assert lease_service.call_names == ["acquire", "left the queue"]


async def test_a_request_leaves_the_queue_when_the_way_to_its_client_is_broken_for_too_long(
    lease_service: FakeLeaseService, docker_engine: str, busybox_image: str
) -> None:
    """What is told of it is read by a client whose way is whole again."""
    away = False
    lease_service.has_capacity.clear()
    gate = Gate(docker_engine, lease_service)
    async with serving_gate(gate, ROOT, SHORT, lambda: away) as served, raw_client(served) as client:
        async with asyncio.timeout(30):
            await client.send(create(busybox_image, GO))
            await lease_service.waiting.wait()
            await asyncio.sleep(8 * SHORT.interim_seconds)
            assert not lease_service.left_queue.is_set()
            away = True
            reply = await client.reply()
            assert (reply.status, lease_service.call_names) == (GONE, ["acquire", "left the queue"])
            assert "was broken for too long" in reply.message


async def test_a_create_that_has_its_lease_goes_on_whether_or_not_its_client_can_be_seen(
    lease_service: FakeLeaseService, docker_engine: str, busybox_image: str
) -> None:
    gate = Gate(docker_engine, lease_service)
    often = Limits(interim_seconds=0.001)
    async with serving_gate(gate, ROOT, often, lambda: True) as served, raw_client(served) as client:
        async with asyncio.timeout(30):
            await client.send(create(busybox_image, GO, lease="l-mine"))
            assert (await client.reply()).status == CREATED


async def test_what_floods_behind_a_request_that_waits_hides_no_client_that_is_gone(
    served: ServedSocket, lease_service: FakeLeaseService, busybox_image: str
) -> None:
    """Its end would stand behind what nobody reads."""
    lease_service.has_capacity.clear()
    async with raw_client(served) as client, asyncio.timeout(30):
        await client.send(create(busybox_image, GO))
        await lease_service.waiting.wait()
        client.writer.write(bytes(8 << 20))
        reply = await client.reply()
        assert (reply.status, lease_service.call_names) == (BAD, ["acquire", "left the queue"])
        assert "too much was sent behind a request" in reply.message


async def test_what_is_refused_after_a_wait_is_refused_in_the_usual_words(
    served: ServedSocket, lease_service: FakeLeaseService, busybox_image: str
) -> None:
    lease_service.has_capacity.clear()
    async with raw_client(served) as client, asyncio.timeout(30):
        await client.send(create("no-such-image", SDK))
        assert (await client.reply()).status == 404
        await client.send(create(busybox_image, SDK))
        assert (await client.head())[0] == CONTINUE
        lease_service.has_capacity.set()
        assert (await statuses(client))[-1] == CREATED


async def test_the_docker_cli_and_compose_are_known_for_what_they_are(
    docker_environment: dict[str, str], busybox_image: str
) -> None:
    heard: list[tuple[bytes | None, bool]] = []

    async def note(exchange: Exchange) -> None:
        heard.append((exchange.header(b"user-agent"), reads_on(exchange)))
        await exchange.respond(503)

    async with serving(Routes(json=answer_json, docker=note)) as served:
        docker = Docker(served.url, docker_environment, busybox_image)
        for words in (("create", busybox_image), ("compose", "-p", "none", "ps")):
            await docker(*words)
    assert {name.partition(b"/")[0] for name, _ in heard if name} == {b"Docker-Client", b"compose"}
    assert not any(read for _, read in heard), heard


async def test_the_docker_sdk_waits_longer_than_its_timeout(
    served: ServedSocket, lease_service: FakeLeaseService, busybox_image: str
) -> None:
    lease_service.has_capacity.clear()

    def create_and_remove() -> None:
        client = sdk.DockerClient(served.url, timeout=1)
        client.containers.create(busybox_image, "true", labels={"gpushare.gpu": "1"}).remove()
        client.close()

    creating = asyncio.create_task(asyncio.to_thread(create_and_remove))
    await lease_service.waiting.wait()
    await asyncio.sleep(3)
    lease_service.has_capacity.set()
    await creating
