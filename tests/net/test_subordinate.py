"""Ids of user namespaces: whose they are, by a file that is read when it changes."""

from __future__ import annotations

import asyncio
import os
import pwd
from pathlib import Path

import pytest

from gpushared.domain.model.errors import PermissionRefused
from gpushared.net import identity
from gpushared.net.identity import Identities, Peer, SubordinateIds

FIRST = 3_000_000_000
SYSTEM_USER = pwd.getpwuid(1).pw_name


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "subuid"


def ranges(file: Path, *lines: str) -> SubordinateIds:
    file.write_text("\n".join(lines) + "\n")
    return SubordinateIds(file)


def owner_of(ids: SubordinateIds, uid: int) -> str | None:
    found = ids.range_of(uid)
    return None if found is None else found.owner_text


def test_an_id_in_a_range_is_its_owners_and_those_around_it_are_nobodys(file: Path) -> None:
    ids = ranges(file, "ada:1000:10", "1003:2000:5")
    assert [owner_of(ids, uid) for uid in (999, 1000, 1009, 1010)] == [None, "ada", "ada", None]
    assert [owner_of(ids, uid) for uid in (2000, 2004, 2005)] == ["uid 1003", "uid 1003", None]


def test_where_ranges_overlap_each_id_has_an_owner(file: Path) -> None:
    ids = ranges(file, "eve:1005:10", "ada:1000:10", "bob:1001:3")
    assert [owner_of(ids, uid) for uid in (1000, 1002, 1009, 1010, 1014, 1015)] == [
        *("ada", "ada", "ada", "eve", "eve", None)
    ]


def test_a_user_whose_own_id_is_in_his_range_is_himself(file: Path) -> None:
    assert owner_of(ranges(file, "1003:1003:2"), 1003) is None


@pytest.mark.parametrize(
    "line", ["", "# ada:1000:10", "ada", "ada:1000", "ada:x:10", "ada:1000:-1", "ada:1000:0", ":1000:10"]
)
def test_a_line_that_is_none_gives_nobody_an_id_and_hides_no_other(file: Path, line: str) -> None:
    ids = ranges(file, line, "bob:5000:10")
    assert (owner_of(ids, 1000), owner_of(ids, 5000)) == (None, "bob")


def test_the_last_id_that_there_is_may_be_in_a_range(file: Path) -> None:
    assert owner_of(ranges(file, "ada:4294967295:65536"), 4_294_967_295) == "ada"


def test_what_is_written_later_holds_from_the_next_look_on(file: Path) -> None:
    ids = SubordinateIds(file)
    assert owner_of(ids, 1000) is None
    file.write_text("ada:1000:10\n")
    ids.read_if_changed()
    assert owner_of(ids, 1000) == "ada"
    file.unlink()
    ids.read_if_changed()
    assert owner_of(ids, 1000) is None


def test_a_file_is_not_read_again_while_it_is_the_same(file: Path) -> None:
    ids = ranges(file, "ada:1000:10")
    seen = file.stat()
    file.write_text("eve:1000:10\n")
    os.utime(file, ns=(seen.st_atime_ns, seen.st_mtime_ns))
    ids.read_if_changed()
    assert owner_of(ids, 1000) == "ada"


def test_a_file_that_cannot_be_read_leaves_all_as_it_was(file: Path) -> None:
    ids = ranges(file, "ada:1000:10")
    file.unlink()
    file.mkdir()
    ids.read_if_changed()
    assert owner_of(ids, 1000) == "ada"


def test_of_an_endless_file_the_whole_lines_of_its_beginning_are_read(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(identity, "MAX_FILE_BYTES", 20)
    ids = ranges(file, "ada:1000:10", "eve:5000:10")
    assert (owner_of(ids, 1000), owner_of(ids, 5000)) == ("ada", None)


async def test_the_file_is_looked_at_again_and_again(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(identity, "LOOK_SECONDS", 0.001)
    ids = SubordinateIds(file)
    looking = asyncio.create_task(ids.keep())
    file.write_text("ada:1000:10\n")
    async with asyncio.timeout(30):
        while owner_of(ids, 1000) is None:  # noqa: ASYNC110 - nothing announces it
            await asyncio.sleep(0.001)
    looking.cancel()


async def test_who_calls_by_a_subordinate_id_is_told_whose_it_is(file: Path) -> None:
    identities = Identities((), ranges(file, f"ada:{FIRST}:65536"))
    for _ in range(2):  # also where the name is remembered
        with pytest.raises(PermissionRefused, match=f"uid {FIRST + 7} is a subordinate id of ada") as refused:
            await identities.caller(Peer(1, FIRST + 7, FIRST))
        assert "connect as ada" in refused.value.hint


async def test_an_id_in_a_range_that_is_an_accounts_is_that_account(file: Path) -> None:
    identities = Identities((), ranges(file, "ada:1:65536"))
    assert (await identities.caller(Peer(1, 1, 1))).name == SYSTEM_USER


async def test_all_ids_of_a_range_count_as_one_user(file: Path) -> None:
    identities = Identities((), ranges(file, f"ada:{FIRST}:65536"))
    assert {identities.counted_as(uid) for uid in range(FIRST, FIRST + 65536, 4096)} == {FIRST}
    assert identities.counted_as(1000) == 1000


async def test_an_account_in_a_range_has_bounds_of_its_own(file: Path) -> None:
    identities = Identities((), ranges(file, "ada:0:65536"))
    await identities.caller(Peer(1, 1, 1))
    assert (identities.counted_as(1), identities.counted_as(60_000)) == (1, 0)
