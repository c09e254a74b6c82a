"""What each key does: the next state, and the call or the command that it stands for."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from gpushared.api.v1.history_messages import RecentUse
from gpushared.cli.top.actions import ACTIONS, ActionTarget, story, target_of
from gpushared.cli.top.answers import Answers, Scope, UseByMinute, narrowed
from gpushared.cli.top.keys import (
    GRID,
    HELP,
    HELP_LINES,
    PANELS,
    Do,
    Effect,
    Explain,
    Leave,
    Ui,
    chosen_row,
    press,
)
from gpushared.cli.top.panels import GPUS, LEASES, NODES, ORDERS, QUEUE, Panel, panels
from gpushared.client import Client
from tests.cli.standin import StandIn, ok
from tests.cli.top import machines
from tests.cli.top.machines import NOW


def made(answers: Answers, ui: Ui) -> Mapping[str, Panel]:
    return panels(answers, NOW, filter_text=ui.filter_text, orders=ui.orders, plain=False)


def pressed(ui: Ui, *keys: str, answers: Answers | None = None) -> tuple[Ui, Effect | None]:
    """The state after all keys, and the effect of the last one."""
    effect = None
    for key in keys:
        ui, effect = press(ui, key, made(answers or machines.busy(), ui))
    return ui, effect


def chosen(ui: Ui, answers: Answers | None = None) -> str:
    row = chosen_row(ui, made(answers or machines.busy(), ui))
    return row.key if row is not None else ""


def test_the_arrows_choose_a_row_and_stop_at_the_ends() -> None:
    ui, _ = pressed(Ui(), "down", "down")
    assert chosen(ui) == "/l-0002"
    assert chosen(pressed(ui, *["up"] * 9)[0]) == "/l-0000"
    assert chosen(pressed(ui, "end")[0]).startswith("/4711/")
    assert chosen(pressed(ui, "end", "home")[0]) == "/l-0000"
    assert chosen(pressed(Ui(), "page down", answers=machines.big())[0], machines.big()) == "/l-0010"


def test_the_chosen_lease_stays_chosen_in_another_order_and_its_place_when_it_is_gone() -> None:
    ui, _ = pressed(Ui(), "down", "down", "s")
    assert chosen(ui) == "/l-0002"
    fewer = machines.busy()
    fewer.leases.leases = tuple(lease for lease in fewer.leases.leases if lease.id != "l-0002")
    ui, _ = pressed(Ui(), "down", "down")
    assert chosen(ui, fewer) == "/l-0003"


def test_tab_goes_round_the_panels() -> None:
    ui, seen = Ui(), []
    for _ in range(4):
        ui, _ = pressed(ui, "tab", answers=machines.pool())
        seen.append(ui.focus)
    assert seen == [QUEUE, GPUS, NODES, LEASES]
    assert pressed(Ui(), "btab")[0].focus == GPUS


@pytest.mark.parametrize("focus", [GPUS, LEASES, QUEUE, NODES])
def test_every_order_sorts_every_row(focus: str) -> None:
    ui = Ui(focus=focus)
    names = []
    for _ in ORDERS[focus]:
        ui, _ = pressed(ui, "s", answers=machines.pool())
        panel = made(machines.pool(), ui)[focus]
        names.append(panel.order)
        assert len(panel.rows) == panel.total
    assert set(names) == {order.name for order in ORDERS[focus]}


def test_leases_are_sorted_by_what_the_order_says() -> None:
    def ids(order: str) -> list[str]:
        number = [one.name for one in ORDERS[LEASES]].index(order)
        return [row.cells["lease"] for row in made(machines.busy(), Ui(orders={LEASES: number}))[LEASES].rows]

    assert ids("idle")[0] == "l-0002"
    assert ids("user")[:3] == ["l-0000", "l-0004", "l-0008"]
    assert ids("memory")[-1] == "l-0003"
    assert ids("left")[-1] == "UNMANAGED"


def test_a_filter_is_typed_and_taken_back() -> None:
    ui, _ = pressed(Ui(), "/", "C", "a", "x", "backspace")
    assert ui.filter_text == "Ca"
    assert {row.cells["user"] for row in made(machines.busy(), ui)[LEASES].rows} == {"carol"}
    assert len(made(machines.busy(), ui)[GPUS].rows) == 8, "GPUs are no leases"
    typed, effect = pressed(ui, "enter")
    assert (typed.prompt, typed.filter_text, effect) == (None, "Ca", None)
    assert pressed(typed, "esc")[0].filter_text == ""
    assert pressed(ui, "esc")[0].filter_text == ""


def test_keys_of_a_filter_do_nothing_else() -> None:
    ui, effect = pressed(Ui(), "/", "q")
    assert (ui.filter_text, effect) == ("q", None)


def test_the_question_names_the_command_and_only_yes_does_it() -> None:
    ui, effect = pressed(Ui(), "k")
    assert effect is None
    assert ui.prompt is not None
    for key in ("n", "enter", "esc", "k", "down"):
        after, effect = pressed(ui, key)
        assert (after.prompt, effect) == (None, None), key
    _, effect = pressed(ui, "y")
    assert isinstance(effect, Do)
    assert effect.action.command(effect.target, effect.typed) == ("stop", "l-0000")


def test_an_extension_asks_how_much() -> None:
    ui, _ = pressed(Ui(), "e")
    _, effect = pressed(ui, *["backspace"] * 2, "3", "0", "m", "enter")
    assert isinstance(effect, Do)
    assert (effect.action.name, effect.typed) == ("extend", "30m")
    ui, effect = pressed(ui, "backspace", "backspace", "enter")
    assert (ui.message, effect) == ("nothing was done", None)


def test_a_paused_lease_is_resumed() -> None:
    ui = Ui(chosen_keys={LEASES: "/l-0003"})
    _, effect = pressed(ui, "p", "y")
    assert isinstance(effect, Do)
    assert effect.action.command(effect.target, "") == ("resume", "l-0003")


def test_logs_run_their_command_without_a_question() -> None:
    _, effect = pressed(Ui(), "l")
    assert isinstance(effect, Do)
    assert effect.action.do is None
    assert effect.action.command(effect.target, "") == ("logs", "-f", "-n", "100", "l-0000")


def test_the_story_and_the_reason_are_asked_for() -> None:
    for key, whole in (("enter", True), ("w", False)):
        _, effect = pressed(Ui(), key)
        assert isinstance(effect, Explain)
        assert (effect.target.name, effect.whole) == ("l-0000", whole)


def test_leaving_is_a_key_of_the_panels_and_elsewhere_it_leads_back() -> None:
    assert isinstance(pressed(Ui(), "q")[1], Leave)
    for key, screen in (("?", HELP), ("g", GRID)):
        ui, _ = pressed(Ui(), key)
        assert ui.screen == screen
        back, effect = pressed(ui, "q")
        assert (back.screen, effect) == (PANELS, None)


def test_a_text_is_moved_within_its_lines() -> None:
    ui = Ui(screen=HELP, lines=HELP_LINES)
    assert pressed(ui, "down", "down")[0].scroll == 2
    assert pressed(ui, "up")[0].scroll == 0
    assert pressed(ui, "end", "page down")[0].scroll == len(HELP_LINES) - 1


def test_the_help_names_every_key() -> None:
    first = " ".join(line[:19] for line in HELP_LINES)
    keys = {
        *(action.key for action in ACTIONS),
        *("enter", "w", "/", "s", "g", "?", "q", "tab", "up", "down"),
    }
    assert keys <= set(first.split())


def test_nothing_is_done_to_rows_that_no_command_here_can_name() -> None:
    """The id of a lease on another node may be that of another lease here."""
    ui = Ui(chosen_keys={LEASES: "b/l-0002"})
    for key in ("k", "p", "e", "l", "w", "enter"):
        after, effect = pressed(ui, key, answers=machines.pool())
        assert effect is None
        assert after.prompt is None
        assert after.message, key
    assert pressed(Ui(focus=GPUS), "k")[1] is None


def test_in_a_pool_the_job_of_a_lease_is_named() -> None:
    pool = machines.pool()
    _, effect = pressed(Ui(chosen_keys={LEASES: "a/l-0001"}), "k", "y", answers=pool)
    assert isinstance(effect, Do)
    assert effect.action.command(effect.target, "") == ("cancel", "k3m9x0p2qa")
    ui, effect = pressed(Ui(chosen_keys={LEASES: "a/l-0001"}), "p", answers=pool)
    assert (ui.prompt, effect) == (None, None)
    waiting = target_of(chosen_row(Ui(focus=QUEUE), made(pool, Ui())))
    assert waiting is not None
    assert (waiting.name, waiting.is_job) == ("k3m9x0p2qb", True)


def test_before_the_first_answer_only_leaving_and_reading_is_possible() -> None:
    for key in ("up", "end", "tab", "s", "k", "enter", "w", "/", "esc", "x"):
        assert press(Ui(), key, {}) == (Ui(), None)
    assert isinstance(press(Ui(), "q", {})[1], Leave)
    for key in ("?", "g"):
        ui, _ = press(Ui(), key, {})
        assert press(press(ui, "down", {})[0], "q", {})[0].screen == PANELS


def test_the_hour_is_moved_within_its_gpus() -> None:
    ui, _ = pressed(Ui(), "g", "end")
    assert ui.scroll == 7


def test_no_rows_means_no_target() -> None:
    for key in ("down", "k", "enter", "s"):
        _, effect = pressed(Ui(), key, answers=machines.empty())
        assert effect is None


# --- the calls behind the keys ---------------------------------------------------------------------------

LEASE = {"id": "l-1", "state": "active", "expires_at": NOW}
JOB = {"id": "k3m9x0p2qa", "state": "running"}


@pytest.mark.parametrize(
    ("key", "target", "typed", "call", "asked"),
    [
        ("k", ActionTarget("l-1", False, "alice", "active", True), "", "Leases/Stop", {"lease_id": "l-1"}),
        (
            "k",
            ActionTarget("k3m9x0p2qa", True, "alice", "queued", False),
            "",
            "Jobs/Cancel",
            {"job_id": "k3m9x0p2qa"},
        ),
        ("p", ActionTarget("l-1", False, "alice", "active", True), "", "Leases/Pause", {"lease_id": "l-1"}),
        (
            "p",
            ActionTarget("l-1", False, "alice", "suspended", True),
            "",
            "Leases/Resume",
            {"lease_id": "l-1"},
        ),
        (
            "e",
            ActionTarget("l-1", False, "alice", "active", True),
            "2h",
            "Leases/Extend",
            {"lease_id": "l-1", "time": "2h"},
        ),
    ],
)
def test_an_action_makes_the_call_of_its_command(
    standin: StandIn, key: str, target: ActionTarget, typed: str, call: str, asked: dict[str, str]
) -> None:
    standin.answers[call] = ok(JOB if target.is_job else LEASE)
    action = next(one for one in ACTIONS if one.key == key)
    assert action.do is not None
    assert action.do(Client(standin.host), target, typed).startswith(target.name)
    (made_call,) = standin.asked(call)
    assert asked.items() <= made_call.items()


def test_the_story_has_the_words_of_why(standin: StandIn) -> None:
    explained = {"lease": machines.lease(1), "story": [{"at": NOW, "state": "active", "text": "it began"}]}
    standin.answers["Leases/Explain"] = ok(explained)
    target = ActionTarget("l-0001", False, "bob", "active", True)
    whole = story(Client(standin.host), target, whole=True)
    assert whole[0].startswith("l-0001: active")
    assert whole[-1].endswith("it began")
    short = story(Client(standin.host), target, whole=False)
    assert short == whole[: len(short)]
    assert not any("it began" in line for line in short)


# --- what is shown of the answers ------------------------------------------------------------------------


def test_only_the_callers_own_leases_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpushared.cli.top.answers.os.getuid", lambda: 1001)
    mine = narrowed(machines.busy(), Scope(mine=True))
    assert {lease.owner for lease in mine.leases.leases} == {"bob"}
    assert not mine.leases.unmanaged
    assert len(mine.gpus.gpus) == 8
    monkeypatch.setattr("gpushared.cli.top.answers._user_name", lambda: "carol")
    of_pool = narrowed(machines.pool(), Scope(pool=True, mine=True))
    assert {lease.owner for lease in of_pool.leases.leases} == {"carol"}


def test_only_one_node_of_the_pool_is_shown() -> None:
    shown = narrowed(machines.pool(), Scope(pool=True, node="b"))
    assert {gpu.node for gpu in shown.gpus.gpus} == {"b"}
    assert {lease.node for lease in shown.leases.leases} == {"b", ""}, "those who wait may still go there"
    assert shown.nodes is not None
    assert [node.name for node in shown.nodes.nodes] == ["b"]


def test_minutes_come_from_the_history_then_from_what_is_seen() -> None:
    uses = UseByMinute()
    uses.take_history(RecentUse(machines.recent()))
    answers = machines.empty()
    (gpu,) = answers.gpus.gpus
    for ratio in (0.5, 1.0):
        gpu.utilization_ratio = ratio
        uses.take(answers._replace(at=NOW + 120))
    trend = uses.trends(NOW + 120)["/GPU-0000"]
    assert trend[-1] == 0.75
    assert trend[-2] is None, "nobody looked"
    assert trend[-5] == pytest.approx(0.63)
    assert len(trend) == 20
