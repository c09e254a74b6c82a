"""A site where what root makes is judged too: what root still has here, and what nobody has."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from gpushared.gate.api.site import SitePolicy
from gpushared.gate.docker_gate import Gate
from tests.gate.lease_services import FakeLeaseService
from tests.gate.people import People, people

pytestmark = pytest.mark.docker


@pytest.fixture
async def site(
    lease_service: FakeLeaseService, docker_engine: str, busybox_image: str
) -> AsyncIterator[People]:
    gate = Gate(docker_engine, lease_service, SitePolicy(everybody_confined=True))
    async with people(gate, busybox_image) as both:
        yield both
        gate.policy = replace(gate.policy, everybody_confined=False)


@pytest.mark.parametrize(
    ("path", "body", "words"),
    [
        ("/networks/create", {"Driver": "macvlan"}, "Driver 'macvlan' is not allowed"),
        ("/networks/create", {"Options": {"parent": "eth0"}}, "Options may not be set"),
        ("/networks/create", {"IPAM": {"Config": [{"Subnet": "8.8.8.0/24"}]}}, "addresses"),
        ("/volumes/create", {"DriverOpts": {"type": "none", "o": "bind", "device": "/"}}, "DriverOpts may"),
        ("/volumes/create", {"Driver": "nfs"}, "Driver 'nfs' is not allowed"),
        ("/containers/create", {"HostConfig": {"Privileged": True}}, "Privileged may not be set"),
    ],
)
async def test_what_root_makes_is_judged(
    site: People, name: str, path: str, body: dict[str, object], words: str
) -> None:
    more = {"Image": site.root.image} if path.startswith("/containers") else {"Name": name}
    reply = await site.root.ask("POST", path, {**more, **body})
    assert (reply.status, words in reply.message) == (403, True), reply.message


@pytest.mark.parametrize("path", ["/build", "/session", "/grpc"])
async def test_nobody_builds_images(site: People, path: str) -> None:
    for person, words in ((site.root, "where everybody is confined"), (site.alice, "by trusted users only")):
        reply = await person.ask("POST", path)
        assert (reply.status, words in reply.message) == (403, True), reply.message


async def test_root_makes_plain_networks_and_volumes_and_connects_anybodys_containers(
    site: People, name: str
) -> None:
    assert (await site.root.make("networks", name)).status == 201
    assert (await site.root.make("volumes", name)).status == 201
    container = await site.alice.create("", NetworkMode="bridge")
    plain = {"Container": container, "EndpointConfig": {"Aliases": ["a"]}}
    strange = {"Container": container, "EndpointConfig": {"DriverOpts": {"a": "b"}}}
    refused = await site.root.ask("POST", f"/networks/{name}/connect", strange)
    assert (refused.status, "DriverOpts may not be set" in refused.message) == (403, True)
    assert (await site.root.ask("POST", f"/networks/{name}/connect", plain)).status == 200
    assert (
        await site.root.ask("POST", f"/networks/{name}/disconnect", {"Container": container})
    ).status == 200


async def test_root_still_sees_and_manages_what_is_everybodys(site: People, name: str) -> None:
    assert (await site.bob.make("volumes", name)).status == 201
    container = await site.bob.run()
    listed = await site.root.get("/containers/json")
    assert container in {each["Id"] for each in listed}
    assert (await site.root.get(f"/volumes/{name}"))["Name"] == name
    assert (await site.root.ask("GET", "/system/df")).status == 200
    assert (await site.root.ask("POST", f"/containers/{container}/kill")).status == 204
    exec_body = {"Cmd": ["id"], "Privileged": True}
    reply = await site.root.ask("POST", f"/containers/{container}/exec", exec_body)
    assert (reply.status, "Privileged may not be set" in reply.message) == (403, True)


async def test_elsewhere_root_is_not_judged(
    lease_service: FakeLeaseService, docker_engine: str, busybox_image: str, name: str
) -> None:
    async with people(Gate(docker_engine, lease_service), busybox_image) as both:
        body = {"Name": name, "Driver": "bridge", "Options": {"com.docker.network.bridge.enable_icc": "true"}}
        reply = await both.root.ask("POST", "/networks/create", body)
        both.root.made.append(("networks", name))
        assert reply.status == 201, json.dumps(reply.message)
