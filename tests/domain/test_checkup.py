"""Checks that depend on each other: one cause gives one line."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from gpushared.domain.model.checkup import (
    Check,
    CheckFinding,
    CheckOutcome,
    Status,
    examine,
    failed,
    ok,
    skipped,
    warning,
)

FINE = ok("fine")


def finds(finding: CheckFinding) -> Callable[[None], CheckFinding]:
    return lambda _: finding


def run(**findings: CheckFinding) -> dict[str, CheckOutcome]:
    """A chain: each check comes after the one before it."""
    names = list(findings)
    checks = [
        Check[None](name, finds(findings[name]), tuple(names[max(0, place - 1) : place]))
        for place, name in enumerate(names)
    ]
    return {result.name: result for result in examine(checks, None)}


@pytest.mark.parametrize("cause", [failed("broken"), skipped("not here"), warning("all said", final=True)])
def test_what_comes_after_a_cause_is_not_made_and_names_the_cause_at_the_end_of_the_chain(
    cause: CheckFinding,
) -> None:
    results = run(first=cause, second=failed("follows"), third=failed("follows too"))
    assert results["first"] == CheckOutcome("first", cause)
    for name in ("second", "third"):
        assert results[name].blocked_by == "first"
        assert results[name].finding.status is Status.SKIPPED


@pytest.mark.parametrize("before", [FINE, warning("not nice")])
def test_a_warning_does_not_keep_others_from_being_made(before: CheckFinding) -> None:
    assert run(first=before, second=FINE)["second"] == CheckOutcome("second", FINE)


def test_a_check_may_say_itself_that_another_said_it_already() -> None:
    finding = skipped("nothing new", because="elsewhere")
    assert run(first=finding)["first"].blocked_by == "elsewhere"


def test_a_check_that_must_not_be_made_is_not_called() -> None:
    def never(_: None) -> CheckFinding:
        raise AssertionError("it was made")

    checks = [Check[None]("cause", lambda _: failed("broken")), Check[None]("effect", never, ("cause",))]
    assert examine(checks, None)[1].blocked_by == "cause"
