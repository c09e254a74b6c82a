"""Ports of the machine: how many a container would publish, and how many its owner may."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from gpushared.domain.model.errors import PermissionRefused
from gpushared.gate.api.body import LABEL_PORTS, check_ports, count_ports, recorded_ports
from gpushared.gate.api.site import NO_LIMIT, SitePolicy
from gpushared.gate.docker_gate import Gate
from tests.gate.lease_services import FakeLeaseService
from tests.gate.people import People, people
from tests.gate.serving import Reply

ONE, TWO = [{"HostPort": "8000"}], [{"HostPort": "8000"}, {"HostPort": "8001"}]


@pytest.mark.parametrize(
    ("host", "exposed", "count"),
    [
        ({}, ["80/tcp"], 0),
        ({"PortBindings": {"80/tcp": ONE}}, [], 1),
        ({"PortBindings": {"80/tcp": [], "81/tcp": None}}, [], 2),  # the engine chooses the numbers
        ({"PortBindings": {"80/tcp": TWO, "80/udp": ONE}}, [], 3),
        ({"PortBindings": {"80-89/tcp": ONE}}, [], 10),
        ({"PortBindings": None, "PublishAllPorts": False}, ["80/tcp"], 0),
        ({"PublishAllPorts": True}, ["80/tcp", "80/udp", "81"], 3),
        ({"PublishAllPorts": True}, ["1-65535/tcp"], 65_535),
        ({"PublishAllPorts": True, "PortBindings": {"80/tcp": TWO}}, ["80/tcp", "81/tcp"], 3),
        ({"PublishAllPorts": True}, ["no port", "9-1/tcp"], 2),
    ],
)
def test_each_port_of_the_machine_is_counted(host: dict[str, Any], exposed: list[str], count: int) -> None:
    assert count_ports(host, exposed) == count


@pytest.mark.parametrize("said", ["", "-1", "x", "1e9", "٣", "1" * 10])
def test_a_label_that_the_gate_did_not_write_counts_nothing(said: str) -> None:
    assert recorded_ports({LABEL_PORTS: said}) == 0
    assert recorded_ports({LABEL_PORTS: "12"}) == 12


def test_a_container_starts_with_no_more_ports_than_it_was_created_for() -> None:
    check_ports("box", 3, {LABEL_PORTS: "3"}, 8)
    with pytest.raises(PermissionRefused, match="box would publish 4 ports, and was created for 3"):
        check_ports("box", 4, {LABEL_PORTS: "3"}, 8)


def test_one_from_before_ports_were_counted_has_what_a_user_may_have() -> None:
    check_ports("box", 8, {}, 8)
    with pytest.raises(PermissionRefused, match="was created for 8"):
        check_ports("box", 9, {}, 8)


def test_where_there_is_no_limit_nothing_is_looked_at() -> None:
    check_ports("box", 9, {LABEL_PORTS: "0"}, NO_LIMIT)


# --- on a real engine ----------------------------------------------------------------------------------

MOST = 5


@pytest.fixture
async def two(
    lease_service: FakeLeaseService, docker_engine: str, busybox_image: str
) -> AsyncIterator[People]:
    async with people(
        Gate(docker_engine, lease_service, SitePolicy(ports_per_user=MOST)), busybox_image
    ) as both:
        yield both


def bindings(count: int) -> dict[str, Any]:
    return {f"{port}/tcp": [{"HostPort": ""}] for port in range(8000, 8000 + count)}


async def create(people: People, count: int) -> Reply:
    person = people.alice
    host = {"NetworkMode": "none", "PortBindings": bindings(count)}
    reply = await person.ask("POST", "/containers/create", {"Image": person.image, "HostConfig": host})
    if reply.status == 201:
        person.made.append(("containers", json.loads(reply.body)["Id"]))
    return reply


@pytest.mark.docker
async def test_all_containers_of_a_user_publish_no_more_than_a_user_may(two: People) -> None:
    assert [(await create(two, count)).status for count in (3, 3, 2, 1, 0)] == [201, 429, 201, 429, 201]
    refused = await create(two, 4)
    assert refused.message.startswith("your containers would publish 9 ports, and a user may publish 5 here")
    await two.bob.create("", PortBindings=bindings(MOST))


@pytest.mark.docker
async def test_ports_are_had_again_when_the_container_is_gone(two: People) -> None:
    assert (await create(two, MOST)).status == 201
    assert (await create(two, 1)).status == 429
    _, container = two.alice.made.pop()
    assert (await two.alice.ask("DELETE", f"/containers/{container}")).status == 204
    assert (await create(two, 1)).status == 201


@pytest.mark.docker
async def test_creates_at_once_do_not_add_up_to_more(two: People) -> None:
    replies = await asyncio.gather(*(create(two, 2) for _ in range(6)))
    assert sum(reply.status == 201 for reply in replies) <= MOST // 2


@pytest.mark.docker
async def test_a_container_with_ports_starts_again_and_again(two: People) -> None:
    container = await two.alice.run("", "sleep", "600", PortBindings=bindings(2))
    assert (await two.alice.ask("POST", f"/containers/{container}/restart", t="0")).status == 204
