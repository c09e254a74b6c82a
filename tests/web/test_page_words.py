"""The page's scripts write figures as the command line does, and apply changes as the daemon makes them."""

from __future__ import annotations

import json
import random
import subprocess
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest

from gpushared.api.v1.messages import Gpu, Grant, Lease
from gpushared.cli import gpus, history_options, ps, text
from gpushared.web.assets import FOLDER
from gpushared.web.changes import change_of
from tests.web.page_changes import applied

NOW = 1_795_000_000.0
MIB, GIB = 1 << 20, 1 << 30
CALLER = """
const [file, calls] = JSON.parse(await new Response(process.stdin).text());
const module = await import(file);
console.log(JSON.stringify(calls.map(([name, values]) => module[name](...values))));
"""

Calls = Sequence[tuple[str, Sequence[object]]]
Page = Callable[[str, Calls], list[Any]]


@pytest.fixture(scope="session")
def page(tsc: Path) -> Page:
    """Call functions of one of the page's modules; the compiler's interpreter runs them."""
    assert tsc

    def call(module: str, calls: Calls) -> list[Any]:
        done = subprocess.run(
            ["node", "--input-type=module", "--eval", CALLER],
            input=json.dumps([(FOLDER / module).as_uri(), calls]),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        answers: list[Any] = json.loads(done.stdout)
        return answers

    return call


def sizes() -> Iterable[int]:
    """Sizes in all units, among them those in the middle between two figures."""
    chance = random.Random(19)
    yield from (0, 1, MIB - 1, MIB, 81559 * MIB, GIB, 1 << 40, 3 << 40)
    yield from (quarter * GIB // 4 for quarter in range(400))
    yield from (chance.randrange(1 << chance.randrange(1, 44)) for _ in range(400))


def moments() -> Iterable[float]:
    chance = random.Random(20)
    yield from (NOW + half * 30 for half in range(-200, 200))
    yield from (NOW + chance.uniform(-4e7, 4e7) for _ in range(400))


def spans() -> Iterable[float]:
    chance = random.Random(21)
    yield from (0, -5, 0.9, 59.9, 60, 3599, 3600, 86399, 86400, 90061)
    yield from (chance.uniform(0, 10 ** chance.uniform(0, 7)) for _ in range(400))


def pairs(values: Iterable[Any]) -> list[tuple[Any, Any]]:
    listed = list(values)
    return list(zip(listed, reversed(listed), strict=True))


RATIOS = [number / 1000 for number in range(1001)] + [number / 8 for number in range(24)]
CASES: dict[str, tuple[Callable[..., str], list[tuple[Any, ...]]]] = {
    "memory": (text.memory, [(size,) for size in sizes()]),
    "memoryPair": (text.memory_pair, [*pairs(sizes()), (None, GIB)]),
    "share": (text.share, [(permille,) for permille in range(0, 16_001, 7)]),
    "compute": (text.compute, [(one, other) for one in range(0, 1001, 83) for other in range(0, 1001, 71)]),
    "span": (text.span, [(None,), *((seconds,) for seconds in spans())]),
    "clock": (text.clock, [(moment, NOW) for moment in moments()]),
    "dayAndClock": (text.day_and_clock, [(moment, NOW) for moment in moments()]),
    "start": (
        lambda first, last, now: text.start(first or None, last or None, now),
        [(0, 0, NOW), *((at, 0, NOW) for at in moments()), *((0, at, NOW) for at in moments())]
        + [(first, first + 60 * place, NOW) for place, first in enumerate(moments())],
    ),
    "percent": (history_options.percent, [(None,), *((ratio,) for ratio in RATIOS)]),
    "hours": (history_options.hours, [(size * 1000,) for size in (*range(0, 4000, 45), 36_000, 1_234_567)]),
    "lasted": (history_options.lasted, [(int(1000 * seconds),) for seconds in spans()]),
}


@pytest.mark.parametrize("name", CASES)
def test_a_figure_reads_as_the_command_line_writes_it(name: str, page: Page) -> None:
    write, cases = CASES[name]
    assert page("format.js", [(name, case) for case in cases]) == [write(*case) for case in cases]


def grant(**more: object) -> dict[str, object]:
    return {
        "gpu_uuid": "GPU-0",
        "gpu_index": 0,
        "gpu_name": "NVIDIA H100",
        "gpu_label": "0",
        "memory_bytes": str(20 * GIB + 256 * MIB),
        "compute_permille": 250,
        "compute_limit_permille": 0,
        **more,
    }


GRANTS: list[list[dict[str, object]]] = [
    [],
    [grant()],
    [grant(compute_limit_permille=1000)],
    [grant(compute_permille=1000)],
    [grant(compute_permille=500), grant(compute_permille=500, gpu_index=1, gpu_label="1:2")],
    [grant(compute_permille=1000, gpu_label=""), grant(compute_permille=1000)],
]


def test_what_a_lease_holds_reads_as_the_command_line_writes_it(page: Page) -> None:
    leases = [Lease({"grants": grants}) for grants in GRANTS]
    assert page("format.js", [("grantedShare", [grants]) for grants in GRANTS]) == list(map(ps.share, leases))
    told = page("format.js", [("holding", [grants]) for grants in GRANTS[1:]])
    assert told == list(map(ps.holding, leases[1:]))
    assert [Grant(one).memory_bytes for one in GRANTS[1]] == [20 * GIB + 256 * MIB]


@pytest.mark.parametrize(
    "outcome",
    [None, {"kind": "finished", "exit_code": 3}, {"kind": "stopped"}, {"kind": "finished", "exit_code": 0}],
)
def test_the_state_of_a_lease_reads_as_the_command_line_writes_it(
    outcome: dict[str, object] | None, page: Page
) -> None:
    lease = {"state": "ended" if outcome else "active", **({"outcome": outcome} if outcome else {})}
    assert page("format.js", [("leaseState", [lease])]) == [ps.state(Lease(lease))]


def test_the_free_part_of_a_gpu_reads_as_the_command_line_writes_it(page: Page) -> None:
    free = [{"compute_free_permille": 150, "memory_free_bytes": str(size)} for size in sizes()]
    rows = [gpus.gpu_row(Gpu(one), "n", NOW)["free"] for one in free]
    assert page("format.js", [("freeSize", [one]) for one in free]) == rows


@pytest.mark.parametrize(
    "word",
    ["plain", "<img onerror=x>", "\u202eevil", "a\x1b[31mb", "\U000e0041", "\ue000", "\u2028", "é", "日本"],
)
def test_characters_that_nobody_sees_are_escaped_as_in_a_terminal(word: str, page: Page) -> None:
    assert page("dom.js", [("printable", [word])]) == [text.printable(word)]


def test_a_story_has_the_times_of_the_command_line(page: Page) -> None:
    wanted = [time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(moment)) for moment in moments()]
    assert page("format.js", [("stamp", [moment]) for moment in moments()]) == wanted


def answers() -> Iterable[dict[str, Any]]:
    """Answers as one watches them: items come, go, change, and change their places; fields come and go."""
    chance = random.Random(22)
    while True:
        ids = chance.sample("abcdef", chance.randrange(7))
        leases = [{"id": name, "state": chance.choice(["queued", "active"])} for name in ids]
        yield {
            "leases": leases,
            "notices": chance.choices(["a node is silent", "another"], k=chance.randrange(3)),
            "more": chance.randrange(2),
            **({"lease": {"id": "a"}} if chance.random() < 0.5 else {}),
        }


def test_a_page_has_the_answer_that_the_daemon_has_after_each_change(page: Page) -> None:
    made = answers()
    steps = [(next(iter(made)), next(iter(made))) for _ in range(300)]
    changes = [(old, change_of(old, new)) for old, new in steps]
    assert page("stream.js", [("changed", [old, change]) for old, change in changes]) == [
        new for _, new in steps
    ]
    assert [applied(old, change) for old, change in changes] == [new for _, new in steps]
