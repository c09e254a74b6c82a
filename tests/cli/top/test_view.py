"""The picture of ``gpushare top`` as text: what it shows, in each size, and that no name harms a terminal.

``python -m tests.cli.top.test_view`` writes the snapshots anew.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from xml.etree.ElementTree import fromstring

import pytest

from gpushared.api.v1.history_messages import RecentUse
from gpushared.api.v1.messages import Gpu
from gpushared.cli import gpus, ps, queue
from gpushared.cli.table import text_width
from gpushared.cli.top.answers import Answers
from gpushared.cli.top.keys import GRID, HELP, HELP_LINES, TEXT, Ui
from gpushared.cli.top.panels import GPUS, LEASES, NODES, QUEUE, health, panels
from gpushared.cli.top.view import News, ScreenSize, as_text, picture, shared_out, whole_picture
from tests.cli.top import machines
from tests.cli.top.machines import NOW
from tests.cli.top.svg import of_a_busy_machine, svg

SNAPSHOTS = Path(__file__).parent / "snapshots"
STORY = ("l-0002: active, asks 0.25", "  why      " + "a long sentence " * 12, "  story")
CASES: dict[str, tuple[Callable[[], Answers], Ui, ScreenSize]] = {
    "busy-80x24": (machines.busy, Ui(), ScreenSize(80, 24)),
    "busy-120x40": (machines.busy, Ui(), ScreenSize(120, 40)),
    "busy-40x10": (machines.busy, Ui(), ScreenSize(40, 10)),
    "busy-gpus": (machines.busy, Ui(focus=GPUS, chosen_keys={GPUS: "/GPU-0005"}), ScreenSize(100, 24)),
    "busy-ascii": (machines.busy, Ui(), ScreenSize(100, 24, plain=True)),
    "reference": (machines.busy, Ui(), ScreenSize(100, 24)),
    "empty-80x24": (machines.empty, Ui(), ScreenSize(80, 24)),
    "big-80x24": (machines.big, Ui(chosen_keys={LEASES: "/l-0100"}, orders={LEASES: 1}), ScreenSize(80, 24)),
    "big-filter": (machines.big, Ui(filter_text="carol", focus=LEASES), ScreenSize(80, 24)),
    "wide-names": (machines.wide, Ui(), ScreenSize(90, 20)),
    "wide-names-ascii": (machines.wide, Ui(), ScreenSize(90, 20, plain=True)),
    "hostile": (machines.hostile, Ui(), ScreenSize(120, 20)),
    "pool": (machines.pool, Ui(focus=NODES), ScreenSize(100, 30)),
    "help": (machines.busy, Ui(screen=HELP, lines=HELP_LINES), ScreenSize(80, 30)),
    "story": (machines.busy, Ui(screen=TEXT, title="gpushare why l-0002", lines=STORY), ScreenSize(80, 20)),
    "hour": (
        lambda: machines.busy()._replace(recent=RecentUse(machines.recent())),
        Ui(screen=GRID),
        ScreenSize(100, 16),
    ),
    "hour-narrow": (
        lambda: machines.busy()._replace(recent=RecentUse(machines.recent())),
        Ui(screen=GRID),
        ScreenSize(40, 16),
    ),
}


@pytest.fixture(autouse=True)
def _utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def drawn(answers: Answers, ui: Ui, size: ScreenSize, trouble: str = "") -> str:
    made = panels(answers, NOW, filter_text=ui.filter_text, orders=ui.orders, plain=size.plain)
    return as_text(picture(News(answers, trouble), ui, made, size, NOW), colour=False)


@pytest.mark.parametrize("case", CASES)
def test_the_picture_is_as_it_was(case: str) -> None:
    make, ui, size = CASES[case]
    assert drawn(make(), ui, size) == (SNAPSHOTS / f"{case}.txt").read_text(encoding="utf-8")


def test_each_snapshot_is_of_a_case() -> None:
    assert {path.stem for path in SNAPSHOTS.glob("*.txt")} == set(CASES)


@pytest.mark.parametrize("width", [1, 7, 20, 39, 80, 200])
@pytest.mark.parametrize("height", [1, 2, 5, 9, 24, 60])
@pytest.mark.parametrize(
    "make", [machines.busy, machines.empty, machines.big, machines.wide, machines.hostile, machines.pool]
)
def test_the_picture_has_the_size_of_the_screen(make: Callable[[], Answers], width: int, height: int) -> None:
    answers = make()
    for ui in (Ui(), Ui(focus=QUEUE), Ui(screen=HELP, lines=HELP_LINES), Ui(screen=GRID)):
        made = panels(answers, NOW, filter_text="", orders={}, plain=False)
        lines = picture(News(answers, "the daemon is away"), ui, made, ScreenSize(width, height), NOW)
        assert len(lines) == height
        assert max(sum(text_width(one.text) for one in line) for line in lines) <= width


@pytest.mark.parametrize("screen", ["panels", GRID, TEXT])
@pytest.mark.parametrize("plain", [False, True])
def test_no_name_reaches_the_terminal_as_more_than_text(screen: str, *, plain: bool) -> None:
    answers = machines.hostile()
    ui = Ui(screen=screen, lines=(machines.HOSTILE,), title=machines.HOSTILE, message=machines.HOSTILE)
    size = ScreenSize(300, 60, plain)
    made = panels(answers, NOW, filter_text="", orders={}, plain=plain)
    for lines in (
        picture(News(answers, machines.HOSTILE), ui, made, size, NOW),
        whole_picture(News(answers, machines.HOSTILE), made, size, NOW),
    ):
        shown = "".join(one.text for line in lines for one in line)
        assert shown.isprintable()
        assert shown.isascii() or not plain
        assert "owned" in shown, "the name itself is shown"
        assert all(set(one.look) <= set("0123456789;") for line in lines for one in line)


def test_the_figures_are_those_of_the_listings() -> None:
    """Each cell of ``ps``, ``gpus`` and ``queue`` that the panels show is the same text."""
    answers = machines.busy()
    made = panels(answers, NOW, filter_text="", orders={}, plain=False)
    for row, gpu in zip(made[GPUS].rows, answers.gpus.gpus, strict=True):
        assert gpus.gpu_row(gpu, "", NOW).items() <= row.cells.items()
    by_id = {lease.id: lease for lease in answers.leases.leases}
    for row in made[LEASES].rows[: len(by_id) - 2]:
        assert row.cells == ps.lease_row(by_id[row.cells["lease"]], NOW)
    for row in made[QUEUE].rows:
        lease = by_id[row.cells["lease"]]
        assert lease.waiting is not None
        assert row.cells == queue.lease_row(lease, lease.waiting, NOW)


@pytest.mark.parametrize(
    ("mode", "trouble", "word"),
    [
        ("shared", "", "ok"),
        ("shared", "MPS is not installed", "trouble"),
        ("unhealthy", "fell off the bus", "unhealthy"),
        ("drained", "", "drained"),
        ("unknown", "", "unknown"),  # its node is silent
    ],
)
def test_the_health_of_a_gpu_is_one_word(mode: str, trouble: str, word: str) -> None:
    assert health(Gpu(machines.gpu(0, mode=mode, trouble=trouble))) == word


def test_an_answer_that_is_late_shows_its_age_and_the_reason() -> None:
    shown = drawn(machines.busy()._replace(at=NOW - 95), Ui(), ScreenSize(80, 24), "nobody listens there")
    assert "1m old" in shown
    assert "no answer for 1m: nobody listens there" in shown
    assert "l-0001" in shown, "what was known is still there"


@pytest.mark.parametrize(
    ("trouble", "said"), [("", "asking the daemon"), ("nobody listens", "nobody listens")]
)
def test_before_the_first_answer_the_picture_says_so(trouble: str, said: str) -> None:
    lines = picture(News(None, trouble), Ui(), {}, ScreenSize(40, 6), NOW)
    assert said in as_text(lines, colour=False)
    assert len(lines) == 6


def test_the_whole_picture_has_every_row() -> None:
    answers = machines.big()
    made = panels(answers, NOW, filter_text="", orders={}, plain=False)
    shown = as_text(whole_picture(News(answers), made, ScreenSize(80, 0), NOW), colour=False)
    assert all(f"l-{number:04}" in shown for number in (*range(190), *range(200, 210)))


def test_without_colour_there_is_no_escape_sequence() -> None:
    made = panels(machines.busy(), NOW, filter_text="", orders={}, plain=False)
    lines = whole_picture(News(machines.busy()), made, ScreenSize(80, 0), NOW)
    assert "\x1b" not in as_text(lines, colour=False)
    assert "\x1b[1m" in as_text(lines, colour=True)


@pytest.mark.parametrize(
    ("needs", "focus", "room", "expected"),
    [
        ({"a": 10, "b": 1, "c": 5}, "a", 100, {"a": 10, "b": 1, "c": 5}),
        ({"a": 10, "b": 200, "c": 12}, "b", 20, {"a": 6, "b": 8, "c": 6}),
        ({"a": 10, "b": 200, "c": 12}, "c", 20, {"a": 6, "b": 6, "c": 8}),
        ({"a": 10, "b": 200, "c": 12}, "b", 7, {"a": 3, "b": 4}),
        ({"a": 10, "b": 200, "c": 1}, "b", 2, {"b": 2}),
        ({"a": 10, "b": 200, "c": 1}, "b", 0, {}),
    ],
)
def test_the_panel_in_focus_gets_what_others_do_not_need(
    needs: dict[str, int], focus: str, room: int, expected: dict[str, int]
) -> None:
    assert shared_out(needs, focus, room) == expected


def test_the_chosen_row_is_marked_without_colour_too() -> None:
    shown = drawn(machines.big(), Ui(chosen_keys={LEASES: "/l-0150"}), ScreenSize(80, 24)).splitlines()
    assert [line.split()[0] for line in shown if line.startswith(">")] == [">l-0150"]


def test_the_reference_shows_the_picture() -> None:
    page = (Path(__file__).parents[3] / "docs/reference/commands.md").read_text(encoding="utf-8")
    shown = (SNAPSHOTS / "reference.txt").read_text(encoding="utf-8")
    assert f"```text\n{shown}```" in page


@pytest.mark.parametrize("dark", [False, True])
def test_the_picture_for_pages_has_the_same_text(*, dark: bool) -> None:
    made = panels(machines.busy(), NOW, filter_text="", orders={}, plain=False)
    lines = picture(News(machines.busy()), Ui(), made, ScreenSize(100, 24), NOW)
    drawing = fromstring(svg(lines, dark=dark))
    texts = [one.text or "" for one in drawing.iter("{http://www.w3.org/2000/svg}text")]
    assert "".join("".join(texts).split()) == "".join(as_text(lines, colour=False).split())
    assert len(of_a_busy_machine(dark=dark)) < 100_000


def write() -> None:
    os.environ["TZ"] = "UTC"
    time.tzset()
    SNAPSHOTS.mkdir(exist_ok=True)
    for case, (make, ui, size) in CASES.items():
        (SNAPSHOTS / f"{case}.txt").write_text(drawn(make(), ui, size), encoding="utf-8")


if __name__ == "__main__":
    write()
