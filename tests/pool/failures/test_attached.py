"""`gpushare run --pool`, attached, while parts of the pool die under it."""

from __future__ import annotations

import pytest

from tests.bed import parts
from tests.node.attached import COUNT, AttachedCommand
from tests.pool.failures.machine import wait_until
from tests.pool.failures.world import World

BOTH = pytest.mark.parametrize("terminal", [True, False], ids=["terminal", "pipe"])
SILENT_SECONDS = 600.0
UPTO = 150


def run(world: World, *command: str, terminal: bool) -> AttachedCommand:
    """From machine a, on machine b."""
    host = f"GPUSHARE_HOST=unix://{world.nodes['a'].socket}"
    chosen = ["--pool", "--node", "b", "--gpu", "0.5", "--rm", *(["-it"] if terminal else [])]
    words = ["env", host, "gpushare", "run", *chosen, "--network", "none", parts.BUSYBOX_IMAGE, *command]
    return world.nodes["a"].machine.typed(*words, terminal=terminal)


def count(world: World, *, terminal: bool) -> AttachedCommand:
    return run(world, "sh", "-c", COUNT.format(upto=UPTO), terminal=terminal)


@BOTH
def test_a_run_does_not_notice_that_the_coordinator_died(world: World, terminal: bool) -> None:
    """Each line comes once, and in order; nothing else stands among them."""
    with count(world, terminal=terminal) as attached:
        for number in (5, 40):
            attached.until(b"n%d" % number)
            world.coordinator.kill()
            world.coordinator.start()
        assert attached.code() == 7
    output = attached.seen.replace(b"\r", b"")
    assert output[output.index(b"n1\n") :] == b"".join(b"n%d\n" % number for number in range(1, UPTO + 1))


def test_the_code_of_a_program_that_ended_while_the_coordinator_was_away_is_the_commands(
    world: World,
) -> None:
    with run(world, "sh", "-c", "echo up; sleep 3; echo last; exit 9", terminal=False) as attached:
        attached.until(b"up\n")
        world.coordinator.kill()
        wait_until(lambda: not world.nodes["b"].engine.check("ps", "-q"), "the container ends")
        world.coordinator.start()
        assert attached.code() == 9
    assert attached.seen.endswith(b"up\nlast\n")


def test_typing_reaches_the_program_though_the_coordinator_was_away(world: World) -> None:
    with run(world, "sh", terminal=True) as attached:
        attached.type(b"echo ready $((40 + 2))\n")
        attached.until(b"ready 42")
        world.coordinator.kill()
        attached.type(b"echo meanwhile $((40 + 3))\n")
        world.coordinator.start()
        attached.until(b"meanwhile 43")
        attached.type(b"exit 5\n")
        assert attached.code() == 5


@BOTH
@pytest.mark.parametrize("node", ["a", "b"], ids=["here", "there"])
def test_a_run_goes_on_after_a_nodes_daemon_died(world: World, node: str, terminal: bool) -> None:
    """Some lines may be lost, which is said; none comes twice, and the code is the program's."""
    with count(world, terminal=terminal) as attached:
        attached.until(b"n5")
        world.nodes[node].kill()
        world.nodes[node].start()
        attached.until(b"what it wrote meanwhile may be missing here: gpushare logs ")
        assert attached.code() == 7
    numbers = attached.numbers()
    assert numbers == sorted(set(numbers))
    assert numbers[-1] == UPTO
    assert b"HTTP/" not in attached.seen


@pytest.mark.slow
def test_a_silent_terminal_outlives_ten_minutes(world: World) -> None:
    command = f"echo up; sleep {SILENT_SECONDS:.0f}; echo still here; exit 7"
    with run(world, "sh", "-c", command, terminal=True) as attached:
        attached.until(b"up\r\n")
        assert attached.code(SILENT_SECONDS + 60) == 7
    assert attached.seen.endswith(b"up\r\nstill here\r\n")
