"""Leases put into real containers by the gate, and what the node is told of it."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import docker as docker_sdk
import pytest

from gpushared.domain.leases.stop_order import KILL, AskedEnd
from gpushared.domain.model.errors import JournalUnavailable
from gpushared.domain.model.lease import ContainerId
from gpushared.domain.model.request import Caller
from gpushared.domain.model.request_spec import RequestSpec
from gpushared.engine.cdi import LeaseSpecs
from gpushared.gate.docker_gate import Gate
from gpushared.ports import EditMount
from tests.bed.fixtures import CdiEngine
from tests.gate.docker import Docker
from tests.gate.lease_services import GPU, FakeLeaseService, edits, facts
from tests.gate.serving import ROOT, ServedSocket, raw_client, request, serving_gate

pytestmark = pytest.mark.docker

LEASE = ("--label", "gpushare.lease=l-mine")


def variables(out: bytes) -> dict[str, str]:
    return dict(line.split("=", 1) for line in out.decode().splitlines() if "=" in line)


async def test_a_claimed_lease_sets_its_variables_in_place_of_the_users(
    docker: Docker, lease_service: FakeLeaseService
) -> None:
    user = ("-e", "NVIDIA_VISIBLE_DEVICES=all", "-e", "CUDA_MPS_PIPE_DIRECTORY=/x", "-e", "MINE=1")
    done = await docker.run(*LEASE, *user, docker.image, "env")
    assert done.code == 0, done.err
    env = variables(done.out)
    assert (env["NVIDIA_VISIBLE_DEVICES"], env["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"], env["MINE"]) == (
        GPU,
        "25",
        "1",
    )
    assert "CUDA_MPS_PIPE_DIRECTORY" not in env
    assert done.out.count(b"NVIDIA_VISIBLE_DEVICES=") == 1
    assert lease_service.call_names == ["claim", "created", "before_start"]


async def test_a_users_own_framework_hint_wins_over_the_leases(docker: Docker) -> None:
    own = await docker.run(*LEASE, "-e", "XLA_PYTHON_CLIENT_MEM_FRACTION=0.1", docker.image, "env")
    default = await docker.run(*LEASE, docker.image, "env")
    assert variables(own.out)["XLA_PYTHON_CLIENT_MEM_FRACTION"] == "0.1"
    assert variables(default.out)["XLA_PYTHON_CLIENT_MEM_FRACTION"] == "0.25"


async def test_mounts_of_the_lease_are_there_and_read_only(
    docker: Docker, lease_service: FakeLeaseService, tmp_path: Path
) -> None:
    (tmp_path / "control").write_text("here")
    lease_service.edits = edits(EditMount(str(tmp_path), "/run/lease"))
    done = await docker.run(*LEASE, docker.image, "sh", "-c", "cat /run/lease/control; touch /run/lease/x")
    assert (done.code, done.out) == (1, b"here")
    assert b"Read-only" in done.err


async def test_a_mount_over_the_leases_does_not_hide_it(
    docker: Docker, lease_service: FakeLeaseService, tmp_path: Path
) -> None:
    (tmp_path / "control").write_text("here")
    lease_service.edits = edits(EditMount(str(tmp_path), "/run/lease"))
    done = await docker.run(*LEASE, "--tmpfs", "/run", docker.image, "cat", "/run/lease/control")
    assert (done.code, done.out) == (0, b"here"), done.err


async def test_the_container_carries_the_device_name_and_the_owner(docker: Docker, name: str) -> None:
    await docker("create", "--name", name, *LEASE, docker.image)
    labels = await docker("inspect", "-f", "{{json .Config.Labels}}", name)
    await docker("rm", name)
    found = json.loads(labels.out)
    assert (found["gpushare.device"], found["gpushare.owner"]) == ("l-mine", "0")
    assert "gpushare.lease" not in found


async def test_a_container_without_a_wish_belongs_to_no_lease_whatever_its_image_says(
    docker: Docker, lease_service: FakeLeaseService, name: str
) -> None:
    image = f"gate-test/{name}"
    await docker("create", "--name", name, docker.image)
    await docker("commit", "--change", "LABEL gpushare.device=l-mine gpushare.gpu=1", name, image)
    await docker("rm", name)
    run = await docker("run", "--name", name, image, "true")
    device = await docker("inspect", "-f", '{{index .Config.Labels "gpushare.device"}}', name)
    await docker("rm", name)
    await docker("rmi", image)
    assert (run.code, device.out.strip(), lease_service.calls) == (0, b"", []), run.err


async def test_a_lease_that_is_not_the_callers_does_not_exist(
    docker: Docker, lease_service: FakeLeaseService
) -> None:
    done = await docker.run("--label", "gpushare.lease=l-other", docker.image, "true")
    assert done.code == 125
    assert b"there is no lease l-other (`gpushare ps` lists yours)" in done.err


async def test_a_create_that_the_engine_refuses_ends_the_lease(
    docker: Docker, lease_service: FakeLeaseService, sleeper: str
) -> None:
    """A second try with ``gpushare run`` has a lease of its own; the first one must not stand in its way."""
    lease_service.calls.clear()
    taken = await docker("create", "--name", sleeper, *LEASE, docker.image)
    assert b"is already in use" in taken.err
    assert lease_service.call_names == ["claim", "release"]


async def test_a_mount_that_hides_the_leases_ends_the_lease(
    docker: Docker, lease_service: FakeLeaseService
) -> None:
    done = await docker("create", *LEASE, "-v", "/run/gpushare/mps", docker.image)
    assert b"would hide the lease's" in done.err
    assert lease_service.call_names == ["claim", "release"]


async def test_a_create_without_its_image_gives_the_claim_back_to_come_again(
    docker: Docker, lease_service: FakeLeaseService
) -> None:
    missing = await docker("create", "--pull", "never", *LEASE, "no-such-image")
    assert b"No such image" in missing.err
    assert lease_service.call_names == ["claim", "unclaim"]


IMAGES = [
    ("no-such-image", "no-such-image:latest"),
    ("docker.io/library/no-such-image:1", "no-such-image:1"),
    ("registry.example:5000/a/b", "registry.example:5000/a/b:latest"),
    (f"a/b@sha256:{7:064d}", f"a/b@sha256:{7:064d}"),
]


@pytest.mark.parametrize("words", [(), ("--gpus", "1")], ids=["no GPU", "a GPU"])
@pytest.mark.parametrize(("image", "named"), IMAGES)
async def test_a_missing_image_is_told_in_the_engines_words(
    docker: Docker, words: tuple[str, ...], image: str, named: str
) -> None:
    missing = await docker("create", "--pull", "never", *words, image)
    assert missing.err.decode().strip().endswith(f": No such image: {named}")


async def test_a_start_that_the_engine_refuses_is_told(
    docker: Docker, lease_service: FakeLeaseService
) -> None:
    assert (await docker.run(*LEASE, docker.image, "no-such-program")).code == 127
    assert lease_service.call_names == ["claim", "created", "before_start", "start_failed"]


async def test_a_container_without_a_record_does_not_stay(
    docker: Docker, lease_service: FakeLeaseService, name: str
) -> None:
    lease_service.refuse["created"] = JournalUnavailable(
        "the journal cannot be written", hint="is the disk full?"
    )
    done = await docker("create", "--name", name, *LEASE, docker.image)
    assert b"the journal cannot be written (is the disk full?)" in done.err
    assert (await docker("inspect", name)).code == 1


@pytest.mark.parametrize(
    ("words", "gpu_request"),
    [
        (("--gpus", "1"), RequestSpec(gpu="1")),
        (("--gpus", "all"), RequestSpec(gpu="4")),
        (("--device", "gpushare.io/gpu=0.25"), RequestSpec(gpu="0.25")),
        (("--device", "nvidia.com/gpu=all"), RequestSpec(gpu="4")),
        (("--label", "gpushare.gpu=0.5", "--label", "gpushare.time=2h"), RequestSpec(gpu="0.5", time="2h")),
        (("--gpus", "all", "--label", "gpushare.gpu-memory=8g"), RequestSpec(gpu_memory="8g")),
        (("--runtime", "nvidia", "--label", "gpushare.preset=dev"), RequestSpec(preset="dev")),
    ],
)
async def test_a_wish_for_gpus_gets_a_lease_of_its_own(
    docker: Docker, lease_service: FakeLeaseService, words: tuple[str, ...], gpu_request: RequestSpec
) -> None:
    done = await docker.run(*words, docker.image, "env")
    assert done.code == 0, done.err
    assert variables(done.out)["NVIDIA_VISIBLE_DEVICES"] == GPU
    assert lease_service.calls[0] == ("acquire", gpu_request, 0)
    assert lease_service.call_names == ["acquire", "created", "before_start"]


@pytest.mark.parametrize(
    "words",
    [
        ("--gpus", "device=0"),
        ("--device", "nvidia.com/gpu=0"),
        ("--device", "gpushare.io/lease=l-mine"),
        ("--device", "/dev/nvidia0"),
        ("--device", "/dev/../dev//nvidiactl"),
        ("--runtime", "nvidia"),
        ("-e", "NVIDIA_VISIBLE_DEVICES=all"),
        ("--label", "gpushare.gpus=1"),
    ],
)
async def test_ways_to_gpus_without_a_size_are_refused_with_a_hint(
    docker: Docker, lease_service: FakeLeaseService, words: tuple[str, ...]
) -> None:
    done = await docker.run(*words, docker.image, "true")
    assert done.code == 125
    assert b"(" in done.err
    assert lease_service.calls == []


async def test_no_lease_is_asked_for_while_the_image_is_missing(
    docker: Docker, lease_service: FakeLeaseService
) -> None:
    done = await docker("create", "--pull", "never", "--gpus", "1", "no-such-image")
    assert b"No such image" in done.err
    assert lease_service.calls == []


async def test_a_lease_that_nobody_knows_of_is_released_when_the_create_fails(
    docker: Docker, lease_service: FakeLeaseService
) -> None:
    refused = await docker("create", "--workdir", "no/root", "--gpus", "1", docker.image)
    assert b"working directory" in refused.err
    assert lease_service.call_names == ["acquire", "release"]


async def test_a_client_that_gives_up_waiting_leaves_the_queue(
    served: ServedSocket, lease_service: FakeLeaseService, busybox_image: str
) -> None:
    lease_service.has_capacity.clear()
    body = json.dumps({"Image": busybox_image, "Labels": {"gpushare.gpu": "1"}}).encode()
    async with raw_client(served) as client:
        await client.send(request("POST", "/containers/create", body))
        await lease_service.waiting.wait()
    async with asyncio.timeout(30):
        await lease_service.left_queue.wait()
    assert lease_service.call_names == ["acquire", "left the queue"]


async def test_an_ordinary_container_is_left_as_it_is(
    docker: Docker, lease_service: FakeLeaseService
) -> None:
    done = await docker.run("-e", "NVIDIA_VISIBLE_DEVICES=void", docker.image, "env")
    assert set(variables(done.out)) == {"PATH", "HOME", "HOSTNAME", "NVIDIA_VISIBLE_DEVICES"}
    assert lease_service.calls == []


async def test_restart_keeps_the_node_informed(
    docker: Docker, lease_service: FakeLeaseService, name: str
) -> None:
    await docker(
        "run", "-d", "--init", "--network", "none", "--name", name, *LEASE, docker.image, "sleep", "600"
    )
    lease_service.calls.clear()
    assert (await docker("restart", "-t", "1", name)).code == 0
    await docker("rm", "-f", name)
    assert lease_service.call_names == ["before_restart", "after_restart"]
    assert lease_service.calls[1:3] == [("ending", AskedEnd("", 1)), ("ended",)]


@pytest.mark.parametrize(
    ("words", "asked"),
    [
        (("stop", "-t", "0"), AskedEnd("", 0)),
        (("stop",), AskedEnd()),
        (("kill",), KILL),
        (("kill", "-s", "USR1"), AskedEnd("USR1", kill=False)),
        (("rm", "-f"), KILL),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
async def test_the_node_is_told_around_each_end_how_it_was_asked_for(
    docker: Docker, lease_service: FakeLeaseService, name: str, words: tuple[str, ...], asked: AskedEnd
) -> None:
    options = ("-d", "--init", "--network", "none", "--name", name)
    await docker("run", *options, *LEASE, docker.image, "sleep", "600")
    lease_service.calls.clear()
    assert (await docker(*words, name)).code == 0
    told = lease_service.end_calls
    await docker("rm", "-f", name)
    assert told == [("ending", asked), ("ended",)]


async def test_a_removal_without_force_ends_nothing_and_needs_no_word(
    docker: Docker, lease_service: FakeLeaseService, name: str
) -> None:
    await docker("create", "--network", "none", "--name", name, *LEASE, docker.image, "true")
    lease_service.calls.clear()
    assert (await docker("rm", name)).code == 0
    assert lease_service.calls == []


async def test_devices_cannot_be_changed_by_an_update(served: ServedSocket, sleeper: str) -> None:
    body = json.dumps({"Devices": [{"PathOnHost": "/dev/zero"}]}).encode()
    async with raw_client(served) as client:
        await client.send(request("POST", f"/containers/{sleeper}/update", body))
        reply = await client.reply()
    assert (reply.status, reply.message.split(" (")[0]) == (403, "Devices cannot be changed")


async def test_an_exec_has_the_leases_variables_whatever_its_own_are(docker: Docker, name: str) -> None:
    await docker(
        "run", "-d", "--init", "--network", "none", "--name", name, *LEASE, docker.image, "sleep", "600"
    )
    done = await docker("exec", "-e", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=100", "-e", "A=b", name, "env")
    await docker("rm", "-f", name)
    env = variables(done.out)
    assert (env["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"], env["A"]) == ("25", "b")


async def test_the_python_sdk_gets_a_lease_for_a_device_request(
    served: ServedSocket, lease_service: FakeLeaseService, busybox_image: str
) -> None:
    def run() -> bytes:
        client = docker_sdk.DockerClient(served.url)
        try:
            gpu_request = docker_sdk.types.DeviceRequest(count=2, capabilities=[["gpu"]])
            output: bytes = client.containers.run(
                busybox_image, "env", device_requests=[gpu_request], remove=True, network_mode="none"
            )
            return output
        finally:
            client.close()

    output = await asyncio.to_thread(run)
    assert variables(output)["NVIDIA_VISIBLE_DEVICES"] == GPU
    assert lease_service.calls[0] == ("acquire", RequestSpec(gpu="2"), 0)


COMPOSE_FILE = """
services:
  web:
    image: {image}
    command: ["sh", "-c", "env | grep NVIDIA_VISIBLE; exec sleep 600"]
    init: true
  trainer:
    image: {image}
    command: ["sh", "-c", "env | grep NVIDIA_VISIBLE"]
    depends_on: [web]
    volumes: ["data:/data"]
    deploy:
      resources:
        reservations:
          devices: [{{capabilities: [gpu], count: 1}}]
volumes:
  data: {{}}
"""


async def test_compose_brings_up_services_with_a_network_a_volume_and_a_lease(
    docker: Docker, lease_service: FakeLeaseService, tmp_path: Path
) -> None:
    (tmp_path / "compose.yaml").write_text(COMPOSE_FILE.format(image=docker.image))
    compose = ("compose", "-p", f"gate{uuid.uuid4().hex[:8]}", "-f", str(tmp_path / "compose.yaml"))
    try:
        up = await docker(*compose, "up", "--abort-on-container-exit", "--exit-code-from", "trainer")
    finally:
        await docker(*compose, "down", "-v", "-t", "0")
    assert up.code == 0, up.err
    assert f"NVIDIA_VISIBLE_DEVICES={GPU}".encode() in up.out
    assert lease_service.call_names == ["acquire", "created", "before_start"]


@dataclass
class CdiLeaseService(FakeLeaseService):
    """Writes a device's spec when its container is started, as the node does on an engine with CDI."""

    specs: LeaseSpecs | None = None
    device_names: tuple[str, ...] = ()

    async def before_start(self, container: ContainerId, caller: Caller) -> None:
        await super().before_start(container, caller)
        assert self.specs is not None
        for name in self.device_names:
            self.specs.write(name, self.edits)


@pytest.fixture
async def cdi_lease(
    cdi_engine: CdiEngine, docker_environment: dict[str, str], busybox_image: str
) -> AsyncIterator[tuple[Docker, CdiLeaseService]]:
    lease_service = CdiLeaseService(facts=facts(lease_devices=True), specs=LeaseSpecs(cdi_engine.spec_dir))
    async with serving_gate(Gate(cdi_engine.socket, lease_service), ROOT) as served:
        yield Docker(served.url, docker_environment, busybox_image), lease_service
    assert lease_service.specs is not None
    for name in lease_service.device_names:
        lease_service.specs.remove(name)


@pytest.mark.cdi
async def test_on_an_engine_with_cdi_the_lease_comes_at_start_and_another_at_the_next(
    cdi_lease: tuple[Docker, CdiLeaseService], name: str
) -> None:
    docker, lease_service = cdi_lease
    words = (
        "--name",
        name,
        "--network",
        "none",
        "--gpus",
        "1",
        "-e",
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=100",
    )
    created = await docker("create", *words, docker.image, "env")
    assert created.code == 0, created.err
    assert lease_service.calls == []
    labels = json.loads((await docker("inspect", "-f", "{{json .Config.Labels}}", name)).out)
    assert labels["gpushare.gpu"] == "1"
    lease_service.device_names = (labels["gpushare.device"],)
    seen = []
    for share in ("25", "50"):
        lease_service.edits = edits(CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=share)
        done = await docker("start", "-a", name)
        seen.append(variables(done.out)["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"])
    await docker("rm", "-f", name)
    assert seen == ["25", "50"]
    assert lease_service.call_names == ["before_start", "before_start"]


@pytest.mark.cdi
async def test_an_exec_sees_the_variables_that_cdi_gives_to_the_first_process_only(
    cdi_lease: tuple[Docker, CdiLeaseService], name: str
) -> None:
    docker, lease_service = cdi_lease
    lease_service.device_names = ("l-mine",)
    words = ("--name", name, "--network", "none", "--init")
    started = await docker("run", "-d", *words, *LEASE, docker.image, "sleep", "600")
    assert started.code == 0, started.err
    done = await docker("exec", name, "env")
    await docker("rm", "-f", name)
    assert variables(done.out)["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "25"
