"""Cables that are cut, slow, or say things twice."""

from __future__ import annotations

from tests.pool.failures.world import World


def test_a_job_runs_somewhere_in_the_pool_once(world: World) -> None:
    """The ground on which the others stand."""
    jobs = [world.submit(), world.submit(), world.submit("--model", "t4", through="b")]
    runs = world.wait_running(*jobs)
    assert runs[2].node == "c"
    assert all(len(world.diary.runs(job)) == 1 for job in jobs)
