"""Clocks that jump, certificates that run out, tokens in the wrong hands, and a node that lies."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.pool.failures.daemons import Node
from tests.pool.failures.machine import BrokenBed, wait_until
from tests.pool.failures.world import World

HOUR, DAY = 3600.0, 86400.0
LYING_NODE = Path(__file__).with_name("lying_node.py")


def _stranger(world: World) -> Node:
    """A machine that is in no pool, and has no Docker."""
    return Node(world.machine("d", 20), "h100:8", world.diary.directory)


@pytest.fixture
def stranger(world: World) -> Iterator[Node]:
    """It is forgotten afterwards."""
    node = _stranger(world)
    node.machine.boot()
    node.start()
    yield node
    node.machine.cut_power()
    if "d" in world.presences():
        world.wait_presence("d", "unknown")
        world.screen("node", "forget", "d", "--is-off")


@pytest.mark.parametrize("hours", [1, -1], ids=["forward", "back"])
@pytest.mark.parametrize("whose", ["coordinator", "b"])
def test_a_clock_that_jumps_by_an_hour_ends_no_job_and_gives_none_away(
    world: World, whose: str, hours: int
) -> None:
    """Durations are not counted by the time of day; that the clock is wrong is said, and where."""
    job = world.submit("--node", "b", "--stop-after", "10m", "--time", "30m")
    world.wait_running(job)
    machine = world.coordinator.machine if whose == "coordinator" else world.nodes["b"].machine
    machine.set_day(hours * HOUR)
    assert world.is_alive(job)
    output = world.nodes["b"].gpushare(
        "submit", "--pool", "--gpu", "1", "gpushared-test/busybox", check=False
    )
    assert "clock" in output
    world.wait_ready()
    assert world.is_alive(job)
    machine.set_day(0.0)
    world.wait_running(job)
    world.wait_running(world.submit(through="b"))
    assert len(world.diary.runs(job)) == 1


@pytest.mark.parametrize("hours", [1, -1], ids=["forward", "back"])
def test_nor_does_one_that_jumped_while_no_daemon_ran(world: World, hours: int) -> None:
    """What they wrote of times means the same to their next lives, in the same boot."""
    job = world.submit("--node", "b", "--stop-after", "10m", "--time", "30m")
    world.wait_running(job)
    node, coordinator = world.nodes["b"], world.coordinator
    for daemon in (node, coordinator):
        daemon.kill()
        daemon.machine.set_day(hours * HOUR)
        daemon.start()
    world.wait_ready()
    assert world.is_alive(job)
    world.wait_running(job)
    for daemon in (node, coordinator):
        daemon.machine.set_day(0.0)
    world.wait_running(world.submit(through="b"))
    world.wait_running(job)
    assert len(world.diary.runs(job)) == 1


def test_a_machine_whose_certificate_ran_out_while_it_was_off_is_refused_until_it_joins_again() -> None:
    """In a pool of its own, because time goes on by a month."""
    world = World()
    node = _stranger(world)
    try:
        world.coordinator.machine.boot()
        world.coordinator.start()
        node.machine.boot()
        node.start()
        node.join(world.coordinator)
        world.wait_ready(["d"])
        node.stop()
        for machine in (world.coordinator.machine, node.machine):
            machine.set_day(31 * DAY)
        world.coordinator.restart()
        node.start()
        wait_until(lambda: "expired" in node.gpushare("doctor", check=False), "d says why it is refused")
        assert world.presences()["d"] == "never-seen"
        node.join_anew(world.coordinator)
        world.wait_ready(["d"])
    finally:
        if node.machine.is_on:
            node.machine.cut_power()
        world.dispose()


def test_a_token_lets_one_machine_in_once_by_the_name_that_it_was_made_for(
    world: World, stranger: Node
) -> None:
    """Whoever steals it gets nothing after that, nor under another name, nor late, nor elsewhere."""
    admin = world.coordinator.admin
    for_c = admin("pool", "token", "--node", "zeta", "-q")
    with pytest.raises(BrokenBed, match="zeta"):
        stranger.join(world.coordinator, for_c)
    old = admin("pool", "token", "--node", "d", "--valid", "10m", "-q")
    for machine in (world.coordinator.machine, stranger.machine):
        machine.set_day(HOUR)
    with pytest.raises(BrokenBed, match="expired"):
        stranger.join(world.coordinator, old)
    for machine in (world.coordinator.machine, stranger.machine):
        machine.set_day(0.0)
    used = admin("pool", "token", "--node", "d", "-q")
    stranger.join(world.coordinator, used)
    stranger.gpushare("node", "leave")
    with pytest.raises(BrokenBed, match="used"):
        stranger.join(world.coordinator, used)
    revoked = admin("pool", "token", "--node", "d", "-q")
    admin("pool", "revoke", revoked.split("-")[-2])
    with pytest.raises(BrokenBed, match="revoked"):
        stranger.join(world.coordinator, revoked)


def test_a_node_that_claims_gpus_which_it_has_not_keeps_no_job_from_running(
    world: World, stranger: Node
) -> None:
    """It cannot pass for another node; what it took and never began goes on when it is called off."""
    stranger.join(world.coordinator)
    stranger.stop()
    lying_node = stranger.machine.start(
        sys.executable,
        str(LYING_NODE),
        str(stranger.state_dir / "pool"),
        f"{world.coordinator.address}:7441",
        log="lying_node.log",
    )
    wait_until(
        lambda: "a: refused" in lying_node.tail() and "d: welcomed" in lying_node.tail(),
        "it tried both names",
    )
    world.wait_ready(["d"])
    job = world.submit("--model", "b200")
    world.wait_state(job, "placing")
    honest = world.submit()
    assert world.wait_running(honest)[0].node != "d"
    world.screen("drain", "d", "--reason", "it lies")
    lying_node.kill()
    world.wait_presence("d", "unknown")
    assert "one job was there" in world.screen("node", "forget", "d", "--is-off")
    assert world.wait_state(job, "queued")["reason"]
    world.screen("cancel", job)
