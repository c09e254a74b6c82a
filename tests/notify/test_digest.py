"""The digest of a week: what it says, to whom it goes, and that each goes once."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import cast

import click
import pytest

from gpushared.cli.tree import cli
from gpushared.config.notify import NotifyConfig, ProjectNotifyConfig
from gpushared.domain.accounting.account import PERMILLE_MS_PER_GPU_HOUR, Account
from gpushared.domain.accounting.digest import Week, digest
from gpushared.domain.leases.node_state import NodeState
from gpushared.domain.model.errors import Unavailable
from gpushared.domain.model.lease import LeaseId
from gpushared.node.runtime.loop import Loop
from gpushared.node.runtime.weekly_digest import WeeklyDigest, week_of
from gpushared.notify.targets import routes_of
from gpushared.storage.history import SqliteHistory
from gpushared.storage.history.records import HistoryFilter, LeaseAccount, LeaseWait
from tests.notify.receivers import OutboxWorld, Receiver

HOUR = PERMILLE_MS_PER_GPU_HOUR
DAY_SECONDS = 86400.0
WEEK = Week("2026-11-16", "2026-11-23")
OPTIONS = "--project vision --since 2026-11-16 --until 2026-11-23"


def held(number: int, account: Account) -> LeaseAccount:
    return LeaseAccount(
        1, "gpu1", LeaseId(f"l-{number}"), "ada", "vision", "train", "0", "H100", account, None
    )


def waited(number: int, seconds: int) -> LeaseWait:
    lease = LeaseId(f"l-{number}")
    ms = seconds * 1000
    return LeaseWait(
        "gpu1", lease, "ada", "vision", "train", 1, None, 500, 0, ms, waits_still=False, reasons={}
    )


def test_a_week_with_waste_and_waits_has_a_sentence_for_each() -> None:
    rows = [
        held(
            1, Account(held_permille_ms=40 * HOUR, active_permille_ms=20 * HOUR, idle_permille_ms=20 * HOUR)
        ),
        held(
            2,
            Account(
                held_permille_ms=10 * HOUR,
                active_permille_ms=10 * HOUR,
                used_permille_ms=5 * HOUR,
                too_big_permille_ms=4 * HOUR,
            ),
        ),
    ]
    waits = [waited(number, 600 * number) for number in range(1, 11)] + [waited(99, 59)]
    held_text = "2 leases of vision held 50.0 GPU hours; kernels ran in 10% of the time that was seen"
    sentences = (
        (f"in the week from 2026-11-16 {held_text}", "usage"),
        ("20.0 GPU hours lay idle", "waste"),
        ("4.0 GPU hours were of memory that was never used", "waste"),
        ("10 requests waited 9h10m together, half of them up to 50m and nine of ten up to 1h30m", "waits"),
    )
    lines = digest("vision", WEEK, rows, waits)
    for line, (text, command) in zip(lines, sentences, strict=True):
        assert line.startswith(f"{text}: `gpushare {command} {OPTIONS}`")
    assert "`gpushare idle`" in lines[1]
    assert "`gpushare report LEASE`" in lines[2]


def test_a_week_without_waste_says_what_was_used_and_no_more() -> None:
    (line,) = digest("", WEEK, [], [])
    assert line == (
        "in the week from 2026-11-16 0 leases of this machine held 0.0 GPU hours: "
        "`gpushare usage --since 2026-11-16 --until 2026-11-23`"
    )


def test_the_commands_of_a_digest_exist_with_their_options() -> None:
    rows = [held(1, Account(9 * HOUR, 0, 5 * HOUR, 4 * HOUR, 0, 3 * HOUR))]
    commands = re.findall(
        r"`gpushare ([a-z]+)([^`]*)`", " ".join(digest("vision", WEEK, rows, [waited(1, 600)]))
    )
    assert {name for name, _ in commands} == {"usage", "waste", "idle", "report", "waits"}
    context = click.Context(cli)
    for name, options in commands:
        command = cli.get_command(context, name)
        assert command is not None
        known = {option for param in command.params for option in param.opts}
        assert set(re.findall(r"--[a-z]+", options)) <= known


async def test_the_history_of_a_node_is_asked(tmp_path: Path) -> None:
    async with Receiver().serving() as receiver:
        project = ProjectNotifyConfig(webhooks=(receiver.url("/vision"),), digest=True)
        world = OutboxWorld(tmp_path / "notifications.db", projects={"vision": project})
        async with world.running():
            pass
        world.clock.advance(7 * DAY_SECONDS)
        history = SqliteHistory(tmp_path / "history.db")
        async with world.running() as outbox:
            await digests(world, outbox, history).send_due()
            (got,) = await receiver.has(1)
        await history.close()
    assert "0 leases of vision held 0.0 GPU hours" in got.fields["text"]


@dataclass
class FakeHistory:
    asked: list[HistoryFilter] = field(default_factory=list)
    broken: bool = False

    async def accounts(self, wanted: HistoryFilter) -> list[LeaseAccount]:
        if self.broken:
            raise Unavailable("the history is away", hint="")
        self.asked.append(wanted)
        return [held(1, Account(held_permille_ms=5 * HOUR))]

    async def waits(self, _: HistoryFilter) -> list[LeaseWait]:
        return []


@dataclass
class FakeLoop:
    world: OutboxWorld
    state: NodeState = field(default_factory=NodeState)

    def now(self) -> float:
        return self.world.clock.now()


async def nothing() -> None:
    pass


@pytest.fixture
def history() -> FakeHistory:
    return FakeHistory()


def digests(world: OutboxWorld, outbox: object, history: FakeHistory | SqliteHistory) -> WeeklyDigest:
    return WeeklyDigest(
        cast("Loop", FakeLoop(world)),
        outbox,  # type: ignore[arg-type]
        cast("SqliteHistory", history),
        lambda: routes_of(world.site, world.projects),
        nothing,
    )


async def test_each_receiver_gets_the_weeks_that_end_after_it_was_configured_once(
    tmp_path: Path, history: FakeHistory
) -> None:
    async with Receiver().serving() as receiver:
        world = OutboxWorld(
            tmp_path / "notifications.db",
            NotifyConfig(webhooks=(receiver.url("/site"),)),
            {"vision": ProjectNotifyConfig(webhooks=(receiver.url("/vision"),), digest=True)},
        )
        for _ in range(2):
            async with world.running() as outbox:
                sender = digests(world, outbox, history)
                await sender.send_due()
                await sender.send_due()
            world.clock.advance(7 * DAY_SECONDS)
        async with world.running() as outbox:
            await digests(world, outbox, history).send_due()
            got = await receiver.has(2)
            world.site = replace(world.site, digest=True)
            await digests(world, outbox, history).send_due()
            got = await receiver.has(3)
    assert [one.path for one in got] == ["/vision", "/vision", "/site"]
    assert all(one.fields["kind"] == "digest" for one in got)
    assert "1 lease of vision held 5.0 GPU hours" in got[0].fields["text"]
    begin = history.asked[0]
    assert begin.until_ms - begin.since_ms == pytest.approx(7 * DAY_SECONDS * 1000, abs=3_600_000)
    assert datetime.fromtimestamp(begin.since_ms / 1000).weekday() == 0  # noqa: DTZ006


async def test_a_history_that_cannot_be_read_is_asked_again(tmp_path: Path, history: FakeHistory) -> None:
    async with Receiver().serving() as receiver:
        project = ProjectNotifyConfig(webhooks=(receiver.url("/vision"),), digest=True)
        world = OutboxWorld(tmp_path / "notifications.db", projects={"vision": project})
        async with world.running():
            pass
        world.clock.advance(7 * DAY_SECONDS)
        async with world.running() as outbox:
            sender, history.broken = digests(world, outbox, history), True
            with pytest.raises(Unavailable):
                await sender.send_due()
            history.broken = False
            await sender.send_due()
            assert len(await receiver.has(1)) == 1


def test_a_week_begins_on_monday_by_the_machines_calendar() -> None:
    monday = datetime(2026, 11, 23)  # noqa: DTZ001
    for at in (monday, datetime(2026, 11, 25, 12), datetime(2026, 11, 29, 23, 59)):  # noqa: DTZ001
        assert week_of(at.timestamp()) == monday
