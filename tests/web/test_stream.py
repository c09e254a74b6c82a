"""The stream of a page: what it gets first, what follows, and what neither costs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import pytest_asyncio

from gpushared.domain.model.errors import NotFound, PermissionRefused
from gpushared.web import stream
from gpushared.web.live_answers import Pace
from tests.web.pages import ANNA, BEN, LEASES, SOON_SECONDS, Page, Site


@pytest_asyncio.fixture
async def site() -> AsyncIterator[Site]:
    async with Site().serving() as serving:
        yield serving


async def until(is_so: Callable[[], bool]) -> None:
    """Wait until it is so: a connection's end is noticed by and by."""
    async with asyncio.timeout(SOON_SECONDS):
        while not is_so():  # noqa: ASYNC110 - nothing tells of it
            await asyncio.sleep(0.05)


async def settled(page: Page, site: Site) -> None:
    """Wait until the page has what the daemon has."""
    wanted = {one.id: one.state for one in site.leases.leases}
    while {one["id"]: one["state"] for one in page.answers["leases"]["leases"]} != wanted:
        await page.event()


async def test_a_page_gets_the_whole_answer_first_and_then_only_what_changes(site: Site) -> None:
    site.change("l-1", "queued")
    site.change("l-2", "active")
    page = await site.open(LEASES)
    assert page.status == 200
    assert page.headers["content-type"] == "text/event-stream"
    assert page.headers["x-accel-buffering"] == "no"
    first = await page.event()
    assert (first.kind, len(first.data["answer"]["leases"])) == ("state", 2)

    site.change("l-1", "active")
    second = await page.event()
    assert second.kind == "change"
    assert [one["id"] for one in second.data["lists"]["leases"]["set"]] == ["l-1"]
    await settled(page, site)


async def test_each_event_carries_the_revision_of_its_answer(site: Site) -> None:
    page = await site.open(LEASES)
    revision = str(site.revisions)
    assert (await page.event()).data["revision"] == revision
    site.change("l-1", "queued")
    assert (await page.event()).data["revision"] == str(site.revisions) != revision


async def test_an_answer_is_the_unary_calls_own(site: Site) -> None:
    site.change("l-1", "queued")
    page = await site.open(LEASES)
    await page.event()
    unary = await site.ask(
        b"POST /gpushare.v1.Leases/List HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}"
    )
    assert unary.headers["gpushare-revision"] == str(site.revisions)
    assert await unary.body() == page.answers["leases"]


async def test_pages_of_one_user_share_the_work_and_other_users_do_not(site: Site) -> None:
    pages = [await site.open(LEASES) for _ in range(5)]
    for page in pages:
        await page.event()
    assert site.made == [ANNA]
    site.change("l-1", "queued")
    for page in pages:
        await page.event()
    assert site.made == [ANNA, ANNA]
    other = await site.open(LEASES, BEN)
    await other.event()
    assert site.made == [ANNA, ANNA, BEN]


async def test_nothing_is_made_while_nothing_changes_and_nobody_watches(site: Site) -> None:
    page = await site.open(LEASES)
    await page.event()
    site.revisions.sampled()
    await until(lambda: len(site.made) == 2)
    await asyncio.sleep(0.1)
    assert len(site.made) == 2
    page.writer.close()
    await until(lambda: not site.streams.live._live)
    site.change("l-1", "queued")
    await asyncio.sleep(0.05)
    assert len(site.made) == 2


async def test_a_sample_with_other_figures_reaches_the_page(site: Site) -> None:
    page = await site.open(LEASES)
    await page.event()
    site.leases.simulated = True
    site.revisions.sampled()
    assert (await page.event()).data["set"] == {"simulated": True}


async def test_changes_that_come_together_are_told_together(site: Site) -> None:
    site.pace = Pace(0.3, None)
    page = await site.open(LEASES)
    await page.event()
    for number in range(20):
        site.change(f"l-{number}", "queued")
        await asyncio.sleep(0)
    await settled(page, site)
    assert len(site.made) <= 3


async def test_an_answer_without_changes_to_wait_for_is_polled(site: Site) -> None:
    site.pace = Pace(None, None, 0.02)
    page = await site.open(LEASES)
    await page.event()
    site.leases.more = 7
    assert (await page.event()).data["set"] == {"more": "7"}


async def test_a_trouble_is_told_once_and_so_is_its_end(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpushared.web.live_answers.AFTER_ERROR", Pace(0.0, 0.01))
    page = await site.open(LEASES)
    await page.event()
    site.error = NotFound("there is no lease", hint="look again")
    site.revisions.state_changed()
    event = await page.event()
    assert event.kind == "trouble"
    assert (event.data["code"], event.data["hint"]) == ("not_found", "look again")
    site.revisions.state_changed()
    await asyncio.sleep(0.05)
    site.error = None
    site.revisions.state_changed()
    after = await page.event()
    assert (after.kind, sorted(after.data)) == ("change", ["name", "revision"])


async def test_a_call_that_was_refused_is_not_made_at_each_change(site: Site) -> None:
    site.error = PermissionRefused("only administrators see it")
    page = await site.open(LEASES)
    assert (await page.event()).data["code"] == "permission_denied"
    for _ in range(5):
        site.revisions.state_changed()
        await asyncio.sleep(0.01)
    assert len(site.made) == 1


# --- coming back -------------------------------------------------------------------------------------------


async def test_a_page_that_comes_back_gets_only_what_differs(site: Site) -> None:
    site.change("l-1", "queued")
    page = await site.open(LEASES)
    mark = (await page.event()).id
    again = await site.open(LEASES, mark=mark)
    again.answers = page.answers
    site.change("l-1", "active")
    event = await again.event()
    assert (event.kind, event.data["lists"]["leases"]["set"][0]["state"]) == ("change", "active")

    late = await site.open(LEASES, mark=mark)
    late.answers = {"leases": {"leases": [{"id": "l-1", "state": "queued"}]}}
    assert (await late.event()).kind == "change"
    site.change("l-1", "queued")
    site.change("l-2", "queued")
    await settled(late, site)
    later = await site.open(LEASES, mark=mark)
    assert (await later.event()).kind == "state"


async def test_a_page_keeps_its_place_over_a_restart_of_the_daemon(site: Site) -> None:
    site.change("l-1", "queued")
    page = await site.open(LEASES)
    mark = (await page.event()).id
    async with Site(leases=site.leases).serving() as restarted:
        again = await restarted.open(LEASES, mark=mark)
        again.answers = page.answers
        await until(lambda: bool(restarted.made))
        restarted.change("l-1", "active")
        event = await again.event()
        assert event.kind == "change"
        await settled(again, restarted)


@pytest.mark.parametrize(
    "mark", ["", "nonsense", "ab.1.2~", "ab.1.2~000000000000", "ab.1.2~a,b", "\xff" * 20]
)
async def test_a_mark_that_says_nothing_gives_the_whole_answer(site: Site, mark: str) -> None:
    page = await site.open(LEASES, mark=mark)
    assert (await page.event()).kind == "state"


# --- bounds ------------------------------------------------------------------------------------------------

REFUSED_QUERIES: dict[str, Any] = {
    "nothing to watch": {},
    "a changing call": {"a": ["Leases/Stop", {"lease_id": "l-1"}]},
    "a call that there is not": {"a": ["Leases/Nothing", {}]},
    "a call of another package": {"a": ["../Leases/List", {}]},
    "no request": {"a": ["Leases/List"]},
    "a request of another form": {"a": ["Leases/List", {"nothing": 1}]},
    "a list": ["Leases/List"],
    "a long name": {"a" * 65: ["Leases/List", {}]},
    "a log of nothing": {"a": ["logs", {}]},
    "a log of two": {"a": ["logs", {"lease_id": "l-1", "job_id": "j-1"}]},
    "a log where there are none": {"a": ["logs", {"lease_id": "l-1"}]},
    "too many": {f"a{number}": ["Leases/List", {}] for number in range(9)},
}


@pytest.mark.parametrize("watch", REFUSED_QUERIES.values(), ids=REFUSED_QUERIES)
async def test_a_stream_of_what_cannot_be_watched_is_refused(site: Site, watch: Any) -> None:
    page = await site.open(watch)
    assert page.status == 400
    assert not site.made


async def test_a_client_that_goes_away_leaves_no_work_behind(site: Site) -> None:
    before = asyncio.all_tasks()
    page = await site.open(LEASES)
    await page.event()
    page.writer.close()
    await until(lambda: not asyncio.all_tasks() - before)
    assert not site.streams.live._live


async def test_a_page_that_watches_one_answer_by_several_names_leaves_no_work_behind(site: Site) -> None:
    before = asyncio.all_tasks()
    same = {f"a{number}": ["Leases/List", {}] for number in range(3)}
    page = await site.open({**same, "b": ["Leases/List", {"pool": True}]})
    await page.event()
    page.writer.close()
    await until(lambda: not asyncio.all_tasks() - before)
    assert not site.streams.live._live


async def test_a_page_that_does_not_read_loses_its_stream_and_holds_back_no_other(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "SLOW_READER_SECONDS", 0.3)
    slow, quick = await site.open(LEASES), await site.open(LEASES)
    slow.writer.transport.pause_reading()  # type: ignore[attr-defined]
    await quick.event()
    number = 0
    async with asyncio.timeout(60):
        while len(next(iter(site.streams.live._live.values())).pages) == 2:
            number += 1
            site.leases.leases.add(id=f"l-{number}", state="queued", image="x" * 100_000)
            site.revisions.state_changed()
            await quick.event()
    await settled(quick, site)
    slow.writer.transport.resume_reading()  # type: ignore[attr-defined]
    assert not await slow.has_ended()


async def test_a_quiet_stream_has_a_heartbeat(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "HEARTBEAT_SECONDS", 0.05)
    page = await site.open(LEASES)
    await page.event()
    assert await page._block() == await page._block() == ":"


async def test_a_daemon_that_ends_closes_its_streams_at_once() -> None:
    async with Site().serving() as site:
        page = await site.open(LEASES)
        await page.event()
    assert not await page.has_ended()


async def test_a_bug_in_a_call_ends_the_stream_and_not_the_daemon(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    page = await site.open(LEASES)
    await page.event()
    site.leases = None  # type: ignore[assignment]
    site.revisions.state_changed()
    assert await page.has_ended()
    assert "a page's answer failed" in caplog.text
