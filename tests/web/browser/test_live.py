"""The page shows what is, says when it cannot, and goes on by itself."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from playwright.async_api import expect

from tests.node.daemon import DaemonProcess, make_directory
from tests.web.browser.busy_machine import ALICE
from tests.web.browser.conftest import NewVisitor
from tests.web.browser.forwarder import Forwarder
from tests.web.browser.visitor import Visitor

CUT_OFF: Final = r"net::ERR_|status of 50[234]"
SEEN: Final = "Object.defineProperty(document, 'hidden', {configurable: true, get: () => %s});"
TOLD: Final = "document.dispatchEvent(new Event('visibilitychange'))"


@pytest.fixture
def restless() -> Iterator[DaemonProcess]:
    """A daemon of the test's own, without an engine, which may end."""
    daemon = DaemonProcess(make_directory(), engine="/nonexistent/docker.sock")
    try:
        daemon.start()
        yield daemon
    finally:
        daemon.dispose()


@pytest.fixture
def way_in(restless: DaemonProcess, network: tuple[str, ...], tmp_path: Path) -> Iterator[Forwarder]:
    forwarder = Forwarder(restless, ALICE, tmp_path / "web", network=network)
    yield forwarder
    forwarder.end()


async def show(visitor: Visitor, *, hidden: bool) -> None:
    """Hide the tab, or show it again, as the browser tells its page."""
    await visitor.page.evaluate(SEEN % str(hidden).lower() + TOLD)


async def test_a_change_is_shown_without_a_reload(way_in: Forwarder, new_visitor: NewVisitor) -> None:
    visitor = await new_visitor(way_in)
    lease = visitor.daemon.request("0.25", uid=ALICE)
    await expect(visitor.main).to_contain_text(lease["id"])
    visitor.daemon.call("Leases/Release", {"lease_id": lease["id"]}, uid=ALICE)
    await expect(visitor.main).not_to_contain_text(lease["id"])


@pytest.mark.parametrize("end", ["kill", "terminate"])
async def test_a_daemon_that_restarts_is_waited_for_in_plain_sight(
    end: str, way_in: Forwarder, new_visitor: NewVisitor
) -> None:
    visitor = await new_visitor(way_in)
    await expect(visitor.badge).to_contain_text("Live")
    visitor.forgive(CUT_OFF)
    lease = visitor.daemon.request("0.25", uid=ALICE)
    await expect(visitor.main).to_contain_text(lease["id"])
    getattr(visitor.daemon, end)()
    await expect(visitor.badge).to_contain_text("Reconnecting")
    await expect(visitor.page.get_by_role("banner")).to_contain_text("old")
    await expect(visitor.main).to_contain_text(lease["id"])
    visitor.daemon.start()
    later = visitor.daemon.request("0.5", uid=ALICE)
    await expect(visitor.badge).to_contain_text("Live")
    await expect(visitor.main).to_contain_text(later["id"])


async def test_a_page_that_is_opened_while_the_daemon_is_away_comes_by_itself(
    way_in: Forwarder, new_visitor: NewVisitor
) -> None:
    """Its script was not loaded yet, so that the page has nothing to show but that the daemon is away."""
    visitor = await new_visitor(way_in)
    visitor.forgive(CUT_OFF)
    visitor.daemon.kill()
    await visitor.page.get_by_role("navigation").get_by_role("link", name="Queue").click()
    await expect(visitor.main).to_contain_text("The daemon does not answer")
    visitor.daemon.start()
    await expect(visitor.main).to_contain_text("Nobody waits")
    assert visitor.page.url == way_in.url("queue")


async def test_a_hidden_tab_has_no_stream_and_catches_up_when_it_is_seen_again(
    way_in: Forwarder, new_visitor: NewVisitor
) -> None:
    visitor = await new_visitor(way_in)
    await expect(visitor.badge).to_contain_text("Live")
    opened = len(visitor.streams)
    async with visitor.page.expect_event("requestfailed", lambda request: "/stream?" in request.url):
        await show(visitor, hidden=True)
    await expect(visitor.badge).to_contain_text("Paused")
    lease = visitor.daemon.request("0.25", uid=ALICE)
    assert len(visitor.streams) == opened
    await show(visitor, hidden=False)
    await visitor.wait_live()
    await expect(visitor.main).to_contain_text(lease["id"])
    assert len(visitor.streams) == opened + 1


async def test_each_page_has_one_stream(alice: Visitor) -> None:
    """A browser opens six connections to a site; streams that stay would take them from all else."""
    for title in ("Queue", "History", "GPUs"):
        await alice.page.get_by_role("navigation").get_by_role("link", name=title).click()
        await alice.wait_live()
    over = {request for request in alice.streams if request.failure is not None}
    assert len(alice.streams) - len(over) <= 1


async def test_going_back_shows_the_page_before(alice: Visitor) -> None:
    await alice.go()
    await alice.page.get_by_role("navigation").get_by_role("link", name="Queue").click()
    await expect(alice.page).to_have_title(re.compile("^Queue"))
    await alice.page.go_back()
    await expect(alice.page).to_have_title(re.compile("^GPUs"))
