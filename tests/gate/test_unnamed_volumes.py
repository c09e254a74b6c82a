"""Volumes without a name: whose they are, while their container is there and when it is gone."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from gpushared.gate.docker_gate import Gate
from gpushared.gate.policy.mount_rules import unnamed_volumes
from tests.bed import parts
from tests.gate.lease_services import FakeLeaseService
from tests.gate.people import People, Person, people


@pytest.mark.parametrize(
    ("host", "paths", "made"),
    [
        ({}, ["/x", "/y/", "//z"], ["/x", "/y", "/z"]),
        ({"Mounts": [{"Type": "bind", "Source": "/a", "Target": "/x/"}]}, ["/x", "/x/y"], ["/x/y"]),
        ({"Tmpfs": {"/x": ""}}, ["/x", "/y"], ["/y"]),
        ({}, ["/", "relative", "/x/../y", "/y"], ["/y"]),
    ],
)
def test_a_volume_is_made_where_nothing_else_is_mounted(
    host: dict[str, Any], paths: list[str], made: list[str]
) -> None:
    assert [mount["Target"] for mount in unnamed_volumes(host, paths)] == made


@pytest.fixture
async def both(
    each_engine: str, lease_service: FakeLeaseService, busybox_image: str
) -> AsyncIterator[People]:
    tag = "gate-volumes:latest"
    baked = ("--change", "VOLUME /baked", "--change", "EXPOSE 80")
    assert parts.docker(each_engine, "import", *baked, str(parts.BUSYBOX_TAR), tag).returncode == 0
    async with people(Gate(each_engine, lease_service), tag) as found:
        yield found
    parts.docker(each_engine, "rmi", "--force", tag)


async def made(person: Person, **config: object) -> str:
    body = {"Image": person.image, "Cmd": ["ls", "/baked"], "HostConfig": {"NetworkMode": "none"}, **config}
    reply = await person.ask("POST", "/containers/create", body)
    assert reply.status == 201, reply
    person.made.append(("containers", json.loads(reply.body)["Id"]))
    return str(json.loads(reply.body)["Id"])


async def volumes_of(person: Person) -> set[str]:
    return {volume["Name"] for volume in (await person.get("/volumes"))["Volumes"] or ()}


async def mounts_of(person: Person, container: str) -> dict[str, str]:
    """Names by the paths inside."""
    found = await person.get(f"/containers/{container}/json")
    return {mount["Destination"]: mount["Name"] for mount in found["Mounts"]}


@pytest.mark.docker
async def test_what_a_body_and_an_image_call_volumes_are_the_creators(both: People) -> None:
    container = await made(both.alice, Volumes={"/x": {}})
    mounts = await mounts_of(both.alice, container)
    assert mounts.keys() == {"/x", "/baked"}
    assert await volumes_of(both.alice) == set(mounts.values())
    assert await volumes_of(both.bob) == set()


@pytest.mark.docker
async def test_they_stay_their_owners_when_the_container_is_gone(both: People) -> None:
    container = await made(both.alice)
    [name] = (await mounts_of(both.alice, container)).values()
    assert (await both.alice.ask("DELETE", f"/containers/{container}")).status == 204
    mount = {"NetworkMode": "none", "Binds": [f"{name}:/x"]}
    stolen = await both.bob.ask("POST", "/containers/create", {"Image": both.bob.image, "HostConfig": mount})
    assert (stolen.status, "No such volume" in stolen.message) == (400, True)
    assert (await both.bob.ask("DELETE", f"/volumes/{name}")).status == 404
    await both.bob.ask("POST", "/volumes/prune")
    assert await volumes_of(both.alice) == {name}
    again = await made(both.alice, HostConfig=mount)
    assert (await mounts_of(both.alice, again))["/x"] == name


@pytest.mark.docker
async def test_their_owner_prunes_them(both: People) -> None:
    container = await made(both.alice)
    [name] = (await mounts_of(both.alice, container)).values()
    await both.alice.ask("DELETE", f"/containers/{container}")
    pruned = await both.alice.ask("POST", "/volumes/prune")
    assert json.loads(pruned.body)["VolumesDeleted"] == [name]


@pytest.mark.docker
async def test_they_go_with_a_container_that_is_removed_with_its_volumes(both: People) -> None:
    container = await made(both.alice, Volumes={"/x": {}})
    assert (await both.alice.ask("DELETE", f"/containers/{container}", v="1")).status == 204
    assert await volumes_of(both.alice) == set()


@pytest.mark.docker
async def test_where_something_else_is_mounted_there_is_no_volume(both: People) -> None:
    host = {"NetworkMode": "none", "Tmpfs": {"/x": ""}, "Mounts": [{"Type": "tmpfs", "Target": "/baked"}]}
    container = await made(both.alice, HostConfig=host)
    assert await volumes_of(both.alice) == set()
    assert (await both.alice.ask("POST", f"/containers/{container}/start")).status == 204
