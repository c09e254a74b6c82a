"""What every `Engine` must do, tried on the fake and on real engines of two ages."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from gpushared.domain.model.errors import NotFound
from gpushared.domain.model.lease import ComputeCap, ContainerId, MemoryWall, Walls
from gpushared.engine.docker_engine import DockerEngine
from gpushared.ports import LABEL_DEVICE, LABEL_OWNER, ContainerFacts, ContainerStatus, Edits, Engine
from gpushared.testing import FakeEngine
from tests.engine.containers import (
    Containers,
    DockerContainers,
    event,
    events_until,
    facts,
    is_gone,
    is_now,
    unique_name,
)

NOBODY = ContainerId("f" * 64)
EDITS = Edits((), Walls(MemoryWall.NONE, ComputeCap.NONE), env={"GPUSHARE_LEASE": "l-1"})


@dataclass
class EngineBed:
    engine: Engine
    containers: Containers

    async def create(
        self, *, owner_uid: int | None = None, restart_policy: str = "no", name: str = ""
    ) -> ContainerId:
        """A container of the daemon's, whose device exists where the engine wants devices."""
        device = unique_name()
        await self.engine.write_device(device, EDITS)
        return self.containers.create(device, owner_uid=owner_uid, restart_policy=restart_policy, name=name)

    async def run(self, *, restart_policy: str = "no") -> ContainerId:
        container = await self.create(restart_policy=restart_policy)
        self.containers.start(container)
        return container


@pytest.fixture(
    params=[
        "fake",
        pytest.param("docker_engine", marks=pytest.mark.docker),
        pytest.param("cdi_engine", marks=pytest.mark.cdi),
    ]
)
async def bed(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[EngineBed]:
    if request.param == "fake":
        fake = FakeEngine()
        yield EngineBed(fake, fake)
        return
    shared = request.getfixturevalue(request.param)
    socket = shared if isinstance(shared, str) else shared.socket
    adapter, containers = (
        DockerEngine(socket, simulated_gpus=True, spec_dir=tmp_path),
        DockerContainers(socket),
    )
    yield EngineBed(adapter, containers)
    containers.clean_up()
    await adapter.close()


async def test_it_says_what_it_is(bed: EngineBed) -> None:
    """Version, API version and cgroup version are told, for the log and for choices."""
    found = await bed.engine.probe()
    assert found.version
    assert float(found.api_version) >= 1.41
    assert found.cgroup_version in {1, 2}


async def test_a_survey_lists_the_daemons_containers_in_every_state_and_no_others(bed: EngineBed) -> None:
    """After a restart of the daemon, this is how it finds its own again."""
    created, running, exited = await bed.create(), await bed.run(), await bed.run()
    stranger = bed.containers.create()
    await bed.engine.stop(exited, 5)
    statuses = {found.id: found.status for found in await bed.engine.containers()}
    assert statuses[created] is ContainerStatus.CREATED
    assert statuses[running] is ContainerStatus.RUNNING
    assert statuses[exited] is ContainerStatus.EXITED
    assert stranger not in statuses


async def test_inspect_tells_who_and_what_a_container_is(bed: EngineBed) -> None:
    """Name without Docker's slash, image, owner and device from the labels, no PID while it is down."""
    name = unique_name()
    container = await bed.create(owner_uid=1234, restart_policy="unless-stopped", name=name)
    found = await facts(bed.engine, container)
    assert (found.id, found.name, found.status) == (container, name, ContainerStatus.CREATED)
    assert found.image
    assert (found.pid, found.exit_code, found.owner_uid) == (0, 0, 1234)
    assert found.restart_policy == "unless-stopped"
    assert found.labels[LABEL_DEVICE] == found.device_name
    assert found.labels[LABEL_OWNER] == "1234"


async def test_a_container_that_the_gate_did_not_create_has_no_owner_and_no_device(bed: EngineBed) -> None:
    """Absent labels are absent facts, not somebody's uid."""
    found = await facts(bed.engine, bed.containers.create())
    assert (found.device_name, found.owner_uid, found.restart_policy) == ("", None, "no")


async def test_a_container_that_does_not_exist_is_none(bed: EngineBed) -> None:
    """It may have been removed at any moment: that is an answer, not an error."""
    assert await bed.engine.inspect(NOBODY) is None


async def test_stop_comes_back_when_the_container_has_ended(bed: EngineBed) -> None:
    """The caller need not ask again."""
    container = await bed.run()
    await bed.engine.stop(container, 5)
    found = await facts(bed.engine, container)
    assert (found.status, found.exit_code, found.pid) == (ContainerStatus.EXITED, 143, 0)


async def test_stopping_what_does_not_run_is_no_error(bed: EngineBed) -> None:
    """Neither never started, nor stopped before, nor gone."""
    created, stopped = await bed.create(), await bed.run()
    await bed.engine.stop(stopped, 5)
    for container in (created, stopped, NOBODY):
        await bed.engine.stop(container, 5)


async def test_a_container_that_ended_is_started_again(bed: EngineBed) -> None:
    """One that runs goes on as it is; one that is gone cannot be."""
    container = await bed.run()
    await bed.engine.start_again(container)
    await bed.engine.stop(container, 5)
    await bed.engine.start_again(container)
    assert (await facts(bed.engine, container)).status is ContainerStatus.RUNNING
    bed.containers.remove(container)
    with pytest.raises(NotFound):
        await bed.engine.start_again(container)


async def test_a_paused_container_can_be_stopped(bed: EngineBed) -> None:
    """A lease that expires while its container is frozen must end too."""
    container = await bed.run()
    bed.containers.pause(container)
    assert (await facts(bed.engine, container)).status is ContainerStatus.PAUSED
    await bed.engine.stop(container, 5)
    assert (await facts(bed.engine, container)).status is ContainerStatus.EXITED


async def test_a_signal_to_what_does_not_run_is_no_error(bed: EngineBed) -> None:
    """It may have ended a moment ago."""
    for container in (await bed.create(), NOBODY):
        await bed.engine.signal(container, "SIGUSR1")


async def test_a_restart_policy_does_not_bring_back_what_was_stopped(bed: EngineBed) -> None:
    """Stopped is stopped, until somebody starts it."""
    container = await bed.run(restart_policy="always")
    await bed.engine.stop(container, 5)
    assert (await facts(bed.engine, container)).status is ContainerStatus.EXITED


async def test_a_life_is_told_from_start_to_removal(bed: EngineBed) -> None:
    """Each event is the facts as inspect gives them, and in the end the bare id."""
    stream = bed.engine.events()
    container = await bed.create()
    steps: list[tuple[Callable[[], None], ContainerStatus]] = [
        (lambda: bed.containers.start(container), ContainerStatus.RUNNING),
        (lambda: bed.containers.pause(container), ContainerStatus.PAUSED),
        (lambda: bed.containers.unpause(container), ContainerStatus.RUNNING),
        (lambda: bed.containers.exit(container, 3), ContainerStatus.EXITED),
    ]
    for act, status in steps:
        act()
        told = await event(stream, is_now(container, status))
    assert isinstance(told, ContainerFacts)
    assert told.exit_code == 3
    bed.containers.remove(container)
    assert await event(stream, is_gone(container)) == container


async def test_nothing_is_missed_between_listening_and_the_first_read(bed: EngineBed) -> None:
    """Listening begins when `events` is called, not when somebody first waits for an event."""
    container = await bed.create()
    stream = bed.engine.events()
    bed.containers.start(container)
    assert await event(stream, is_now(container, ContainerStatus.RUNNING))


async def test_strangers_are_not_told(bed: EngineBed) -> None:
    """Containers without the label come and go without a word."""
    stream = bed.engine.events()
    stranger = bed.containers.create()
    bed.containers.start(stranger)
    bed.containers.remove(stranger)
    ours = await bed.run()
    told = await events_until(stream, is_now(ours, ContainerStatus.RUNNING))
    assert stranger not in {one.id if isinstance(one, ContainerFacts) else one for one in told}


async def test_forgetting_a_device_that_is_unknown_is_no_error(bed: EngineBed) -> None:
    """Clean-up may happen twice."""
    await bed.engine.write_device("l-1", EDITS)
    await bed.engine.write_device("l-1", EDITS)
    await bed.engine.remove_device("l-1")
    await bed.engine.remove_device("l-1")
