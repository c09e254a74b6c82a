"""A day with the Docker SDK for Python, which sends more than the docker CLI does."""

from __future__ import annotations

import asyncio
import io
import tarfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import docker
import pytest
from docker.models.containers import Container

from gpushared.domain.model.request import Caller
from gpushared.gate.docker_gate import Gate
from tests.gate.lease_services import FakeLeaseService
from tests.gate.serving import ALICE, ROOT, serving_gate

CALLERS = pytest.mark.parametrize("caller", [ROOT, ALICE], ids=["trusted", "confined"])
LOOP = "trap 'exit 9' TERM; echo up; touch /tmp/up; while :; do sleep 0.05; done"


@contextmanager
def client_of(url: str) -> Iterator[docker.DockerClient]:
    client = docker.DockerClient(url, timeout=30)
    try:
        yield client
    finally:
        client.close()


@contextmanager
def box_in(client: docker.DockerClient, image: str) -> Iterator[Container]:
    """A container that has come up."""
    box = client.containers.run(
        image,
        ["sh", "-c", LOOP],
        name=f"sdk-{uuid.uuid4().hex[:8]}",
        detach=True,
        network_mode="none",
        labels={"a": "b"},
        environment={"WORD": "from outside"},
        mem_limit="64m",
    )
    try:
        box.exec_run(["sh", "-c", "until [ -e /tmp/up ]; do sleep 0.05; done"])
        yield box
    finally:
        box.remove(v=True, force=True)


@CALLERS
async def test_a_container_is_run_and_removed_in_one_call(
    caller: Caller, docker_engine: str, busybox_image: str
) -> None:
    def run(url: str) -> bytes:
        with client_of(url) as client:
            output: bytes = client.containers.run(
                busybox_image, ["echo", "said"], remove=True, network_mode="none"
            )
            return output

    async with serving_gate(Gate(docker_engine, FakeLeaseService()), caller) as served:
        assert await asyncio.to_thread(run, served.url) == b"said\n"


@CALLERS
async def test_a_container_is_found_used_and_ended(
    caller: Caller, docker_engine: str, busybox_image: str
) -> None:
    async with serving_gate(Gate(docker_engine, FakeLeaseService()), caller) as served:
        seen = await asyncio.to_thread(use_container, served.url, busybox_image)
    assert seen == {
        "listed": True,
        "by name": True,
        "exec": (3, b"from outside\n"),
        "logs": b"up\n",
        "processes": True,
        "statistics": True,
        "renamed": True,
        "changed": True,
        "code": 9,
    }


def use_container(url: str, image: str) -> dict[str, Any]:
    with client_of(url) as client, box_in(client, image) as box:
        statistics = box.stats(stream=False)
        assert isinstance(statistics, dict)
        seen: dict[str, Any] = {
            "listed": box in client.containers.list(all=True, filters={"label": "a=b"}),
            "by name": client.containers.get(str(box.name)).id == box.id,
            "exec": tuple(box.exec_run(["sh", "-c", "echo $WORD; exit 3"])),
            "logs": box.logs(tail=1),
            "processes": "PID" in box.top(ps_args="aux")["Titles"],
            "statistics": statistics["id"] == box.id,
        }
        box.rename(f"{box.name}-2")
        box.reload()
        seen["renamed"] = str(box.name).endswith("-2")
        seen["changed"] = "/tmp" in {str(one["Path"]) for one in box.diff()}
        box.stop(timeout=5)
        seen["code"] = box.wait()["StatusCode"]
        return seen


@CALLERS
async def test_files_are_put_into_a_new_container_and_taken_out(
    caller: Caller, docker_engine: str, busybox_image: str
) -> None:
    def put_and_take(url: str) -> bytes:
        with client_of(url) as client:
            box = client.containers.create(busybox_image, ["true"], network_mode="none")
            try:
                box.put_archive("/tmp", archive_of(b"given"))
                return file_in(b"".join(box.get_archive("/tmp/file")[0]))
            finally:
                box.remove()

    async with serving_gate(Gate(docker_engine, FakeLeaseService()), caller) as served:
        assert await asyncio.to_thread(put_and_take, served.url) == b"given"


def archive_of(content: bytes) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        info = tarfile.TarInfo("file")
        info.size = len(content)
        archive.addfile(info, io.BytesIO(content))
    return packed.getvalue()


def file_in(packed: bytes) -> bytes:
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        member = archive.extractfile("file")
        assert member is not None
        return member.read()


@CALLERS
async def test_images_volumes_and_networks_are_listed_made_and_removed(
    caller: Caller, docker_engine: str, busybox_image: str
) -> None:
    async with serving_gate(Gate(docker_engine, FakeLeaseService()), caller) as served:
        await asyncio.to_thread(use_things, served.url, busybox_image)


def use_things(url: str, image: str) -> None:
    name = f"sdk-{uuid.uuid4().hex[:8]}"
    with client_of(url) as client, box_in(client, image) as box:
        assert client.ping()
        assert client.images.get(image) in client.images.list(name=image)
        volume = client.volumes.create(name, labels={"a": "b"})
        assert volume in client.volumes.list(filters={"name": name})
        volume.remove()
        network = client.networks.create(name, driver="bridge")
        try:
            assert network in client.networks.list(names=[name])
            assert client.networks.get(name, verbose=True).name == name
        finally:
            network.remove()
        assert box.id in {one.id for one in client.containers.list(ignore_removed=True)}
        assert client.info()["ServerVersion"] == client.version()["Version"]
        assert client.containers.prune(filters={"label": name})["ContainersDeleted"] is None
