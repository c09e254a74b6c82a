"""What becomes of jobs when the coordinator dies, loses its memory, or is there twice."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from gpushared.domain.model.errors import NotFound, Unavailable
from tests.pool.failures.daemons import Coordinator
from tests.pool.failures.machine import wait_until
from tests.pool.failures.world import World

DYING = Path(__file__).with_name("dying_pool.py")
RECOVER_SECONDS = 125


def test_jobs_run_on_and_enter_while_the_coordinator_is_dead(world: World) -> None:
    """They are kept on the nodes where they came in, and placed when it is back."""
    runs, ends = world.submit(), world.submit("--node", "b")
    world.wait_running(runs, ends)
    world.coordinator.kill()
    late = world.submit(through="c")
    world.diary.end(ends)
    screen = world.screen("jobs", on="a")
    assert runs in screen
    assert "does not answer" in screen
    assert world.is_alive(runs)
    assert "does not answer" in world.nodes["a"].gpushare("nodes", check=False, retry_seconds=0)
    world.coordinator.start()
    world.wait_state(ends, "succeeded")
    world.wait_running(runs, late)
    assert len(world.diary.runs(runs)) == 1


def test_nothing_is_lost_or_runs_twice_whichever_write_kills_the_coordinator(world: World) -> None:
    """Before and after each kind of write of a job's life, of retries, gangs, cancellations and tokens."""
    world.coordinator.stop()
    notes = world.coordinator.machine.directory / "deaths"
    world.coordinator.launch(sys.executable, str(DYING), str(notes))
    _live_through(world)
    deaths = notes.read_text().splitlines()
    assert len(deaths) > 20, deaths
    world.coordinator.restart()
    world.wait_ready()


def _live_through(world: World) -> None:
    first = world.submit("--retries", "1")
    world.wait_running(first)
    gang = world.submit("--nodes", "2", gpu="0.5", through="b")
    cancelled, after = world.submit(through="b"), world.submit("--after-ok", first, through="c")
    world.wait_running(gang, cancelled)
    world.screen("cancel", cancelled, on="b")
    world.wait_state(cancelled, "cancelled")
    world.diary.end(first)
    world.wait_running(after)
    world.diary.end(gang, after)
    for job in (first, gang, after):
        world.wait_state(job, "succeeded")


def _restored(world: World, copy: Path | None) -> None:
    """The coordinator begins with an old copy of its store, or with none."""
    world.coordinator.kill()
    for path in world.coordinator.state_dir.glob("pool.db*"):
        path.unlink()
    if copy is not None:
        shutil.copy(copy, world.coordinator.store)
    world.coordinator.start()


@pytest.mark.parametrize("loss", ["deleted", "old copy"])
def test_after_the_loss_of_its_memory_the_coordinator_places_nothing_old_before_all_have_told(
    world: World, loss: str
) -> None:
    """Then all is as it was: what runs is taken over, what is over stays over, what waits is placed once."""
    over, copy = world.submit(), None
    world.wait_running(over)
    if loss == "old copy":
        world.coordinator.stop()
        copy = world.coordinator.machine.directory / "copy.db"
        shutil.copy(world.coordinator.store, copy)
        world.coordinator.start()
        world.wait_ready()
    runs = world.submit("--node", "c")
    world.wait_running(runs)
    world.diary.end(over)
    world.wait_state(over, "succeeded")
    waits = world.submit("--model", "t4", gpu="2")
    world.wait_state(waits, "queued")
    world.cut("c")
    _restored(world, copy)
    world.wait_ready(["a", "b"])
    status = world.coordinator.status()
    assert (status["phase"], status["awaited_nodes"]) == ("recovering", ["c"])
    assert "c" in world.coordinator.admin("pool", "status")
    with pytest.raises(Unavailable, match="not heard of yet: c"):
        world.job("k3m9x0p2qa")
    world.wait_state(waits, "queued")
    assert world.is_alive(runs)
    world.coordinator.machine.sleep(RECOVER_SECONDS)
    old = world.submit(through="b")
    world.wait_running(old)
    assert world.coordinator.status()["phase"] == "recovering"
    assert len(world.diary.runs(over)) == 1
    world.heal()
    world.wait_ready()
    wait_until(lambda: world.coordinator.status()["phase"] == "normal", "all have told")
    with pytest.raises(NotFound):
        world.job("k3m9x0p2qa")
    world.wait_running(runs)
    assert world.wait_state(over, "succeeded")
    world.diary.end(runs)
    world.wait_running(waits)
    assert (len(world.diary.runs(runs)), len(world.diary.runs(waits))) == (1, 1)


def test_a_recovery_need_not_wait_for_a_node_that_somebody_answers_for(world: World) -> None:
    """What ran there is kept all the same, and taken over when it comes back."""
    runs = world.submit("--node", "c")
    world.wait_running(runs)
    waits = [world.submit() for _ in range(6)]
    world.cut("c")
    _restored(world, None)
    world.wait_ready(["a", "b"])
    world.coordinator.machine.sleep(RECOVER_SECONDS)
    assert world.coordinator.status()["phase"] == "recovering"
    world.screen("node", "forget", "c", "--only-waive")
    wait_until(lambda: world.coordinator.status()["phase"] == "normal", "nobody is waited for")
    assert world.is_alive(runs)
    assert len(world.diary.runs(runs)) == 1
    world.heal()
    world.wait_ready()
    world.coordinator.machine.sleep(
        RECOVER_SECONDS
    )  # it knew of a memory that was lost, so all are asked again
    world.wait_running(runs)
    world.diary.end(*waits)
    for job in waits:
        world.wait_state(job, "succeeded")


def _second(world: World) -> Coordinator:
    machine = world.machine("second", 2)
    machine.environment = {"GPUSHARE_POOL_SOCKET": str(machine.runtime / "gpushared-pool.sock")}
    machine.boot()
    return Coordinator(machine, tuple(world.nodes))


def test_a_node_believes_no_coordinator_that_was_made_anew_under_the_name_of_its_own(world: World) -> None:
    """It says whom it met, goes on by itself, and is back where it was as soon as it is led there."""
    job = world.submit("--node", "b")
    world.wait_running(job)
    second = _second(world)
    try:
        second.start()
        node = world.nodes["b"]
        node.coordinator = f"{second.address}:7441"
        node.restart()
        wait_until(
            lambda: "is not the coordinator of this node's pool" in node.gpushare("doctor", check=False),
            "b says whom it met",
        )
        assert second.address in node.gpushare("doctor", check=False)
        assert second.nodes() == {}
        assert world.is_alive(job)
        world.wait_presence("b", "unknown")
        node.coordinator = ""
        node.restart()
        world.wait_ready()
    finally:
        second.machine.cut_power()
    assert len(world.diary.runs(job)) == 1


def test_a_node_that_was_led_to_a_copy_of_its_coordinator_and_back_has_its_jobs_once(world: World) -> None:
    """The copy takes over what runs there; the right one sees that others led meanwhile, and asks all."""
    job = world.submit("--node", "b")
    world.wait_running(job)
    second = _second(world)
    try:
        world.coordinator.stop()
        shutil.copytree(world.coordinator.state_dir, second.state_dir)
        world.coordinator.start()
        second.start()
        node = world.nodes["b"]
        node.coordinator = f"{second.address}:7441"
        node.restart()
        wait_until(lambda: second.nodes()["b"]["presence"] == "ready", "b is with the copy")
        assert second.jobs()[job]["state"] == "running"
        late = world.submit()
        world.wait_running(late)
        node.coordinator = ""
        node.restart()
        world.wait_ready()
        wait_until(lambda: second.nodes()["b"]["presence"] == "unknown", "the copy has lost it")
    finally:
        second.machine.cut_power()
    world.coordinator.machine.sleep(RECOVER_SECONDS)
    wait_until(lambda: world.coordinator.status()["phase"] == "normal", "all have told")
    world.wait_running(job, late)
    assert (len(world.diary.runs(job)), len(world.diary.runs(late))) == (1, 1)
