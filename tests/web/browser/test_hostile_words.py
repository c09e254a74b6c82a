"""Words that others chose are text on the page, whatever stands in them, and break neither it nor its layout."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

import pytest
import pytest_asyncio
from playwright.async_api import Page, Route, expect

from tests.node.daemon import Refused
from tests.web.browser.busy_machine import ADMIN, LINES, MARKUP, RLO, SCRIPT, BusyMachine
from tests.web.browser.conftest import NewVisitor
from tests.web.browser.test_for_everybody import PAGES, address
from tests.web.browser.visitor import Visitor, too_wide

LONG: Final = "n" * 300
HOSTILE: Final = {
    "markup": f"{SCRIPT}{MARKUP}${{alert(4)}}{{{{alert(5)}}}}{RLO}txet",
    "a link": "javascript:alert(3)",
    "a long word": LONG,
    "an object's own name": "__proto__",
}
# Fields whose words the page compares, or that are parts of addresses.
FIXED: Final = frozenset(
    {
        *(
            "id",
            "lease_id",
            "job_id",
            "array_id",
            "state",
            "class",
            "isolation",
            "mode",
            "kind",
            "token",
            "sort",
        ),
        *("step", "preempt_step", "outcome", "wall", "memory_wall", "sharing", "version", "schema", "bucket"),
        *("key", "code", "next_page_token", "label", "gpu_label", "uuid", "gpu_uuid"),
    }
)
TROUBLES: Final = {
    "a script in the page": (
        "script.textContent = 'alert(1)'; document.body.append(script)",
        "console error",
    ),
    "an error of a script": ("setTimeout(() => { throw new Error('oops'); })", "oops"),
    "a request to elsewhere": ("fetch('http://192.0.2.1/').catch(() => {})", "192.0.2.1"),
    "a dialog": ("setTimeout(() => alert('hello'))", "dialog: hello"),
}
NARROW: Final = {"width": 360, "height": 740}


def poisoned(answer: Any, word: str, field: str = "") -> Any:
    """The answer with this word in place of each text that a person or a program could have chosen."""
    match answer:
        case dict():
            return {name: poisoned(value, word, name) for name, value in answer.items()}
        case list():
            return [poisoned(one, word, field) for one in answer]
        case str() if answer and field not in FIXED and not answer.isdigit():
            return word
        case _:
            return answer


class Liar:
    """Answers in the daemon's place, in its words but for those that somebody could have chosen."""

    def __init__(self, busy_machine: BusyMachine, word: str) -> None:
        self._daemon = busy_machine.daemon
        self._word = word

    async def call(self, route: Route) -> None:
        name = urlsplit(route.request.url).path.partition("gpushare.v1.")[2]
        status, answer = self._ask(name, json.loads(route.request.post_data or "{}"))
        await route.fulfill(status=status, json=answer)

    async def stream(self, route: Route) -> None:
        (watch,) = parse_qs(urlsplit(route.request.url).query)["watch"]
        events = [self._event(name, *asked) for name, asked in json.loads(watch).items()]
        body = "".join(f"event: {kind}\ndata: {json.dumps(data)}\n\n" for kind, data in events)
        await route.fulfill(status=200, content_type="text/event-stream", body=body)

    def _event(self, name: str, call: str, request: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        if call == "logs":
            return "log", {"name": name, "lines": [self._word] * 3}
        status, answer = self._ask(call, request)
        if status == 200:
            return "state", {"name": name, "answer": answer, "revision": "1"}
        return "trouble", {"name": name, "code": "internal", "message": self._word, "hint": self._word}

    def _ask(self, name: str, request: dict[str, Any]) -> tuple[int, Any]:
        try:
            return 200, poisoned(self._daemon.call(name, request), self._word)
        except Refused as refused:
            return refused.status, {
                "code": refused.code,
                "message": self._word,
                "details": [{"hint": self._word}],
            }


@pytest_asyncio.fixture(loop_scope="session")
async def narrow(new_visitor: NewVisitor) -> AsyncIterator[Visitor]:
    """An administrator with a telephone, who sees everybody's words."""
    visitor = await new_visitor(ADMIN, viewport=NARROW)
    yield visitor
    await visitor.page.unroute_all(behavior="ignoreErrors")


@pytest.mark.parametrize("word", HOSTILE.values(), ids=HOSTILE)
async def test_every_word_of_an_answer_may_be_anything(
    word: str, busy_machine: BusyMachine, narrow: Visitor
) -> None:
    liar, page = Liar(busy_machine, word), narrow.page
    narrow.forgive(r"status of 40[0-9]")
    await page.route("**/gpushare.v1.*", liar.call)
    await page.route("**/stream?*", liar.stream)
    for name in PAGES:
        await page.goto(narrow.forwarder.url(address(name, busy_machine)))
        await expect(page.get_by_role("main").get_by_text("Loading…")).to_have_count(0)
        await expect(page.get_by_role("heading", level=1)).to_be_visible()
        assert await foreign(page) == [], name
        assert await too_wide(page) == [], name


async def foreign(page: Page) -> list[str]:
    """Elements and addresses that only somebody else's words can have made."""
    return await page.evaluate(  # type: ignore[no-any-return] # what the page answers is not typed
        """
        [...document.querySelectorAll("main img, main script, main iframe, [onerror], a[href^='javascript:']")]
          .map((one) => one.outerHTML)
        """
    )


async def test_what_a_job_writes_and_who_drains_says_is_text(
    busy_machine: BusyMachine, admin: Visitor
) -> None:
    await admin.go()
    await expect(admin.main.get_by_text(MARKUP).first).to_be_visible()
    await admin.go(f"job/{busy_machine.writer}")
    log = admin.page.get_by_role("log")
    for line in (SCRIPT, MARKUP, "the last line"):
        await expect(log).to_contain_text(line)
    assert RLO not in await log.inner_text()
    assert max(map(len, LINES)) == 3000
    assert await foreign(admin.page) == []


async def test_text_that_turns_around_does_not_turn_what_stands_beside_it(
    busy_machine: BusyMachine, admin: Visitor
) -> None:
    await admin.go(f"job/{busy_machine.writer}")
    assert RLO not in await admin.page.evaluate("document.documentElement.outerHTML")


@pytest.mark.parametrize(("done", "noticed"), TROUBLES.values(), ids=TROUBLES)
async def test_these_tests_would_notice(done: str, noticed: str, alice: Visitor) -> None:
    await alice.page.evaluate(f"() => {{ const script = document.createElement('script'); {done}; }}")
    for _ in range(100):
        if any(noticed in trouble for trouble in alice.troubles):
            break
        await alice.page.wait_for_timeout(50)
    assert any(noticed in trouble for trouble in alice.troubles), alice.troubles
    alice.troubles.clear()
