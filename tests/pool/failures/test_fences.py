"""Jobs with ``--stop-after`` on nodes without a daemon: by their diaries they never run twice at once."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Final

import pytest

from tests.pool.failures.daemons import Node
from tests.pool.failures.evidence import Run
from tests.pool.failures.machine import wait_until
from tests.pool.failures.world import World

STOP_AFTER: Final = ("--stop-after", "60s")
PAST_ITS_DEADLINE: Final = 70.0
PAST_ALL_MARGINS: Final = 100.0
HANGING: Final = """
import signal, time
signal.signal(signal.SIGUSR1, lambda *_: time.sleep(1e6))
from gpushared.node.main import main
main()
"""
"""The daemon's program, whose event loop hangs from SIGUSR1 on, while its other threads go on."""


def _send(number: signal.Signals) -> Callable[[Node], None]:
    def send(node: Node) -> None:
        assert node.program is not None
        node.program.send(number)

    return send


AWAY: Final[dict[str, Callable[[Node], None]]] = {
    "stopped": Node.stop,
    "killed": Node.kill,
    "frozen": _send(signal.SIGSTOP),
    "hung": _send(signal.SIGUSR1),
}


def _running_on(world: World, *options: str) -> tuple[str, Node]:
    """A fenced job on b or on a, submitted through c; with the node where it runs."""
    job = world.submit("--model", "4090,h100", *STOP_AFTER, *options, through="c")
    return job, world.nodes[world.wait_running(job)[0].node]


def _wait_replaced(world: World, job: str, node: Node) -> tuple[Run, Run]:
    """Let the coordinator's time pass, too; the first and the second run of the job."""
    world.coordinator.machine.sleep(PAST_ALL_MARGINS)
    first, second = world.wait_runs(job, 2)
    assert second.node != node.name
    assert second.began > first.last
    return first, second


@pytest.mark.parametrize("how", AWAY)
def test_a_fenced_job_ends_in_time_without_its_daemon_and_runs_elsewhere_afterwards(
    world: World, how: str
) -> None:
    """Its guard ends it as the daemon would have, and the daemon, back, knows it: the second run goes on."""
    for node in world.nodes.values():
        if how == "hung":
            node.restart("python", "-c", HANGING)
    world.wait_ready()
    job, node = _running_on(world)
    keeps = world.submit("--node", node.name, gpu="0.5")
    world.wait_running(keeps)
    AWAY[how](node)
    world.wait_presence(node.name, "unknown")
    node.machine.sleep(PAST_ITS_DEADLINE)
    wait_until(lambda: world.diary.runs(job)[0].ended == "stopped", "its guard ends it")
    assert len(world.diary.runs(job)) == 1
    assert world.is_alive(keeps)
    _wait_replaced(world, job, node)
    assert "the guard there was to end it after 1m" in world.screen("why", job, on="c")
    assert node.program is not None
    if how == "frozen":
        _send(signal.SIGCONT)(node)
    elif how == "hung":
        node.kill()
    if how != "frozen":
        node.start()
    world.wait_ready()
    world.wait_state(job, "running")
    assert len(world.diary.runs(job)) == 2
    assert len(world.diary.runs(keeps)) == 1
    if how == "hung":
        for one in world.nodes.values():
            one.restart()


@pytest.mark.parametrize("how", [signal.SIGSTOP, signal.SIGKILL], ids=["frozen", "killed"])
def test_a_fenced_job_ends_in_time_without_its_daemon_and_its_engine(
    world: World, how: signal.Signals
) -> None:
    """Its processes are killed, for nobody is left who would stop the container."""
    job, node = _running_on(world)
    node.engine.send(how)
    node.kill()
    world.wait_presence(node.name, "unknown")
    node.machine.sleep(PAST_ITS_DEADLINE)
    wait_until(lambda: not world.is_alive(job), "its guard kills it")
    _wait_replaced(world, job, node)
    if how is signal.SIGSTOP:
        node.engine.send(signal.SIGCONT)
    else:
        node.engine.start()
    node.start()
    world.wait_ready()
    world.wait_state(job, "running")
    assert len(world.diary.runs(job)) == 2


def test_an_end_that_a_frozen_daemon_missed_counts_as_long_as_the_job_was_not_placed_anew(
    world: World,
) -> None:
    """Its exit code wins over the fence, on the node and in the pool, where the job waits already."""
    job = world.submit("--node", "b", *STOP_AFTER)
    world.wait_running(job)
    node = world.nodes["b"]
    AWAY["frozen"](node)
    world.diary.end(job)
    wait_until(lambda: job not in node.engine.running(), "it ends unseen")
    world.wait_presence("b", "unknown")
    node.machine.sleep(PAST_ITS_DEADLINE)
    world.coordinator.machine.sleep(PAST_ALL_MARGINS)
    world.wait_state(job, "queued")
    _send(signal.SIGCONT)(node)
    world.wait_state(job, "succeeded")
    assert len(world.diary.runs(job)) == 1


def test_a_guard_that_is_killed_is_replaced_while_the_daemon_lives(world: World) -> None:
    job, node = _running_on(world)
    first = node.guard()
    assert first is not None
    os.kill(first, signal.SIGKILL)
    wait_until(lambda: node.guard() not in {None, first}, "there is another guard")
    node.stop()
    world.wait_presence(node.name, "unknown")
    node.machine.sleep(PAST_ITS_DEADLINE)
    wait_until(lambda: world.diary.runs(job)[0].ended == "stopped", "the new one ends it")
    _wait_replaced(world, job, node)
    node.start()
    world.wait_ready()
