"""Each page can be used by everybody: by keyboard, with aids, on small screens, in both themes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import pytest
import pytest_asyncio
from playwright.async_api import Browser, Page

from tests.web.browser.busy_machine import ADMIN, BusyMachine
from tests.web.browser.conftest import NewVisitor
from tests.web.browser.forwarder import Forwarder
from tests.web.browser.visitor import Visitor, too_wide, violations

PAGES: Final = {
    "machine": "",
    "queue": "queue",
    "lease": "lease/{trainer}",
    "ended lease": "lease/{done}",
    "job": "job/{writer}",
    "waiting job": "job/{waiter}",
    "use": "use",
    "history": "history",
    "idle": "idle",
    "audit": "audit",
    "submit": "submit",
    "a lease that is not": "lease/l-0000",
}
WINDOWS: Final = {
    "a phone": {"width": 360, "height": 740},
    "200 % zoom of a laptop": {"width": 640, "height": 400},
    "4k": {"width": 3840, "height": 2160},
}
THEMES: Final[tuple[Any, ...]] = ("light", "dark")
# What a person may reach by Tab: of a group of radio buttons the browser itself offers one.
CONTROLS: Final = """
() => [...document.querySelectorAll("a[href], button, input, select, textarea, summary, [tabindex='0']")]
  .filter((one) => one.checkVisibility() && !one.disabled)
"""
FOCUSED: Final = """
() => {
  const one = document.activeElement;
  const style = getComputedStyle(one);
  const shown = style.outlineStyle !== "none" && parseFloat(style.outlineWidth) > 0 || style.boxShadow !== "none";
  const box = one.getBoundingClientRect();
  return {
    name: `${one.tagName} ${one.id} ${(one.getAttribute("aria-label") ?? one.textContent).trim().slice(0, 60)}`,
    shown, seen: box.width > 0 && box.bottom > 0 && box.top < innerHeight,
    body: one === document.body || one === document.documentElement,
  };
}
"""
OPENED: Final = "document.querySelectorAll('details').forEach((one) => { one.open = true; })"
MOVING: Final = "document.getAnimations().filter((one) => one.effect.getTiming().duration > 10).length"
MAX_STEPS: Final = 300


def address(page: str, busy_machine: BusyMachine) -> str:
    """The path of a page, with the ids of what was played."""
    ids = {"trainer": busy_machine.trainer["id"], "done": busy_machine.done["id"]}
    return PAGES[page].format(**ids, writer=busy_machine.writer, waiter=busy_machine.waiter)


async def settled(page: Page) -> None:
    """Wait until nothing fades or slides any more: half-shown text has half its contrast."""
    await page.evaluate("Promise.all(document.getAnimations().map((one) => one.finished))")


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def looker(browser: Browser, forwarders: dict[int, Forwarder]) -> AsyncIterator[Visitor]:
    """An administrator, who sees most, and goes from page to page without a new login."""
    context = await browser.new_context()
    visitor = Visitor(context, forwarders[ADMIN])
    visitor.page = await context.new_page()
    await visitor.log_in()
    visitor.forgive("status of 404")
    yield visitor
    await context.close()


@pytest_asyncio.fixture(loop_scope="session", params=PAGES)
async def shown(
    request: pytest.FixtureRequest, looker: Visitor, busy_machine: BusyMachine
) -> AsyncIterator[Page]:
    """Each page in turn, with everything in it opened, in a window of a laptop."""
    await looker.page.set_viewport_size({"width": 1280, "height": 800})
    page = await looker.go(address(request.param, busy_machine))
    await page.evaluate(OPENED)
    yield page
    looker.check()


async def test_axe_finds_nothing_in_either_theme(shown: Page, axe: Path) -> None:
    for theme in THEMES:
        await shown.emulate_media(color_scheme=theme)
        await settled(shown)
        assert await violations(shown, axe) == []


async def test_no_page_scrolls_sideways(shown: Page) -> None:
    found = {}
    for window, size in WINDOWS.items():
        await shown.set_viewport_size(size)  # type: ignore[arg-type] # it has both fields of a ViewportSize
        found[window] = await too_wide(shown)
    assert found == {window: [] for window in WINDOWS}


async def test_all_that_can_be_clicked_is_reached_by_tab_and_shows_that_it_is(shown: Page) -> None:
    assert await walk(shown) == ([], [])


async def walk(page: Page) -> tuple[list[str], list[str]]:
    """Press Tab until the focus leaves the page; what was not reached, and what did not show its focus."""
    await page.evaluate(
        "window.reached = new Set(); addEventListener('focusin', (e) => reached.add(e.target))"
    )
    faint = []
    for _ in range(MAX_STEPS):
        await page.keyboard.press("Tab")
        focused = await page.evaluate(FOCUSED)
        if focused["body"]:
            break
        if not (focused["shown"] and focused["seen"]):
            faint.append(focused["name"])
    missed = await page.evaluate(
        f"({CONTROLS})().filter((one) => !reached.has(one)).map((one) => one.outerHTML)"
    )
    return missed, faint


async def test_the_skip_link_leads_past_the_navigation(new_visitor: NewVisitor) -> None:
    visitor = await new_visitor()
    await visitor.go()
    await visitor.page.keyboard.press("Tab")
    await visitor.page.keyboard.press("Enter")
    assert await visitor.page.evaluate("document.activeElement.id") == "main"


async def test_who_wants_less_motion_gets_none(shown: Page) -> None:
    await shown.emulate_media(reduced_motion="reduce")
    assert await shown.evaluate(MOVING) == 0


async def test_the_theme_that_was_chosen_stays(new_visitor: NewVisitor) -> None:
    visitor = await new_visitor(color_scheme="light")
    page = await visitor.go()
    before = await page.evaluate("getComputedStyle(document.body).backgroundColor")
    await page.get_by_role("button", name="Theme").click()
    await page.reload()
    await visitor.wait_live()
    assert await page.evaluate("getComputedStyle(document.body).backgroundColor") != before
