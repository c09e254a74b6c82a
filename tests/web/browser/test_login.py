"""A browser comes in by a link that works once, and knows when and why it is out again."""

from __future__ import annotations

from typing import Final

from playwright.async_api import Page, expect

from tests.web.browser.busy_machine import ALICE, BOB
from tests.web.browser.conftest import NewVisitor
from tests.web.browser.forwarder import Forwarder
from tests.web.browser.visitor import Visitor

REFUSED: Final = r"status of 40[13]"
CUT_OFF: Final = "net::ERR_INCOMPLETE_CHUNKED_ENCODING"


async def shows_login(page: Page, *words: str) -> None:
    """Check that this is the login page, that it says these words, and what to type."""
    main = page.get_by_role("main")
    for word in (*words, "gpushare web"):
        await expect(main).to_contain_text(word)


async def test_a_link_leads_in_and_its_code_is_nowhere_afterwards(alice: Visitor) -> None:
    assert "#" not in alice.page.url
    (cookie,) = await alice.context.cookies()
    assert (cookie["httpOnly"], cookie["sameSite"]) == (True, "Strict")
    assert await alice.page.evaluate("document.cookie") == ""
    code = alice.forwarder.first_link.partition("#")[2]
    assert code not in await alice.page.evaluate("JSON.stringify([{...localStorage}, {...sessionStorage}])")


async def test_a_link_that_was_used_says_so_to_the_next_browser(
    new_visitor: NewVisitor, forwarders: dict[int, Forwarder]
) -> None:
    link = forwarders[ALICE].link()
    await new_visitor(link=link)
    late = await new_visitor(logs_in=False)
    late.forgive(REFUSED)
    await late.page.goto(link)
    await shows_login(late.page, "used already")


async def test_who_comes_without_a_session_is_told_what_to_type_and_gets_where_they_wanted(
    new_visitor: NewVisitor,
) -> None:
    visitor = await new_visitor(logs_in=False)
    visitor.forgive(REFUSED)
    await visitor.page.goto(visitor.forwarder.url("queue"))
    await shows_login(visitor.page)
    await visitor.page.goto(visitor.forwarder.link())
    await visitor.wait_live()


async def test_a_session_that_ended_is_told_of_in_every_tab(alice: Visitor) -> None:
    alice.forgive(f"{REFUSED}|{CUT_OFF}")
    other = await alice.context.new_page()
    await other.goto(alice.forwarder.url("queue"))
    await expect(other.get_by_role("heading", level=1)).to_be_visible()
    await alice.page.get_by_role("button", name="Log out").click()
    await shows_login(alice.page, "logged out")
    await shows_login(other, "logged in")


async def test_a_forwarder_serves_no_session_of_another_user(
    alice: Visitor, forwarders: dict[int, Forwarder]
) -> None:
    """A browser sends its cookie to all ports of a machine."""
    alice.forgive(REFUSED)
    await alice.page.goto(forwarders[BOB].url(""))
    await shows_login(alice.page)
