"""Lease devices in a real engine that knows CDI."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from docker.errors import APIError

from gpushared.domain.model.lease import ComputeCap, ContainerId, MemoryWall, Walls
from gpushared.engine.docker_engine import DockerEngine
from gpushared.ports import ContainerStatus, DeviceMechanism, EditMount, Edits
from tests.bed.fixtures import CdiEngine
from tests.engine.containers import DockerContainers, facts, unique_name

REPORT = ("sh", "-c", "echo $LEASE; cat /lease/note; touch /lease/x || echo read-only; ls -l /dev/kmsg")


def edits(lease: str) -> Edits:
    return Edits(gpus=(), walls=Walls(MemoryWall.NONE, ComputeCap.NONE), env={"LEASE": lease})


async def test_the_engine_says_that_it_takes_devices_of_ours(cdi: DockerEngine) -> None:
    """By the directories that it reads; a plain engine has none."""
    found = await cdi.probe()
    assert found.lease_devices
    assert found.gpu_mechanism is DeviceMechanism.PLAIN


async def test_a_plain_engine_takes_none(engine: DockerEngine) -> None:
    """Then everything goes into the container itself."""
    assert not (await engine.probe()).lease_devices


async def test_a_container_gets_what_its_lease_says(
    cdi: DockerEngine, cdi_containers: DockerContainers, tmp_path: Path
) -> None:
    """Environment over the user's own, mounts that are read-only, device nodes."""
    (tmp_path / "note").write_text("from the host\n")
    device = unique_name()
    full = replace(edits(device), mounts=(EditMount(str(tmp_path), "/lease"),), devices=("/dev/kmsg",))
    await cdi.write_device(device, full)
    container = cdi_containers.create(device, command=REPORT, environment={"LEASE": "mine"}, leases=[device])
    cdi_containers.start(container)
    lines = cdi_containers.output(container).splitlines()
    assert lines[:2] == [device, "from the host"]
    assert "read-only" in lines
    assert lines[-1].startswith("c")
    assert not (tmp_path / "x").exists()


async def test_a_device_is_known_the_moment_it_is_written(
    cdi: DockerEngine, cdi_containers: DockerContainers
) -> None:
    """The engine must never be too late: five in a row, each started at once."""
    for _ in range(5):
        device = unique_name()
        await cdi.write_device(device, edits(device))
        container = cdi_containers.create(device, command=("sh", "-c", "echo $LEASE"), leases=[device])
        cdi_containers.start(container)
        assert cdi_containers.output(container).strip() == device


async def test_a_device_is_resolved_anew_at_every_start(
    cdi: DockerEngine, cdi_containers: DockerContainers
) -> None:
    """So a container can be made before its lease is granted, and go on with another one."""
    device = unique_name()
    container = cdi_containers.create(device, command=("sh", "-c", "echo $LEASE"), leases=[device])
    for lease in ("first", "second"):
        await cdi.write_device(device, edits(lease))
        cdi_containers.start(container)
        cdi_containers.client.wait(container)
    assert cdi_containers.output(container).split() == ["first", "second"]


async def test_without_its_device_a_container_does_not_start(
    cdi: DockerEngine, cdi_containers: DockerContainers
) -> None:
    """Neither before it was written nor after it was removed: no lease, no run; and the engine says why."""
    device = unique_name()
    container = cdi_containers.create(device, leases=[device])
    with pytest.raises(APIError, match=f"unresolvable CDI devices gpushare.io/lease={device}"):
        cdi_containers.start(container)
    assert (await facts(cdi, container)).status is ContainerStatus.CREATED
    await cdi.write_device(device, edits(device))
    cdi_containers.start(container)
    await cdi.stop(container, 5)
    await cdi.remove_device(device)
    with pytest.raises(APIError, match="unresolvable CDI devices"):
        cdi_containers.start(container)


async def test_of_two_devices_the_one_asked_for_last_has_the_last_word(
    cdi: DockerEngine, cdi_containers: DockerContainers
) -> None:
    """Hence a lease's device is asked for after the GPU's own."""
    first, last = unique_name(), unique_name()
    await cdi.write_device(first, edits("first"))
    await cdi.write_device(last, edits("last"))
    container = cdi_containers.create(first, command=("sh", "-c", "echo $LEASE"), leases=[first, last])
    cdi_containers.start(container)
    assert cdi_containers.output(container).strip() == "last"


async def test_a_half_written_spec_of_a_crash_does_no_harm(
    cdi: DockerEngine, cdi_containers: DockerContainers, cdi_engine: CdiEngine
) -> None:
    """Under its temporary name the engine does not read it."""
    device = unique_name()
    leftover = cdi_engine.spec_dir / f".gpushare.io-lease-{device}.tmp"
    leftover.write_text('{"cdiVersion": "0.5.0", "kind": "gpushare.io/le')
    await cdi.write_device(device, edits(device))
    container = cdi_containers.create(device, command=("sh", "-c", "echo $LEASE"), leases=[device])
    cdi_containers.start(container)
    assert cdi_containers.output(container).strip() == device
    leftover.unlink()


async def test_devices_written_before_the_engine_was_asked_go_where_it_reads_them(
    cdi_engine: CdiEngine, cdi_containers: DockerContainers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The default directory may not be this engine's."""
    monkeypatch.setattr("gpushared.engine.docker_engine.DEFAULT_SPEC_DIR", tmp_path / "cdi")
    engine, device = DockerEngine(cdi_engine.socket, simulated_gpus=True), unique_name()
    await engine.write_device(device, edits(device))
    await engine.probe()
    container: ContainerId = cdi_containers.create(
        device, command=("sh", "-c", "echo $LEASE"), leases=[device]
    )
    cdi_containers.start(container)
    assert cdi_containers.output(container).strip() == device
    assert list((tmp_path / "cdi").iterdir()) == []
    await engine.remove_device(device)
    await engine.close()
