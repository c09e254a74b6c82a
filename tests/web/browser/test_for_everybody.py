"""Each page can be used by everybody: by keyboard, with aids, on small screens, in both themes."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import pytest
from playwright.async_api import Page

from tests.web.browser.conftest import NewVisitor
from tests.web.browser.visitor import too_wide, violations
from tests.web.browser.world import ADMIN, World

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
WIDTHS: Final = {
    "a phone": ({"width": 360, "height": 740}, 1),
    "200 % zoom": ({"width": 640, "height": 400}, 2),
    "4k": ({"width": 3840, "height": 2160}, 1),
}
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
MAX_STEPS: Final = 300


def address(page: str, world: World) -> str:
    """The path of a page, with the ids of what was played."""
    ids = {"trainer": world.trainer["id"], "done": world.done["id"]}
    return PAGES[page].format(**ids, writer=world.writer, waiter=world.waiter)


async def settled(page: Page) -> None:
    """Wait until nothing fades or slides any more: half-shown text has half its contrast."""
    await page.evaluate("Promise.all(document.getAnimations().map((one) => one.finished))")


@pytest.mark.parametrize("theme", ["light", "dark"])
async def test_axe_finds_nothing(theme: Any, world: World, new_visitor: NewVisitor, axe: Path) -> None:
    visitor = await new_visitor(ADMIN, color_scheme=theme)
    visitor.forgive("status of 404")
    found = {}
    for page in PAGES:
        await visitor.go(address(page, world))
        await visitor.page.evaluate(OPENED)
        await settled(visitor.page)
        found[page] = await violations(visitor.page, axe)
    assert found == {key: [] for key in PAGES}


@pytest.mark.parametrize("width", WIDTHS)
async def test_no_page_scrolls_sideways(width: str, world: World, new_visitor: NewVisitor) -> None:
    viewport, scale = WIDTHS[width]
    visitor = await new_visitor(ADMIN, viewport=viewport, device_scale_factor=scale)
    visitor.forgive("status of 404")
    found = {}
    for page in PAGES:
        await visitor.go(address(page, world))
        found[page] = await too_wide(visitor.page)
    assert found == {page: [] for page in PAGES}


async def test_all_that_can_be_clicked_is_reached_by_tab_and_shows_that_it_is(
    world: World, new_visitor: NewVisitor
) -> None:
    visitor = await new_visitor(ADMIN)
    visitor.forgive("status of 404")
    missed, faint = {}, {}
    for page in PAGES:
        await visitor.go(address(page, world))
        missed[page], faint[page] = await walk(visitor.page)
    assert missed == {key: [] for key in PAGES}
    assert faint == {key: [] for key in PAGES}


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


async def test_who_wants_less_motion_gets_none(world: World, new_visitor: NewVisitor) -> None:
    visitor = await new_visitor(reduced_motion="reduce")
    for page in PAGES:
        if page in {"a lease that is not", "audit"}:
            continue
        await visitor.go(address(page, world))
        moving = await visitor.page.evaluate(
            "document.getAnimations().filter((one) => one.effect.getTiming().duration > 10).length"
        )
        assert (page, moving) == (page, 0)


async def test_the_theme_that_was_chosen_stays(new_visitor: NewVisitor) -> None:
    visitor = await new_visitor(color_scheme="light")
    page = await visitor.go()
    before = await page.evaluate("getComputedStyle(document.body).backgroundColor")
    await page.get_by_role("button", name="Theme").click()
    await page.reload()
    await visitor.wait_live()
    assert await page.evaluate("getComputedStyle(document.body).backgroundColor") != before
