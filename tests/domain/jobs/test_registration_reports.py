"""What a node says of its attempts when it meets its coordinator, and how much that is at most."""

from __future__ import annotations

from dataclasses import replace

from gpushared.domain.jobs.attempt_log import SPEC_BYTES, Attempt, reports, restored
from gpushared.domain.jobs.job import (
    AttemptState,
    Ending,
    EndKind,
    JobSpec,
)
from gpushared.domain.model.lease import AttemptKey, JobId
from gpushared.pool.link.codec import report_bytes
from tests.domain.jobs.pool_world import ADA, HALF

MONTH_OF_JOBS = 3_000
BODY = "x" * 4_000


def record(number: int, state: AttemptState = AttemptState.ENDED) -> Attempt:
    ending = Ending(EndKind.EXITED, exit_code=0) if state.is_final else None
    key = AttemptKey(JobId(f"job{number:05}"), 1)
    spec = JobSpec(HALF, ADA, "busybox", BODY)
    return Attempt(key, state, number, float(number), spec, HALF, ending=ending, started_at=1.0)


def test_all_are_told_of_but_only_what_is_under_way_and_the_newest_that_is_over_with_its_spec() -> None:
    running = record(0, AttemptState.RUNNING)
    over = [record(number) for number in range(1, MONTH_OF_JOBS)]
    sent = reports(restored([running, *over]))
    assert [report.revision for report in sent] == list(range(MONTH_OF_JOBS))
    with_spec = [report.revision for report in sent if report.spec is not None]
    assert with_spec[0] == 0
    assert with_spec[1:] == list(range(MONTH_OF_JOBS - len(with_spec) + 1, MONTH_OF_JOBS))
    assert 10 < len(with_spec) < SPEC_BYTES / len(BODY)


def test_a_busy_month_is_a_registration_of_a_megabyte_or_so() -> None:
    log = restored([record(number) for number in range(MONTH_OF_JOBS)])
    assert sum(len(report_bytes(report)) for report in reports(log)) < 2 * SPEC_BYTES + 350 * MONTH_OF_JOBS


def test_however_much_is_under_way_it_comes_with_its_spec() -> None:
    log = restored([record(number, AttemptState.RUNNING) for number in range(MONTH_OF_JOBS)])
    assert all(report.spec is not None for report in reports(log))


def test_a_gang_s_part_that_is_over_says_what_it_was() -> None:
    """Else a coordinator that knows the job, but not this attempt, would wait for a part that is over."""
    gang = replace(record(1), gang=True)
    (sent,) = reports(restored([gang]), spec_bytes=0)
    assert (sent.spec, sent.request) == (None, HALF)
