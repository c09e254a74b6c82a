"""Whose is what: two people whom nobody trusts ask real engines at the endpoints that have a scope."""

from __future__ import annotations

import asyncio
import base64
import gzip
import io
import json
import os
import secrets
import sys
import tarfile
import time
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from gpushared.gate.containers.ownership import NamedLocks
from gpushared.gate.docker_gate import Gate
from gpushared.net.http_client import EngineSocket
from gpushared.ports import EditMount, EngineFacts
from tests.gate.lease_services import FakeLeaseService, edits, facts
from tests.gate.people import People, people
from tests.gate.serving import ask, raw_client, request

pytestmark = pytest.mark.docker


@pytest.fixture
async def plain(
    lease_service: FakeLeaseService, docker_engine: str, busybox_image: str
) -> AsyncIterator[People]:
    """Before the old engine, which has a bridge."""
    async with people(Gate(docker_engine, lease_service), busybox_image) as both:
        yield both


@pytest.fixture
async def both(
    each_engine: str, lease_service: FakeLeaseService, busybox_image: str
) -> AsyncIterator[People]:
    """Before each of the engines."""
    async with people(Gate(each_engine, lease_service), busybox_image) as found:
        yield found


# --- names and ids -------------------------------------------------------------------------------------


async def test_who_has_a_name_is_not_told(both: People, name: str) -> None:
    holder = await both.bob.create(name)
    body = {"Image": both.alice.image}
    created = await both.alice.ask("POST", "/containers/create", body, name=name)
    own = await both.alice.create()
    renamed = await both.alice.ask("POST", f"/containers/{own}/rename", name=name)
    for reply in (created, renamed):
        assert (reply.status, holder in reply.message) == (409, False)
        assert reply.message.endswith("is taken by somebody else's container (choose another)")


async def test_that_oneself_has_a_name_is_told_in_the_engines_words(both: People, name: str) -> None:
    holder = await both.alice.create(name)
    reply = await both.alice.ask("POST", "/containers/create", {"Image": both.alice.image}, name=name)
    assert (reply.status, holder in reply.message) == (409, True)


async def test_the_beginning_of_ones_own_id_finds_it_whatever_others_are_called(both: People) -> None:
    """The engine looks for a name first."""
    mine = await both.alice.create()
    shadow = await both.bob.create(mine[:11])
    assert (await both.alice.get(f"/containers/{mine[:11]}/json"))["Id"] == mine
    assert (await both.bob.get(f"/containers/{mine[:11]}/json"))["Id"] == shadow
    assert (await both.alice.ask("POST", f"/containers/{mine[:11]}/stop")).status == 304
    assert (await both.bob.ask("GET", f"/containers/{mine[:12]}/json")).status == 404


@pytest.mark.parametrize("size", [12, 64])
async def test_nothing_is_called_like_an_id(plain: People, size: int) -> None:
    like = (await plain.alice.create())[:size]
    body = {"Image": plain.bob.image}
    own = await plain.bob.create()
    for reply in (
        await plain.bob.ask("POST", "/containers/create", body, name=like),
        await plain.bob.ask("POST", f"/containers/{own}/rename", name=f"/{like}"),
        await plain.bob.ask("POST", "/networks/create", {"Name": like}),
    ):
        assert (reply.status, "could be taken for an id" in reply.message) == (400, True)


async def test_nothing_is_called_like_the_id_of_anothers_network(plain: People, name: str) -> None:
    made = json.loads((await plain.alice.make("networks", name)).body)["Id"]
    reply = await plain.bob.ask("POST", "/networks/create", {"Name": made[:20]})
    assert (reply.status, "could be taken for an id" in reply.message) == (400, True)


@pytest.mark.parametrize("size", [12, 40, 64])
async def test_hex_digits_that_begin_nobodys_id_are_a_name(both: People, size: int) -> None:
    """Dagster calls its containers by 40 of them."""
    own = await both.alice.create(secrets.token_hex(size // 2))
    other = secrets.token_hex(size // 2)
    assert (await both.alice.ask("POST", f"/containers/{own}/rename", name=other)).status == 204
    assert (await both.alice.ask("POST", f"/containers/{own}/rename", name=own[: size - 1])).status == 204


async def test_that_ids_begin_alike_is_not_told(both: People) -> None:
    """Engines say of a beginning that fits several."""
    seen: dict[str, str] = {}
    while (container := await both.bob.create())[0] not in seen:
        seen[container[0]] = container
    reply = await both.alice.ask("GET", f"/containers/{container[0]}/json")
    assert (reply.status, reply.message) == (404, f"No such container: {container[0]}")


@pytest.mark.parametrize("kind", ["containers", "networks", "volumes"])
async def test_a_name_with_a_slash_is_not_found_rather_than_refused(plain: People, kind: str) -> None:
    """Clients that are given a bare name ask here before they ask for an image."""
    suffix = "/json" if kind == "containers" else ""
    assert (await plain.alice.ask("GET", f"/{kind}/a/b{suffix}")).status == 404
    assert (await plain.alice.ask("GET", "/plugins/a/b/json")).status == 404


@pytest.mark.parametrize("name", ["/etc", "../../alice", "..", "a//b"])
async def test_a_volume_called_as_a_path_is_none(both: People, name: str) -> None:
    """The engine cleans such paths, and sends the client elsewhere."""
    mount = {"Type": "volume", "Source": name, "Target": "/x"}
    body = {"Image": both.alice.image, "HostConfig": {"NetworkMode": "none", "Mounts": [mount]}}
    reply = await both.alice.ask("POST", "/containers/create", body)
    assert (reply.status, reply.message.partition(" (")[0]) == (400, f"No such volume: {name}")


# --- listings ------------------------------------------------------------------------------------------


async def test_before_and_since_tell_nothing_of_others_containers(both: People, name: str) -> None:
    await both.bob.create(name)
    older, newer = await both.alice.create(), await both.alice.create()
    listed = {
        word: await both.alice.get("/containers/json", all="1", filters=json.dumps({word: [newer[:12]]}))
        for word in ("before", "since")
    }
    assert [[each["Id"] for each in listed[word]] for word in ("before", "since")] == [[older], []]
    for word in ("before", "since"):
        reply = await both.alice.ask("GET", "/containers/json", filters=json.dumps({word: [name]}))
        assert (reply.status, reply.message) == (404, f"No such container: {name}")


async def test_the_engines_facts_count_ones_own_containers(both: People) -> None:
    await both.bob.create()
    await both.alice.create()
    told = await both.alice.get("/info")
    assert [told[f"Containers{word}"] for word in ("", "Running", "Stopped")] == [1, 0, 1]


def kinds(told: bytes) -> list[tuple[str, str]]:
    events: list[dict[str, Any]] = [json.loads(line) for line in told.splitlines() if line.strip()]
    return [(event["Type"], event["Actor"]["ID"]) for event in events]


async def test_events_are_those_of_ones_own_containers(both: People, name: str) -> None:
    since = f"{time.time():.9f}"
    await both.bob.make("volumes", name)
    await both.bob.make("networks", name)
    mount = {"Type": "volume", "Source": name, "Target": "/data"}
    await both.bob.run("", "true", Mounts=[mount])
    mine = await both.alice.run("", "true")
    await both.alice.ask("POST", f"/containers/{mine}/wait")
    until = f"{time.time() + 0.5:.9f}"
    shown = await both.alice.ask("GET", "/events", since=since, until=until)
    assert {("container", mine)} == set(kinds(shown.body))
    everything = await both.root.ask("GET", "/events", since=since, until=until)
    assert {kind for kind, _ in kinds(everything.body)} >= {"container", "volume", "network"}


# --- networks ------------------------------------------------------------------------------------------


async def test_the_engines_network_shows_ones_own_containers(plain: People) -> None:
    bobs = await plain.bob.run(NetworkMode="bridge")
    mine = await plain.alice.run(NetworkMode="bridge")
    assert set((await plain.alice.get("/networks/bridge"))["Containers"]) == {mine}
    assert set((await plain.root.get("/networks/bridge"))["Containers"]) >= {mine, bobs}


async def test_networks_of_others_are_neither_listed_nor_found(plain: People, name: str) -> None:
    created = await plain.bob.make("networks", name)
    network = json.loads(created.body)["Id"]
    listed = {each["Name"] for each in await plain.alice.get("/networks")}
    assert (name in listed, {"bridge", "none"} <= listed) == (False, True)
    assert name in {each["Name"] for each in await plain.bob.get("/networks")}
    for word in (name, network, network[:10]):
        reply = await plain.alice.ask("GET", f"/networks/{word}")
        assert (reply.status, reply.message) == (404, f"No such network: {word}")
    assert (await plain.bob.get(f"/networks/{network[:10]}", verbose="true"))["Name"] == name


async def test_a_network_has_its_name_alone(plain: People, name: str) -> None:
    """Of two with one name neither could be used by it; this engine allows two."""
    await plain.bob.make("networks", name)
    reply = await plain.alice.make("networks", name)
    assert reply.status == 409
    assert len(await plain.root.get("/networks", filters=json.dumps({"name": [name]}))) == 1


async def test_a_network_that_a_stopped_container_needs_is_not_pruned(plain: People, name: str) -> None:
    await plain.bob.make("networks", f"{name}-b")
    await plain.alice.make("networks", name)
    await plain.alice.create(f"{name}-c", NetworkMode=name)
    kept = await plain.alice.ask("POST", "/networks/prune")
    await plain.alice.ask("DELETE", f"/containers/{name}-c")
    pruned = await plain.alice.ask("POST", "/networks/prune")
    assert (kept.status, kept.message.split(" (")[0]) == (
        409,
        f"the network {name} is the container {name}-c's",
    )
    assert json.loads(pruned.body)["NetworksDeleted"] == [name]


# --- volumes -------------------------------------------------------------------------------------------


async def test_a_volume_of_somebody_else_is_not_given_by_its_name(both: People, name: str) -> None:
    """The engine answers a create of one that exists with that one."""
    assert (await both.bob.make("volumes", name)).status == 201
    assert (await both.bob.make("volumes", name)).status == 201
    reply = await both.alice.make("volumes", name)
    assert (reply.status, reply.message.partition(" (")[0]) == (
        409,
        f"the name {name} is taken by a volume that is not yours",
    )
    assert (await both.alice.ask("GET", f"/volumes/{name}")).status == 404


async def test_a_volume_is_not_made_while_a_container_with_its_name_is(
    lease_service: FakeLeaseService, docker_engine: str, busybox_image: str, name: str
) -> None:
    """The engine would fill it from the image of the container, whoever made that."""
    gate = Gate(docker_engine, lease_service)
    async with people(gate, busybox_image) as both:
        async with gate._handler_context.volume_locks.of(name):
            making = asyncio.create_task(both.alice.make("volumes", name))
            assert (await both.bob.make("volumes", f"{name}-other")).status == 201
            assert (await both.root.ask("GET", f"/volumes/{name}")).status == 404
        assert (await making).status == 201


async def test_nobody_waits_for_what_another_makes_with_a_volumes_name(
    lease_service: FakeLeaseService, docker_engine: str, busybox_image: str, name: str
) -> None:
    """The turn of the name is theirs for as long as the engine fills the volume."""
    gate = Gate(docker_engine, lease_service)
    async with people(gate, busybox_image) as both:
        await both.bob.make("volumes", name)
        async with gate._handler_context.volume_locks.of(name), asyncio.timeout(20):
            for method in ("GET", "DELETE"):
                reply = await both.alice.ask(method, f"/volumes/{name}")
                assert (reply.status, reply.message.startswith("No such volume")) == (404, True)


async def test_a_volume_that_became_anothers_while_its_turn_was_waited_for_is_not_removed(
    lease_service: FakeLeaseService, docker_engine: str, busybox_image: str, name: str
) -> None:
    gate = Gate(docker_engine, lease_service)
    async with people(gate, busybox_image) as both:
        await both.alice.make("volumes", name)
        async with gate._handler_context.volume_locks.of(name):
            removing = asyncio.create_task(both.alice.ask("DELETE", f"/volumes/{name}"))
            await asyncio.sleep(0.5)  # it has looked once by then
            assert not removing.done()
            assert (await both.root.ask("DELETE", f"/volumes/{name}")).status == 204
            labels = {"gpushare.owner": str(both.bob.caller.uid)}
            made = await both.root.ask("POST", "/volumes/create", {"Name": name, "Labels": labels})
            assert made.status == 201
        assert (await removing).status == 404
        assert (await both.bob.ask("GET", f"/volumes/{name}")).status == 200


async def test_a_volume_that_became_anothers_while_a_lease_was_waited_for_is_not_given(
    plain: People, lease_service: FakeLeaseService, name: str
) -> None:
    """The engine would fill it from the image, and the container would have it from then on."""
    await plain.alice.make("volumes", name)
    mount = {"Type": "volume", "Source": name, "Target": "/x"}
    gpu_request = {"Driver": "", "Count": 1, "Capabilities": [["gpu"]]}
    body = {
        "Image": plain.alice.image,
        "HostConfig": {"NetworkMode": "none", "Mounts": [mount], "DeviceRequests": [gpu_request]},
    }
    lease_service.has_capacity.clear()
    creating = asyncio.create_task(plain.alice.ask("POST", "/containers/create", body))
    await lease_service.waiting.wait()
    assert (await plain.alice.ask("DELETE", f"/volumes/{name}")).status == 204
    assert (await plain.bob.make("volumes", name)).status == 201
    lease_service.has_capacity.set()
    reply = await creating
    assert (reply.status, reply.message.partition(" (")[0]) == (400, f"No such volume: {name}")
    assert lease_service.call_names[-1] == "release"


@pytest.mark.parametrize("state", ["created", "running", "stopped"])
async def test_a_volume_stays_its_owners_as_long_as_a_container_has_it(
    both: People, name: str, state: str
) -> None:
    """So a start, also by the engine's own policy, never finds somebody else's in its place."""
    await both.alice.make("volumes", name)
    mount = {"Type": "volume", "Source": name, "Target": "/x"}
    mine = await both.alice.create("", "sleep", "600", Mounts=[mount])
    if state != "created":
        await both.alice.ask("POST", f"/containers/{mine}/start")
    if state == "stopped":
        await both.alice.ask("POST", f"/containers/{mine}/kill")
        await both.alice.ask("POST", f"/containers/{mine}/wait")
    for words in ({}, {"force": "1"}):
        reply = await both.alice.ask("DELETE", f"/volumes/{name}", **words)
        assert (reply.status, "in use" in reply.message) == (409, True)
    await both.alice.ask("POST", "/volumes/prune")
    assert (await both.bob.make("volumes", name)).status == 409
    assert (await both.alice.ask("POST", f"/containers/{mine}/restart", t="0")).status == 204


async def test_an_anonymous_volume_is_its_makers_whatever_it_says(both: People) -> None:
    bob = str(both.bob.caller.uid)
    mount = {"Type": "volume", "Target": "/x", "VolumeOptions": {"Labels": {"gpushare.owner": bob}}}
    await both.alice.create("", Mounts=[mount])
    assert (await both.bob.get("/volumes"))["Volumes"] in ([], None)
    [volume] = (await both.alice.get("/volumes"))["Volumes"]
    assert volume["Labels"]["gpushare.owner"] == str(both.alice.caller.uid)


async def test_pruning_takes_ones_own_only(both: People, name: str) -> None:
    theirs, mine = await both.bob.create(), await both.alice.create()
    await both.bob.make("volumes", f"{name}-b")
    await both.alice.make("volumes", f"{name}-a")
    containers = await both.alice.ask("POST", "/containers/prune")
    volumes = await both.alice.ask("POST", "/volumes/prune", filters=json.dumps({"all": ["1"]}))
    if volumes.status == 400:  # an engine that takes all volumes anyway, and does not know the word
        volumes = await both.alice.ask("POST", "/volumes/prune")
    assert json.loads(containers.body)["ContainersDeleted"] == [mine]
    assert json.loads(volumes.body)["VolumesDeleted"] == [f"{name}-a"]
    assert (await both.bob.get(f"/containers/{theirs}/json"))["Id"] == theirs
    assert (await both.bob.get(f"/volumes/{name}-b"))["Name"] == f"{name}-b"


async def test_pruning_stops_at_a_container_that_only_bears_the_mark(
    plain: People, docker_engine: str
) -> None:
    """It may come from an image that was committed of one's own container."""
    body = {"Image": plain.alice.image, "Labels": {"gpushare.owner": str(plain.alice.caller.uid)}}
    marked = json.loads(await past_the_gate(docker_engine, "POST", "/containers/create", body))["Id"]
    plain.root.made.append(("containers", marked))
    reply = await plain.alice.ask("POST", "/containers/prune")
    told = "somebody else's container bears your mark"
    assert (reply.status, reply.message.partition(" (")[0]) == (409, told)
    assert (await plain.root.get(f"/containers/{marked}/json"))["Id"] == marked


async def past_the_gate(engine: str, method: str, path: str, body: object) -> bytes:
    answer = await EngineSocket(engine).call(method, path.encode(), json.dumps(body).encode())
    return answer.body


# --- inside a container --------------------------------------------------------------------------------


@pytest.mark.parametrize("arguments", ["", "-ef", "aux", "-o pid,args"])
async def test_ps_shows_the_containers_processes(plain: People, arguments: str) -> None:
    mine = await plain.alice.run()
    query = {"ps_args": arguments} if arguments else {}
    told = await plain.alice.get(f"/containers/{mine}/top", **query)
    assert [line[-1] for line in told["Processes"]] == ["sleep 600"]


async def test_ps_shows_nothing_of_the_machine(both: People) -> None:
    mine = await both.alice.run()
    reply = await both.alice.ask("GET", f"/containers/{mine}/top", ps_args="-e -oppid=PID,args")
    assert (reply.status, "is not for you" in reply.message) == (403, True)


async def test_a_websocket_into_ones_own_container_works_and_into_anothers_does_not(both: People) -> None:
    mine = await both.alice.run("", "sh", "-c", "read line; echo got $line")
    key = base64.b64encode(b"0123456789abcdef").decode()
    words = ["Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13", "Origin: http://x"]
    words.append(f"Sec-WebSocket-Key: {key}")
    target = f"/containers/{mine}/attach/ws?stream=1&stdout=1&stdin=1"
    refused = await ask(both.bob.served, request("GET", target, b"", *words))
    assert (refused.status, refused.message) == (404, f"No such container: {mine}")
    async with raw_client(both.alice.served) as client, asyncio.timeout(30):
        await client.send(request("GET", target, b"", *words))
        status, headers = await client.head()
    assert (status, headers["upgrade"].lower()) == (101, "websocket")


def tar(name: str, content: bytes) -> bytes:
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w") as archive:
        entry = tarfile.TarInfo(name)
        entry.size = len(content)
        archive.addfile(entry, io.BytesIO(content))
    return raw.getvalue()


async def put(both: People, container: str, archive: bytes, path: str = "/tmp") -> tuple[int, bytes]:
    raw = request("PUT", f"/containers/{container}/archive?path={path}", archive)
    reply = await ask(both.alice.served, raw)
    return reply.status, reply.body


async def test_files_are_copied_into_a_container_that_does_not_run(both: People) -> None:
    mine = await both.alice.create()
    archive = tar("file", b"x" * 100_000)
    assert await put(both, mine, archive) == (200, b"")
    reply = await both.alice.ask("GET", f"/containers/{mine}/archive", path="/tmp/file")
    assert b"x" * 100_000 in reply.body
    assert (await both.bob.ask("GET", f"/containers/{mine}/archive", path="/tmp/file")).status == 404


async def test_files_are_copied_in_beside_a_volume_and_not_into_it(both: People) -> None:
    mine = await both.alice.create("", "sleep", "600", Mounts=[{"Type": "volume", "Target": "/data"}])
    assert await put(both, mine, tar("file", b"")) == (200, b"")
    status, body = await put(both, mine, tar("file", b""), "/data")
    assert (status, "what is mounted at /data" in json.loads(body)["message"]) == (403, True)
    assert (await both.alice.ask("GET", f"/containers/{mine}/archive", path="/tmp")).status == 200


async def test_whoever_holds_on_to_files_of_an_ended_container_leads_copies_nowhere_else(
    both: People,
) -> None:
    """A process of the owner's outside can change what it has opened after the end, as is shown here."""
    mine = await both.alice.run("", "sh", "-c", "mkdir -m 755 /tmp/own; exec sleep 600")
    pid = (await both.root.get(f"/containers/{mine}/json"))["State"]["Pid"]
    folder = f"/proc/{pid}/root/tmp/own"
    while not await asyncio.to_thread(os.path.isdir, folder):  # noqa: ASYNC110 - it announces itself to nobody
        await asyncio.sleep(0.02)
    change = "import os, sys; uid = int(sys.argv[2]); os.setgroups([]); os.setresgid(uid, uid, uid); "
    change += "os.setresuid(uid, uid, uid); f = os.open(sys.argv[1], os.O_DIRECTORY); print(flush=True); "
    change += "input(); os.symlink('/anywhere', 'link', dir_fd=f)"
    uid = str(both.alice.caller.uid)
    outside = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", change, folder, uid), stdin=PIPE, stdout=PIPE
    )
    assert outside.stdout is not None
    await outside.stdout.readline()
    await both.alice.ask("POST", f"/containers/{mine}/kill")
    await both.alice.ask("POST", f"/containers/{mine}/wait")
    await outside.communicate(b"\n")
    assert outside.returncode == 0
    exported = await both.alice.ask("GET", f"/containers/{mine}/export")
    with tarfile.open(fileobj=io.BytesIO(exported.body)) as files:
        assert files.getmember("tmp/own/link").linkname == "/anywhere"
    assert await put(both, mine, tar("file", b"")) == (200, b"")
    assert (await put(both, mine, tar("file", b""), "/tmp/own/link"))[0] == 404
    assert not Path("/anywhere").exists()


async def test_an_engine_that_holds_on_to_its_places_copies_after_the_containers_end(
    both: People, lease_service: FakeLeaseService
) -> None:
    lease_service.facts = EngineFacts("29.5.1", "1.54", True, facts().gpu_mechanism, 1)
    mine = await both.alice.run("", "sleep", "600", Mounts=[{"Type": "volume", "Target": "/data"}])
    await both.alice.ask("POST", f"/containers/{mine}/kill")
    await both.alice.ask("POST", f"/containers/{mine}/wait")
    assert await put(both, mine, tar("file", b"")) == (200, b"")


async def test_a_trusted_callers_container_may_have_groups_by_name(both: People) -> None:
    mine = await both.root.create("", "true", GroupAdd=["audio", "7"])
    assert (
        await both.root.ask("POST", f"/containers/{mine}/rename", name=f"groups-{mine[:8]}")
    ).status == 204
    assert (await both.root.ask("POST", f"/containers/{mine}/stop")).status == 304


async def test_a_packed_archive_is_refused(both: People) -> None:
    mine = await both.alice.create()
    status, body = await put(both, mine, gzip.compress(tar("file", b"")))
    assert (status, "no plain tar" in json.loads(body)["message"]) == (400, True)


async def test_a_start_waits_until_files_are_copied() -> None:
    """The engine would mount into a container that has begun to run."""
    turns, seen = NamedLocks(), list[str]()

    async def start(container: str) -> None:
        async with turns.of(container):
            seen.append(container)

    async with turns.of("copied"):
        waiting = asyncio.create_task(start("copied"))
        await start("another")
        await asyncio.sleep(0)
        assert seen == ["another"]
    await waiting
    assert seen == ["another", "copied"]


# --- what is everybody's -------------------------------------------------------------------------------


async def test_an_image_that_was_made_here_is_not_replaced_by_a_pull(both: People) -> None:
    image, _, tag = both.alice.image.partition(":")
    for query in ({"fromImage": image, "tag": tag}, {"fromImage": both.alice.image}):
        reply = await both.alice.ask("POST", "/images/create", **query)
        assert (reply.status, "was made on this machine" in reply.message) == (403, True)


@pytest.mark.parametrize("image", ["busybox", "registry.example:5000/busybox"])
async def test_not_all_tags_of_an_image_are_pulled_at_once(plain: People, image: str) -> None:
    reply = await plain.alice.ask("POST", "/images/create", fromImage=image)
    assert (reply.status, reply.message) == (400, f"{image} names no tag (pull {image}:latest)")


@pytest.mark.parametrize("name", ["changes", "repo", "message"])
async def test_a_pull_has_no_parameters_of_an_import(plain: People, name: str) -> None:
    query = {"fromImage": "x", "tag": "1", name: "USER root"}
    reply = await plain.alice.ask("POST", "/images/create", **query)
    assert (reply.status, reply.message.partition(" (")[0]) == (403, f"the parameter {name} is not for you")


async def test_what_clients_build_with_where_they_may_not_is_refused_in_the_same_words(plain: People) -> None:
    pulled = await plain.alice.ask("POST", "/images/create", fromImage="moby/buildkit", tag="buildx-stable-1")
    body = {"Image": "moby/buildkit:buildx-stable-1", "HostConfig": {"Privileged": True}}
    created = await plain.alice.ask("POST", "/containers/create", body)
    built = await plain.alice.ask("POST", "/build")
    assert {reply.status for reply in (pulled, created, built)} == {403}
    assert pulled.message == created.message == built.message


@pytest.mark.parametrize("version", ["v9.99", "v1.999"])
async def test_a_version_that_the_engine_does_not_speak_is_refused_in_its_words(
    both: People, version: str
) -> None:
    container = await both.alice.create()
    for path in ("/info", "/networks", "/images/json", "/containers/json", f"/containers/{container}/json"):
        reply = await both.alice.ask("GET", f"/{version}{path}")
        assert (reply.status, "is too new" in reply.message) == (400, True), path


async def test_a_leases_container_is_copied_from_before_its_start(
    plain: People, lease_service: FakeLeaseService
) -> None:
    lease_service.edits = edits(EditMount("/tmp", "/run/lease"))
    body = {"Image": plain.alice.image, "Cmd": ["true"], "Labels": {"gpushare.gpu": "1"}}
    body["HostConfig"] = {"NetworkMode": "none"}
    created = await plain.alice.ask("POST", "/containers/create", body)
    mine = json.loads(created.body)["Id"]
    plain.alice.made.append(("containers", mine))
    assert (await plain.alice.ask("GET", f"/containers/{mine}/archive", path="/bin/true")).status == 200
