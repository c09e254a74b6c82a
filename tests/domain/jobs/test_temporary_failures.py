"""An attempt that could not begin for something that passes, such as a registry that does not answer."""

from __future__ import annotations

from typing import Any

import pytest

from gpushared.domain.jobs.job import (
    AttemptState,
    Ending,
    EndKind,
    Placing,
    Queued,
    Running,
)
from tests.domain.jobs.pool_world import RULES, J, Pool, exited

S = AttemptState
WORDS = "image 'x:1' is missing and cannot be pulled: dial tcp 10.0.0.1:{port}: i/o timeout"


def no_image(port: int = 443, *, passing: bool = True) -> Ending:
    return Ending(EndKind.FAILED, WORDS.format(port=port), hint="docker load", passing=passing)


def wait(pool: Pool, seconds: float) -> None:
    """Nodes go on to be heard."""
    pool.now += seconds
    for node in list(pool.state.members):
        pool.heartbeat(node)
    pool.wait()


def test_it_is_tried_again_each_time_later_and_that_is_no_retry_of_its_own() -> None:
    pool = Pool("a")
    pool.submit(retries=0)
    waits = []
    for _ in range(4):
        pool.says("a", S.ENDED, ending=no_image())
        waiting = pool.is_now(Queued)
        waits.append(waiting.not_before - pool.now)
        wait(pool, waits[-1])
    assert waits == [5.0, 10.0, 20.0, 40.0]
    assert pool.state.find(J).failures == 0
    assert pool.told()[-2].startswith("tried again in 40s (4 of 12): node a: image 'x:1' is missing")


def test_when_it_has_begun_once_its_troubles_are_forgotten() -> None:
    pool = Pool("a")
    pool.submit(retries=1)
    pool.says("a", S.ENDED, ending=no_image())
    pool.wait(5.0)
    pool.says("a", S.RUNNING)
    pool.is_now(Running)
    pool.says("a", S.ENDED, ending=exited(1))
    job = pool.state.find(J)
    assert (job.troubles, job.failures) == (0, 1)


def test_what_does_not_pass_fails_it_in_the_end_with_where_and_what_helps() -> None:
    pool = Pool("a")
    pool.submit()
    for _ in range(RULES.troubles_borne):
        pool.says("a", S.ENDED, ending=no_image())
        wait(pool, RULES.trouble_most_seconds)
    pool.says("a", S.ENDED, ending=no_image())
    outcome = pool.ended()
    assert str(getattr(outcome, "reason", "")).startswith("node a: image 'x:1' is missing")
    assert getattr(outcome, "hint", "") == "docker load"


@pytest.mark.parametrize(("passing", "spec"), [(False, {}), (True, {"immediate": True})])
def test_at_once_it_fails_where(passing: bool, spec: dict[str, Any]) -> None:
    """There is no such image at all, or nobody wants to wait for it."""
    pool = Pool("a")
    pool.submit(**spec)
    pool.says("a", S.ENDED, ending=no_image(passing=passing))
    assert "image 'x:1' is missing" in str(pool.ended())


def test_another_node_is_tried_when_one_is_in_trouble_again_and_again() -> None:
    pool = Pool("a", "b")
    pool.submit()
    tried = []
    for _ in range(RULES.refusals_before_rest + 1):
        tried += pool.where()
        pool.says(pool.where()[0], S.ENDED, ending=no_image())
        wait(pool, pool.is_now(Queued).not_before - pool.now)
    assert set(tried) == {"a", "b"}


def gang() -> Pool:
    pool = Pool("a", "b", "c")
    pool.submit(nodes=3)
    return pool


def test_of_a_gang_all_parts_are_tried_again() -> None:
    pool = gang()
    pool.says("b", S.ENDED, ending=no_image())
    for node in ("a", "c"):
        pool.says(node, S.ENDED, ending=Ending(EndKind.CANCELLED))
    waiting = pool.is_now(Queued)
    assert waiting.not_before == pool.now + 5.0
    pool.wait(5.0)
    pool.is_now(Placing)


def test_of_a_gang_that_cannot_have_its_image_all_nodes_that_said_so_are_named() -> None:
    """What is quoted of the network differs; what is missing does not."""
    pool = gang()
    pool.says("b", S.ENDED, ending=no_image(1, passing=False))
    pool.says("c", S.ENDED, ending=no_image(2, passing=False))
    pool.says("a", S.ENDED, ending=Ending(EndKind.CANCELLED))
    outcome = pool.ended()
    assert str(getattr(outcome, "reason", "")).startswith("nodes b, c: image 'x:1' is missing")
    assert getattr(outcome, "hint", "") == "docker load"
