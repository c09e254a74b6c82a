"""Which containers of jobs that are over go, and which stay for their logs."""

from __future__ import annotations

from gpushared.domain.jobs.attempt_log import Attempt
from gpushared.domain.jobs.job import AttemptState, JobSpec, Owner
from gpushared.domain.model.lease import AttemptKey, JobId
from gpushared.domain.model.request import Caller, Request
from gpushared.node.jobs.job_containers import Keeping, due_of

KEEPING = Keeping(seconds=100.0, most=2)


def over(name: str, at: float, uid: int, *, remove: bool = False) -> Attempt:
    spec = JobSpec(Request(), Owner("x@lab", "x"), image="x", remove=remove)
    account = Caller(uid, uid, f"user{uid}")
    return Attempt(AttemptKey(JobId(name), 1), AttemptState.ENDED, 1, at, spec, account=account)


def due(*attempts: Attempt, now: float = 50.0) -> list[str]:
    return [one.key.job for one in due_of(attempts, KEEPING, now)]


def test_nobody_pushes_out_what_others_want_to_read() -> None:
    """Of the one who has too many the oldest go."""
    quiet = [over("a", 1.0, 1000), over("b", 2.0, 1000)]
    busy = [over(f"c{n}", 10.0 + n, 1001) for n in range(5)]
    assert due(*quiet, *busy) == ["c0", "c1", "c2"]


def test_each_goes_when_its_time_is_over_or_nobody_wanted_it_kept_and_makes_room_for_no_other() -> None:
    attempts = [over("old", 1.0, 1000), over("x", 60.0, 1000, remove=True), over("y", 61.0, 1000)]
    assert due(*attempts, over("z", 62.0, 1000), now=102.0) == ["old", "x"]
