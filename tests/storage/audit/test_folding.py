"""Floods: what stands for itself, and what is counted and told together."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpushared.storage.audit.audit_log import ALL, DONE, MAX_FOLDS, REFUSED, WINDOW_SECONDS, Folding
from gpushared.storage.audit.line import NOBODY_HERE, AuditLine, Origin

DID = AuditLine(0.0, 1000, "alice", Origin(), "POST", "/containers/x/start", status=204)
NO = replace(DID, code="permission_denied", status=403)


@pytest.mark.parametrize(("line", "burst"), [(DID, DONE.burst), (NO, REFUSED.burst)])
def test_a_flood_is_told_as_one_line_with_the_number_of_the_rest(line: AuditLine, burst: float) -> None:
    folding = Folding(0.0)
    lines = [replace(line, name=str(number)) for number in range(1000)]
    passed = [one for one in lines if folding.passes(one, 0.0)]
    assert passed == lines[: int(burst)]
    assert list(folding.due(WINDOW_SECONDS - 1)) == []
    (due,) = folding.due(WINDOW_SECONDS)
    assert due == replace(lines[-1], more=1000 - int(burst) - 1)
    assert list(folding.due(9 * WINDOW_SECONDS)) == []


def test_refusals_do_not_use_up_what_changes_may_take() -> None:
    folding = Folding(0.0)
    while folding.passes(NO, 0.0):
        pass
    assert folding.passes(DID, 0.0)


def test_the_flood_of_one_user_folds_nothing_of_another() -> None:
    folding = Folding(0.0)
    while folding.passes(NO, 0.0):
        pass
    assert folding.passes(replace(NO, uid=1001), 0.0)


def test_people_without_a_uid_here_are_told_apart_by_their_names() -> None:
    folding, ada = Folding(0.0), replace(NO, uid=NOBODY_HERE, user="ada@ws1")
    while folding.passes(ada, 0.0):
        pass
    eve = replace(ada, user="eve@ws2")
    assert folding.passes(eve, 0.0)
    while folding.passes(eve, 0.0):
        pass
    assert {line.user for line in folding.due(WINDOW_SECONDS)} == {"ada@ws1", "eve@ws2"}


def test_lines_stand_for_themselves_again_after_a_while() -> None:
    folding = Folding(0.0)
    while folding.passes(NO, 0.0):
        pass
    assert [folding.passes(NO, 1.0 / REFUSED.per_second), folding.passes(NO, 1.0)] == [True, False]


def test_what_is_unlike_is_told_apart() -> None:
    folding = Folding(0.0)
    while folding.passes(NO, 0.0):
        pass
    for method in ("GET", "PUT", "made-up-1", "made-up-2"):
        assert not folding.passes(replace(NO, method=method), 0.0)
    lines = sorted((line.method, line.more) for line in folding.due(WINDOW_SECONDS))
    assert lines == [("GET", 0), ("POST", 0), ("PUT", 0), ("made-up-2", 1)]


def test_a_flood_of_many_uids_is_bounded_too_and_what_is_lost_is_counted() -> None:
    """A user with a range of uids of his own may come as each of them."""
    folding = Folding(0.0)
    lines = [replace(DID, uid=100_000 + number) for number in range(20_000)]
    assert sum(folding.passes(line, 0.0) for line in lines) == ALL.burst
    rest = list(folding.due(0.0, all_of_them=True))
    assert len(rest) == MAX_FOLDS
    assert ALL.burst + len(rest) + folding.lost == len(lines)
