"""One user's browser: the page is looked at by roles and names, as people and their aids find things."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

from playwright.async_api import (
    BrowserContext,
    ConsoleMessage,
    Dialog,
    Locator,
    Page,
    Request,
    WebError,
    expect,
)

from tests.node.daemon import DaemonProcess
from tests.web.browser.forwarder import Forwarder

PATIENCE_MS: Final = 20_000
expect.set_options(PATIENCE_MS)
WAITING: Final = re.compile("Connecting|Reconnecting")


ROWS: Final = """
(table) => [...table.rows].map((row) => [...row.cells].map((cell) => {
  const plain = cell.cloneNode(true);
  plain.querySelectorAll("[aria-hidden=true]").forEach((one) => one.remove());
  return plain.textContent.trim();
}))
"""


class Visitor:
    """A browser context of one user. Whatever went wrong in its pages is kept in ``troubles``."""

    def __init__(self, context: BrowserContext, forwarder: Forwarder) -> None:
        self.context = context
        self.forwarder = forwarder
        self.troubles: list[str] = []
        self.streams: list[Request] = []
        self.page: Page
        self._forgiven: list[re.Pattern[str]] = []
        context.set_default_timeout(PATIENCE_MS)
        context.on("console", self._hear)
        context.on("weberror", self._note_error)
        context.on("dialog", self._dismiss)
        context.on("request", self._note_request)

    @property
    def daemon(self) -> DaemonProcess:
        return self.forwarder.daemon

    @property
    def main(self) -> Locator:
        return self.page.get_by_role("main")

    async def log_in(self, link: str = "") -> None:
        """Open a link of ``gpushare web``, and wait until the page shows something."""
        await self.page.goto(link or self.forwarder.link())
        await expect(self.page).not_to_have_url(re.compile("/login"))
        await self.wait_live()

    async def go(self, path: str = "") -> Page:
        """Load one of the page's addresses, and wait until it is live."""
        await self.page.goto(self.forwarder.url(path))
        await self.wait_live()
        return self.page

    async def wait_live(self) -> None:
        """Wait until the page shows all that it has asked for; a page of the past needs no stream."""
        await expect(self.page.get_by_role("heading", level=1)).to_be_visible()
        await expect(self.badge.filter(has_text=WAITING)).to_have_count(0)
        await expect(self.main.get_by_text("Loading…")).to_have_count(0)

    @property
    def badge(self) -> Locator:
        """What the header says of the stream."""
        return self.page.get_by_role("banner").get_by_role("status")

    async def says(self) -> str:
        """The text of the page's content."""
        return await self.main.inner_text()

    async def table(self, name: str) -> list[dict[str, str]]:
        """The rows of a table, each as its cells by the columns' titles, without marks that are only seen."""
        table = self.main.get_by_role("table", name=name)
        rows: list[list[str]] = await table.evaluate(ROWS)
        titles, *rest = rows
        return [dict(zip(titles, row, strict=True)) for row in rest]

    def forgive(self, pattern: str) -> None:
        """Expect a message like this on the console: a browser tells of each refused request there."""
        self._forgiven.append(re.compile(pattern))

    def check(self) -> None:
        """Fail the test if anything went wrong in a page."""
        assert not self.troubles, "\n".join(self.troubles)

    # --- what goes wrong

    def _hear(self, message: ConsoleMessage) -> None:
        if message.type in {"error", "warning", "assert"}:
            self._note(f"console {message.type}: {message.text} ({message.location.get('url')})")

    def _note_error(self, error: WebError) -> None:
        self._note(f"error: {error.error}")

    async def _dismiss(self, dialog: Dialog) -> None:
        self._note(f"dialog: {dialog.message}")
        await dialog.dismiss()

    def _note_request(self, request: Request) -> None:
        if not request.url.startswith(("http://127.0.0.1:", "data:", "about:")):
            self._note(f"a request left the machine: {request.url}")
        if "/stream?" in request.url:
            self.streams.append(request)

    def _note(self, trouble: str) -> None:
        if not any(pattern.search(trouble) for pattern in self._forgiven):
            self.troubles.append(trouble)


async def violations(page: Page, axe: Path) -> list[str]:
    """What axe-core finds: the rule, how bad it is, and where."""
    # Evaluated by the debugger, so that the page's own policy need not allow it.
    await page.evaluate(axe.read_text())
    found: Any = await page.evaluate("axe.run(document, {resultTypes: ['violations']})")
    return [
        f"{rule['id']} ({rule['impact']}): {rule['help']}: {node['target']} {node.get('failureSummary', '')}"
        for rule in found["violations"]
        for node in rule["nodes"]
    ]


async def too_wide(page: Page) -> list[str]:
    """What makes the page wider than its window, if anything does: the elements that stand out to the right."""
    found: list[str] = await page.evaluate(
        """
        () => document.documentElement.scrollWidth <= innerWidth ? [] :
          [...document.body.querySelectorAll("*")]
            .filter((one) => one.checkVisibility() && one.getBoundingClientRect().right > innerWidth + 1)
            .filter((one) => ![...one.children].some((child) => child.getBoundingClientRect().right > innerWidth + 1))
            .map((one) => one.outerHTML.slice(0, 300))
        """
    )
    return found
