"""What people do on the page is asked once more, is done, and where it is refused the page says why."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import pytest
import pytest_asyncio
from playwright.async_api import Locator, expect

from tests.node.daemon import DaemonProcess, Json, make_directory, name
from tests.web.browser.busy_machine import ADMIN, ALICE, BOB, submit
from tests.web.browser.conftest import NewVisitor
from tests.web.browser.forwarder import Forwarder
from tests.web.browser.visitor import Visitor

ENDS_AT_ONCE: Final = 'trap "exit 0" TERM; sleep 1000 & wait'
REFUSED: Final = r"status of 4\d\d"


@pytest.fixture(scope="module")
def busy(docker_engine: str) -> Iterator[DaemonProcess]:
    """A daemon on which the tests of this module do what they like."""
    daemon = DaemonProcess(make_directory(), simulate="h100:4", engine=docker_engine)
    try:
        daemon.start()
        yield daemon
    finally:
        daemon.dispose()


@pytest.fixture(scope="module")
def ways_in(
    busy: DaemonProcess, network: tuple[str, ...], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[int, Forwarder]]:
    logs = tmp_path_factory.mktemp("web")
    started = {uid: Forwarder(busy, uid, logs / str(uid), network=network) for uid in (ALICE, BOB, ADMIN)}
    yield started
    for forwarder in started.values():
        forwarder.end()


@pytest.fixture
def lease(busy: DaemonProcess) -> Iterator[Json]:
    """A lease of Alice's whose container runs."""
    asked = busy.request("0.25", uid=ALICE, time="1h")
    mark = ["--label", f"gpushare.lease={asked['id']}", "--name", name()]
    busy.run_container(*mark, command=["sh", "-c", ENDS_AT_ONCE], uid=ALICE)
    held = busy.wait_lease(asked["id"], "active")
    yield held
    busy.call("Leases/Stop", {"lease_id": held["id"], "grace_seconds": 0})


@pytest_asyncio.fixture(loop_scope="session")
async def owner(ways_in: dict[int, Forwarder], new_visitor: NewVisitor, lease: Json) -> Visitor:
    """Alice, who looks at the page of her lease."""
    visitor = await new_visitor(ways_in[ALICE])
    await visitor.go(f"lease/{lease['id']}")
    return visitor


def action(visitor: Visitor, title: str) -> Locator:
    return visitor.main.get_by_role("button", name=title, exact=True)


def question(visitor: Visitor) -> Locator:
    return visitor.page.get_by_role("dialog")


async def test_more_time_is_given_after_a_question_that_shows_the_command(
    owner: Visitor, lease: Json, busy: DaemonProcess
) -> None:
    await action(owner, "Extend").click()
    asked = question(owner)
    await asked.get_by_label("So much longer").fill("2h")
    await expect(asked).to_contain_text(f"gpushare extend {lease['id']} 2h")
    assert busy.lease(lease["id"])["expires_at"] == lease["expires_at"]
    await asked.get_by_role("button", name="Extend it").click()
    await expect(asked).to_contain_text("Done")
    assert busy.lease(lease["id"])["expires_at"] - lease["expires_at"] == pytest.approx(7200, abs=1)
    await asked.get_by_role("button", name="Close").click()
    await expect(owner.main).to_contain_text("2h59m left")


async def test_what_is_refused_is_said_and_typed_anew(
    owner: Visitor, lease: Json, busy: DaemonProcess
) -> None:
    owner.forgive(REFUSED)
    await action(owner, "Extend").click()
    asked = question(owner)
    await asked.get_by_label("So much longer").fill("banana")
    await asked.get_by_role("button", name="Extend it").click()
    await expect(asked.get_by_role("status")).to_contain_text("'banana' is not a duration")
    await expect(asked.get_by_label("So much longer")).to_be_focused()
    assert busy.lease(lease["id"])["expires_at"] == lease["expires_at"]


async def test_another_size_is_given(owner: Visitor, lease: Json, busy: DaemonProcess) -> None:
    await action(owner, "Resize").click()
    asked = question(owner)
    await asked.get_by_label("Share of each GPU").fill("0.5")
    await expect(asked).to_contain_text(f"gpushare resize {lease['id']} --gpu 0.5")
    await asked.get_by_role("button", name="Resize it").click()
    await expect(asked).to_contain_text("Done")
    assert busy.lease(lease["id"])["grants"][0]["compute_permille"] == 500


async def test_nothing_happens_to_who_leaves_it(owner: Visitor, lease: Json, busy: DaemonProcess) -> None:
    for leave in ("button", "escape"):
        await action(owner, "Stop").click()
        await expect(question(owner)).to_contain_text(f"gpushare stop {lease['id']}")
        if leave == "button":
            await question(owner).get_by_role("button", name="Leave it").click()
        else:
            await owner.page.keyboard.press("Escape")
        await expect(question(owner)).to_have_count(0)
    assert busy.lease(lease["id"])["state"] == "active"


async def test_a_lease_is_stopped_by_keyboard_alone(owner: Visitor, lease: Json, busy: DaemonProcess) -> None:
    await action(owner, "Stop").focus()
    await owner.page.keyboard.press("Enter")
    yes = question(owner).get_by_role("button", name="Stop it")
    for _ in range(10):
        if await yes.evaluate("(one) => one === document.activeElement"):
            break
        await owner.page.keyboard.press("Tab")
    await owner.page.keyboard.press("Enter")
    await expect(question(owner)).to_contain_text("Done")
    await owner.page.keyboard.press("Escape")
    assert await action(owner, "Stop").evaluate("(one) => one === document.activeElement")
    busy.wait_lease(lease["id"], "ended")
    await expect(owner.page.get_by_role("heading", level=1)).to_contain_text("stopped")


async def test_a_lease_is_paused_and_resumed(owner: Visitor, lease: Json, busy: DaemonProcess) -> None:
    for title, state in (("Pause", "suspended"), ("Resume", "active")):
        await action(owner, title).click()
        await expect(question(owner)).to_contain_text(f"gpushare {title.lower()} {lease['id']}")
        await question(owner).get_by_role("button", name=f"{title} it").click()
        await expect(question(owner)).to_contain_text("Done")
        await question(owner).get_by_role("button", name="Close").click()
        await expect(owner.page.get_by_role("heading", level=1)).to_contain_text(state)
        busy.wait_lease(lease["id"], state)


async def test_a_value_that_is_none_is_refused_in_the_daemon_s_words(owner: Visitor, lease: Json) -> None:
    owner.forgive(REFUSED)
    await action(owner, "Extend").click()
    asked = question(owner)
    await asked.get_by_label("So much longer").fill("soon")
    await asked.get_by_role("button", name="Extend it").click()
    await expect(asked).to_contain_text("Refused")
    await expect(asked).to_contain_text("soon")
    await asked.get_by_label("So much longer").fill("1h")
    await asked.get_by_role("button", name="Extend it").click()
    await expect(asked).to_contain_text("Done")


async def test_what_is_not_possible_says_why_and_asks_nothing(owner: Visitor, lease: Json) -> None:
    await expect(action(owner, "Resume")).to_be_disabled()
    await action(owner, "Resume").click(force=True)
    await expect(question(owner)).to_have_count(0)
    await expect(owner.main).to_contain_text("Resume: not possible, it is active, not paused")


async def test_a_job_is_held_released_and_cancelled(
    ways_in: dict[int, Forwarder], new_visitor: NewVisitor, busy: DaemonProcess
) -> None:
    holder = busy.request("4", uid=BOB)
    job = submit(busy, ALICE, "--gpu", "4", command=["true"])
    visitor = await new_visitor(ways_in[ALICE])
    await visitor.go(f"job/{job}")
    for title, state in (("Hold", "held"), ("Release", "queued"), ("Cancel", "cancelled")):
        await action(visitor, title).click()
        await question(visitor).get_by_role("button", name=f"{title} it").click()
        await expect(question(visitor)).to_contain_text("Done")
        await question(visitor).get_by_role("button", name="Close").click()
        await expect(visitor.page.get_by_role("heading", level=1)).to_contain_text(state)
    busy.call("Leases/Release", {"lease_id": holder["id"]})


class TestRights:
    """They are those of the socket: the page offers what a user may, and the daemon refuses the rest all the same."""

    async def test_others_leases_show_size_and_user_and_nothing_to_do(
        self, ways_in: dict[int, Forwarder], new_visitor: NewVisitor, lease: Json
    ) -> None:
        visitor = await new_visitor(ways_in[BOB])
        await visitor.go()
        (row,) = [row for row in await visitor.table("Who has what") if row["lease"] == lease["id"]]
        assert (row["user"], row["share"], row["image"], row["name"]) == ("www-data", "0.25", "-", "-")
        visitor.forgive(REFUSED)
        await visitor.go(f"lease/{lease['id']}")
        buttons = await visitor.main.get_by_role("group", name="Actions").get_by_role("button").all()
        assert [await button.get_attribute("aria-disabled") for button in buttons] == ["true"] * len(buttons)
        text = await visitor.says()
        assert lease["container_name"] not in text
        assert lease["container_id"][:12] not in text

    async def test_a_call_past_the_page_is_refused_as_on_the_socket(
        self, ways_in: dict[int, Forwarder], new_visitor: NewVisitor, lease: Json, busy: DaemonProcess
    ) -> None:
        visitor = await new_visitor(ways_in[BOB])
        visitor.forgive(REFUSED)
        status = await visitor.page.evaluate(
            """(id) => fetch("gpushare.v1.Leases/Stop", {method: "POST", body: JSON.stringify({lease_id: id}),
              headers: {"Content-Type": "application/json"}}).then((answer) => answer.status)""",
            lease["id"],
        )
        assert status == 403
        assert busy.lease(lease["id"])["state"] == "active"

    async def test_an_administrator_may_stop_anybody_s(
        self, ways_in: dict[int, Forwarder], new_visitor: NewVisitor, lease: Json, busy: DaemonProcess
    ) -> None:
        visitor = await new_visitor(ways_in[ADMIN])
        await visitor.go(f"lease/{lease['id']}")
        await action(visitor, "Stop").click()
        await question(visitor).get_by_role("button", name="Stop it").click()
        await expect(question(visitor)).to_contain_text("Done")
        busy.wait_lease(lease["id"], "ended")

    async def test_who_is_no_administrator_sees_the_own_lines_of_the_audit_only(
        self, ways_in: dict[int, Forwarder], new_visitor: NewVisitor, lease: Json
    ) -> None:
        ordinary = await new_visitor(ways_in[BOB])
        await expect(ordinary.page.get_by_role("navigation").get_by_role("link", name="Audit")).to_have_count(
            0
        )
        await ordinary.go("audit")
        assert {row["user"] for row in await ordinary.table("Changes and refusals")} == {"games"}
        trusted = await new_visitor(ways_in[ADMIN])
        await trusted.page.get_by_role("navigation").get_by_role("link", name="Audit").click()
        await expect(trusted.main.get_by_role("table")).to_be_visible()
        assert {row["user"] for row in await trusted.table("Changes and refusals")} >= {"games", "www-data"}
