"""The audit's file: what is found again, and what is forgotten when it is too much."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from gpushared.domain.model.errors import AuditUnavailable
from gpushared.storage.audit.audit_file import (
    PRUNE_EVERY,
    PRUNE_STEP,
    VERSION,
    AuditFile,
    Keep,
    Search,
    SqliteAudit,
)
from gpushared.storage.audit.line import NOBODY_HERE, AuditLine, Origin

FILES = Path(__file__).parent / "files"
ID = "0123456789ab" * 5 + "0123"
NOW = 1_700_000_000.0
MUCH = Keep(days=90, rows=100_000)
LINE = AuditLine(
    NOW, 1000, "alice", Origin(4711, "/usr/bin/docker"), "POST", "/containers/x/start", ID, "x", "ab", 204
)
REFUSAL = replace(LINE, container="", status=403, code="permission_denied", text="not for you", more=3)


def store(folder: Path, *lines: AuditLine) -> AuditFile:
    made = AuditFile(folder / "audit.db", busy_seconds=1.0)
    made.write(list(enumerate(lines, 1)), MUCH, NOW)
    return made


def found(made: AuditFile, **wanted: object) -> list[int]:
    return [number for number, _ in made.search(Search(**wanted))]  # type: ignore[arg-type]  # data of the cases


def test_a_line_is_read_as_it_was_written(tmp_path: Path) -> None:
    made = store(tmp_path, LINE, REFUSAL)
    assert made.search(Search()) == ((1, LINE), (2, REFUSAL))
    assert made.newest() == 2
    made.close()


def test_a_look_at_what_is_anothers_is_not_found_by_whoever_is_told_only_what_they_were_told(
    tmp_path: Path,
) -> None:
    """A look at what is not there makes no line. A change does, be it there or not."""
    look = replace(REFUSAL, method="GET", status=404, code="not_found", text="No such container: x")
    made = store(tmp_path, look, replace(look, method="HEAD"), replace(look, method="POST"), REFUSAL)
    assert found(made, hides_missing=True) == [3, 4]
    assert found(made) == [1, 2, 3, 4]
    made.close()


@pytest.mark.parametrize(
    ("wanted", "numbers"),
    [
        ({}, [1, 2, 3, 4]),
        ({"limit": 2}, [3, 4]),
        ({"limit": 2, "after": 0}, [1, 2]),
        ({"after": 4}, []),
        ({"before": 3, "limit": 1}, [2]),
        ({"uid": 1001}, [3]),
        ({"user": "alice"}, [1, 2, 4]),
        ({"user": "1001"}, [3]),
        ({"user": "10010000000000000000000"}, []),
        ({"user": "' OR 1 --"}, []),
        ({"since": NOW + 1}, [4]),
        ({"refused": True}, [2]),
        ({"container": "web"}, [3, 4]),
        ({"container": ID[:12]}, [1]),
        ({"container": "%"}, []),
        ({"container": "x"}, [1, 2]),
    ],
)
def test_what_is_asked_for_is_found(tmp_path: Path, wanted: dict[str, object], numbers: list[int]) -> None:
    """By its name also what was asked of a container by its id."""
    made = store(
        tmp_path,
        LINE,
        REFUSAL,
        replace(LINE, uid=1001, user="bob", name="web", container="f" * 64),
        replace(LINE, at=NOW + 2, name="f" * 12, container="f" * 64),
    )
    assert found(made, **wanted) == numbers
    made.close()


def test_writing_the_same_numbers_again_changes_nothing(tmp_path: Path) -> None:
    made = store(tmp_path, LINE)
    made.write([(1, LINE), (2, REFUSAL)], MUCH, NOW)
    assert made.search(Search()) == ((1, LINE), (2, REFUSAL))
    made.close()


def test_old_lines_are_forgotten(tmp_path: Path) -> None:
    made = store(tmp_path, replace(LINE, at=NOW - 3 * 86400), replace(LINE, at=NOW - 86400))
    made.prune(Keep(days=2, rows=1000), NOW)
    assert found(made) == [2]
    made.close()


def test_of_too_many_lines_the_oldest_of_whoever_has_the_most_go(tmp_path: Path) -> None:
    """Nobody can push out what another did before."""
    flood = [replace(LINE, uid=1001, user="bob")] * (PRUNE_STEP // 2)
    made = store(tmp_path, LINE, *flood, LINE)
    made.prune(Keep(days=9, rows=100), NOW)
    assert len(found(made, limit=1000)) == 100
    assert found(made, uid=1000) == [1, PRUNE_STEP // 2 + 2]
    assert found(made, uid=1001, limit=1) == [PRUNE_STEP // 2 + 1]
    made.close()


def test_of_those_without_a_uid_here_whoever_has_the_most_loses_lines_too(tmp_path: Path) -> None:
    ada, eve = (replace(LINE, uid=NOBODY_HERE, user=user) for user in ("ada@ws1", "eve@ws2"))
    made = store(tmp_path, ada, *[eve] * (PRUNE_STEP // 2), LINE)
    made.prune(Keep(days=9, rows=100), NOW)
    assert len(found(made, limit=1000)) == 100
    assert found(made, user="ada@ws1") == [1]
    assert found(made, uid=1000) == [PRUNE_STEP // 2 + 2]
    assert found(made, user="nobody") == []
    made.close()


def test_writing_prunes_by_itself(tmp_path: Path) -> None:
    made = store(tmp_path)
    made.write([(number, LINE) for number in range(1, PRUNE_EVERY + 1)], Keep(days=9, rows=10), NOW)
    assert len(found(made, limit=1000)) == 10
    made.close()


@pytest.mark.parametrize("version", range(1, VERSION + 1))
async def test_a_file_of_each_released_version_can_be_read(tmp_path: Path, version: int) -> None:
    copy = tmp_path / "audit.db"
    copy.write_bytes((FILES / f"v{version}.db").read_bytes())
    audit = SqliteAudit(copy)
    assert await audit.search(Search()) == ((1, LINE), (2, REFUSAL))
    await audit.close()
    with pytest.raises(AuditUnavailable):
        await audit.newest()
