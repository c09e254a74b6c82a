"""What the real engine says of containers at the moments that are easy to get wrong."""

from __future__ import annotations

import asyncio
import io
import tarfile
import threading

import pytest
from docker.errors import APIError

from gpushared.domain.model.lease import ContainerId
from gpushared.engine.docker_engine import CALLS_AT_ONCE, DockerEngine
from gpushared.ports import ContainerFacts, ContainerStatus
from tests.engine.containers import (
    DockerContainers,
    event,
    events_until,
    facts,
    is_gone,
    is_now,
    unique_name,
)

DEAF = ("sh", "-c", "trap '' TERM; while :; do sleep 1; done")


@pytest.mark.parametrize("code", [0, 3, 127, 255])
async def test_the_exit_code_is_the_programs_own(
    engine: DockerEngine, containers: DockerContainers, code: int
) -> None:
    """Whatever it is."""
    container = containers.create(unique_name(), command=("sh", "-c", f"exit {code}"))
    containers.start(container)
    containers.client.wait(container)
    found = await facts(engine, container)
    assert (found.status, found.exit_code) == (ContainerStatus.EXITED, code)


async def test_a_program_that_ignores_the_signal_is_killed_after_the_grace(
    engine: DockerEngine, containers: DockerContainers
) -> None:
    """And its exit code says so."""
    container = containers.create(unique_name(), command=DEAF)
    containers.start(container)
    await engine.stop(container, 0)
    assert (await facts(engine, container)).exit_code == 137


async def test_stops_that_wait_for_their_grace_hold_up_nothing_else(
    engine: DockerEngine, containers: DockerContainers
) -> None:
    """Even when there are more of them than calls can be made at once."""
    created = [containers.create(unique_name(), command=DEAF) for _ in range(CALLS_AT_ONCE + 1)]
    for container in created:
        containers.start(container)
    stops = [asyncio.create_task(engine.stop(container, 600)) for container in created]
    assert {(await facts(engine, container)).status for container in created} == {ContainerStatus.RUNNING}
    assert not any(stop.done() for stop in stops)
    for container in created:
        containers.client.kill(container)
    await asyncio.gather(*stops)
    assert {(await facts(engine, container)).status for container in created} == {ContainerStatus.EXITED}


async def test_a_crash_loop_is_restarting_until_it_is_stopped(
    engine: DockerEngine, containers: DockerContainers
) -> None:
    """Between two tries it is not exited: the engine will start it again, unless somebody stops it."""
    stream = engine.events()
    container = containers.create(
        unique_name(), command=("sh", "-c", "sleep 0.1; exit 5"), restart_policy="always"
    )
    containers.start(container)
    told = await event(stream, is_now(container, ContainerStatus.RESTARTING))
    assert isinstance(told, ContainerFacts)
    assert (told.exit_code, told.pid, told.restart_policy) == (5, 0, "always")
    await engine.stop(container, 5)
    assert (await facts(engine, container)).status is ContainerStatus.EXITED


async def test_a_restart_by_policy_is_told_as_running_again(
    engine: DockerEngine, containers: DockerContainers
) -> None:
    """With another PID."""
    stream = engine.events()
    container = containers.create(unique_name(), restart_policy="always")
    containers.start(container)
    first = (await facts(engine, container)).pid
    containers.exit(container, 5)
    again = await event(
        stream,
        lambda told: isinstance(told, ContainerFacts) and told.pid not in {0, first},
    )
    assert isinstance(again, ContainerFacts)
    assert again.status is ContainerStatus.RUNNING


async def test_the_exit_code_of_a_container_that_removes_itself_is_not_lost(
    engine: DockerEngine, containers: DockerContainers
) -> None:
    """Its facts with the code are told before its id, however fast the engine removes it."""
    stream = engine.events()
    ended = {ContainerStatus.EXITED, ContainerStatus.REMOVING, ContainerStatus.DEAD}
    for code in range(10, 20):
        container = containers.create(unique_name(), command=("sh", "-c", f"exit {code}"), auto_remove=True)
        containers.start(container)
        told = await events_until(stream, is_gone(container))
        ours = [one for one in told if isinstance(one, ContainerFacts) and one.id == container]
        assert ours[-1].status in ended
        assert ours[-1].exit_code == code


async def test_a_death_that_is_read_after_the_removal_keeps_its_exit_code(
    engine: DockerEngine, containers: DockerContainers
) -> None:
    """Then nothing is left to inspect, and the engine's record of the death tells."""
    stream = engine.events()
    container = containers.create(name := unique_name(), command=("sh", "-c", "exit 42"), owner_uid=1000)
    containers.start(container)
    containers.client.wait(container)
    containers.remove(container)
    told = await events_until(stream, is_gone(container))
    [death] = [one for one in told if isinstance(one, ContainerFacts) and one.id == container]
    assert (death.status, death.exit_code) == (ContainerStatus.EXITED, 42)
    assert (death.device_name, death.owner_uid) == (name, 1000)


async def test_a_container_that_could_not_be_started_says_why_until_it_can(
    engine: DockerEngine, containers: DockerContainers
) -> None:
    container = containers.create(unique_name(), command=("/root/run",))
    with pytest.raises(APIError):
        containers.start(container)
    failed = await facts(engine, container)
    assert (failed.status, failed.exit_code) == (ContainerStatus.CREATED, 127)
    assert "/root/run" in failed.start_error
    containers.client.put_archive(container, "/root", archive("run", "#!/bin/sh\nexit 3\n"))
    containers.start(container)
    containers.client.wait(container)
    ended = await facts(engine, container)
    assert (ended.exit_code, ended.start_error) == (3, "")


def archive(name: str, script: str) -> bytes:
    """A tar file with one program."""
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as tar:
        entry = tarfile.TarInfo(name)
        entry.size, entry.mode = len(script), 0o755
        tar.addfile(entry, io.BytesIO(script.encode()))
    return data.getvalue()


async def test_what_happened_since_the_last_survey_is_told(
    engine: DockerEngine, containers: DockerContainers
) -> None:
    """So nothing falls between a survey and listening."""
    container = containers.create(unique_name())
    await engine.containers()
    containers.start(container)
    assert await event(engine.events(), is_now(container, ContainerStatus.RUNNING))


async def test_containers_that_go_while_they_are_looked_at_are_no_error(
    engine: DockerEngine, containers: DockerContainers
) -> None:
    """Each is told as it is or not at all."""
    created = [containers.create(unique_name()) for _ in range(8)]

    async def remove(container: ContainerId) -> None:
        await asyncio.to_thread(containers.remove, container)

    async def look(container: ContainerId) -> None:
        while (found := await engine.inspect(container)) is not None:
            assert found.id == container
            await engine.containers()

    await asyncio.gather(*map(look, created), *map(remove, created))
    assert not {found.id for found in await engine.containers()} & set(created)


async def test_two_hundred_calls_at_once_are_all_answered(
    engine: DockerEngine, containers: DockerContainers
) -> None:
    """By few threads."""
    container = containers.create(unique_name())
    found = await asyncio.gather(*(facts(engine, container) for _ in range(200)))
    assert {one.id for one in found} == {container}
    assert len([thread for thread in threading.enumerate() if thread.name == "engine-call"]) <= CALLS_AT_ONCE


async def test_a_listener_that_is_cancelled_takes_its_thread_along(engine: DockerEngine) -> None:
    """Otherwise every reconnection would leave one behind."""
    before = set(threading.enumerate())
    stream = engine.events()
    waiting = asyncio.create_task(anext(stream, None))
    await engine.probe()
    [thread] = [new for new in set(threading.enumerate()) - before if new.name == "engine-events"]
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await asyncio.to_thread(thread.join, 30)
    assert not thread.is_alive()


async def test_closing_ends_all_threads(docker_engine: str) -> None:
    """Those that call, those that stop and those that listen."""
    before = set(threading.enumerate())
    engine = DockerEngine(docker_engine)
    waiting = asyncio.create_task(anext(engine.events(), None))
    await engine.probe()
    await engine.stop(ContainerId("f" * 64), 1)
    threads = {new for new in set(threading.enumerate()) - before if new.name.startswith("engine-")}
    assert {thread.name for thread in threads} == {"engine-call", "engine-stop", "engine-events"}
    await engine.close()
    for thread in threads:
        await asyncio.to_thread(thread.join, 30)
    assert not any(thread.is_alive() for thread in threads)
    waiting.cancel()
