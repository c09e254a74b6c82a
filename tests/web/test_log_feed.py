"""A log on a page: the last lines, what follows, and what happens when it ends, fails or floods."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator

import pytest
import pytest_asyncio

from gpushared.api.v1 import jobs_pb2
from gpushared.domain.model.errors import StateConflict
from gpushared.domain.model.request import Caller
from gpushared.web import log_feed
from gpushared.web.watches import LogWatch
from tests.web.pages import ANNA, Site

LOG = {"log": ["logs", {"job_id": "j-1"}]}


class Logs:
    """Logs that tests write: each opening takes the next list of pieces, and stays open where it ends in None."""

    def __init__(self) -> None:
        self.openings: list[list[bytes | None]] = []
        self.opened: list[tuple[Caller, int]] = []
        self.open_now = 0
        self.more: asyncio.Queue[bytes] = asyncio.Queue()

    async def follow(
        self, watch: LogWatch, caller: Caller, tail: int
    ) -> AsyncGenerator[jobs_pb2.LogChunk, None]:
        assert watch.job_id == "j-1"
        self.opened.append((caller, tail))
        if not self.openings:
            raise StateConflict("the job has no container here", hint="it has not begun yet")
        self.open_now += 1
        try:
            for piece in self.openings.pop(0):
                yield jobs_pb2.LogChunk(data=await self.more.get() if piece is None else piece)

        finally:
            self.open_now -= 1


@pytest_asyncio.fixture
async def logs(monkeypatch: pytest.MonkeyPatch) -> Logs:
    monkeypatch.setattr(log_feed, "PAGE_SECONDS", 0.02)
    monkeypatch.setattr(log_feed, "AGAIN_SECONDS", 0.02)
    monkeypatch.setattr(log_feed, "AGAIN_WITHOUT_CHANGE_SECONDS", 0.1)
    return Logs()


@pytest_asyncio.fixture
async def site(logs: Logs) -> AsyncIterator[Site]:
    async with Site(logs=logs.follow, job=jobs_pb2.Job(token="1")).serving() as serving:
        yield serving


async def test_a_page_gets_the_last_lines_and_then_what_follows(site: Site, logs: Logs) -> None:
    logs.openings = [[b"one\ntw", b"o\n", None, None]]
    page = await site.open(LOG)
    event = await page.event()
    assert event.kind == "log"
    assert event.data["lines"] == ["one", "two"]
    assert event.data["first"] is True
    assert logs.opened == [(ANNA, log_feed.FIRST_LINES)]
    logs.more.put_nowait(b"three\n 10%")
    event = await page.event()
    assert (event.data["lines"], event.data["begun"]) == (["three"], " 10%")
    assert "first" not in event.data


async def test_a_log_that_ends_says_so_and_begins_again_with_its_container(site: Site, logs: Logs) -> None:
    logs.openings = [[b"before\n"]]
    page = await site.open(LOG)
    ended = await page.until("log", end=True)
    assert ended.data["lines"] == ["before"]
    logs.openings = [[b"after\n", None]]
    site.job.token = "2"
    site.revisions.state_changed()
    again = await page.until("log", first=True)
    assert again.data["lines"] == ["after"]


async def test_a_log_that_has_ended_is_not_read_again_while_its_job_is_the_same(
    site: Site, logs: Logs
) -> None:
    logs.openings = [[b"all\n"], [b"all\n"]]
    page = await site.open(LOG)
    await page.until("log", end=True)
    for _ in range(5):
        site.revisions.state_changed()
        await asyncio.sleep(0.05)
    assert len(logs.opened) == 1


async def test_a_log_that_does_not_exist_yet_is_a_trouble_until_it_begins(site: Site, logs: Logs) -> None:
    page = await site.open(LOG)
    event = await page.event()
    assert (event.kind, event.data["code"]) == ("trouble", "failed_precondition")
    logs.openings = [[b"hello\n", None]]
    site.job.token = "2"
    site.revisions.state_changed()
    assert (await page.event()).data["lines"] == ["hello"]


async def test_a_flood_of_lines_is_cut_to_what_a_page_can_show(site: Site, logs: Logs) -> None:
    logs.openings = [[b"".join(b"%d\n" % number for number in range(2000)), None]]
    page = await site.open(LOG)
    lines = (await page.event()).data["lines"]
    assert lines[0] == "[1500 lines were left out]"
    assert lines[-1] == "1999"
    assert len(lines) == 501


async def test_a_log_that_is_written_faster_than_it_is_read_goes_on_with_its_newest_lines(
    site: Site, logs: Logs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_feed, "BYTES_A_SECOND", 1000)
    monkeypatch.setattr(log_feed, "MAX_BEHIND", 0)
    logs.openings = [[b"old\n", b"x" * 1001 + b"\n", b"never read\n"], [b"new\n", None]]
    page = await site.open(LOG)
    await page.until("log", first=True, lines=["new"])
    assert logs.open_now == 1


async def test_a_page_that_goes_away_closes_its_log(site: Site, logs: Logs) -> None:
    logs.openings = [[b"one\n", None]]
    page = await site.open(LOG)
    await page.event()
    assert logs.open_now == 1
    page.writer.close()
    async with asyncio.timeout(30):
        while logs.open_now:  # noqa: ASYNC110 - nothing tells of it
            await asyncio.sleep(0.05)


async def test_a_log_whose_lease_this_daemon_does_not_know_of_is_refused(site: Site) -> None:
    assert (await site.open({"log": ["logs", {"lease_id": "l-1"}]})).status == 400
