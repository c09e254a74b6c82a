"""The plan of a chaos run: which faults happen when, and which work is handed in. A seed gives one plan.

All times are seconds from the begin of the run.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

NODES: Final = ("a", "b", "c")
LIVE_RESTORE: Final = frozenset({"a", "b"})
"""The engines of these nodes leave their containers running when they end; that of ``c`` ends them."""
BEAT_SECONDS: Final = 0.25
"""A job writes into its diary so often."""
STOP_AFTER_SECONDS: Final = 30
"""The shortest that a pool takes."""
LONG_SECONDS: Final = (80.0, 95.0)
"""Longer than a coordinator waits before it runs a job with ``--stop-after`` elsewhere."""
FAULTS_PER_MINUTE: Final = 6
WORK_PER_MINUTE: Final = 14
_OVERLAPPING_FAULTS: Final = 3
_CALM_SECONDS: Final = 4.0
"""Before the first fault there is work to harm."""


class FaultKind(StrEnum):
    """Each lasts for the fault's seconds; then it is healed."""

    KILL = "kill"
    """SIGKILL, and started again."""
    STOP = "stop"
    """SIGTERM, and started again."""
    FREEZE = "freeze"
    """SIGSTOP, then SIGCONT."""
    CUT = "cut"
    """The network cable is pulled."""
    FULL = "full"
    """The disk of the state directory is full."""
    RESTORE = "restore"
    """The coordinator begins anew with an older copy of its store."""
    SLOW = "slow"
    """Each write to the disk takes half a second; only where several coordinators are."""


@dataclass(frozen=True, slots=True)
class Fault:
    """``target`` is ``coordinator``, or a part and whose it is: ``daemon-a``, ``disk-coordinator``."""

    at_seconds: float
    kind: FaultKind
    target: str
    seconds: float

    @property
    def until_seconds(self) -> float:
        return self.at_seconds + self.seconds


class WorkKind(StrEnum):
    """The command that hands it in."""

    SUBMIT = "submit"
    RUN = "run"
    PAUSE = "pause"
    """Pause a lease that holds a GPU at that time, and resume it."""
    PREEMPT = "preempt"
    """Let such a lease give way, and resume it."""


@dataclass(frozen=True, slots=True)
class Work:
    """One command. ``codes``: one for each attempt; later attempts end with the last of them.

    ``lasting_seconds`` of PAUSE and PREEMPT: how long until it is resumed.
    """

    at_seconds: float
    kind: WorkKind
    key: str
    node: str
    pool: bool = False
    gpu: str = "0.1"
    beats: int = 8
    codes: tuple[int, ...] = (0,)
    array: int = 0
    retries: int = 0
    stop_after_seconds: int = 0
    remove: bool = False
    wait: bool = False
    follow: bool = False
    cancel_after_seconds: float | None = None
    lasting_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Plan:
    """What will be done, in the order of time."""

    seed: int
    seconds: float
    faults: tuple[Fault, ...]
    work: tuple[Work, ...]


_FAULTS: Final[tuple[tuple[FaultKind, str, int], ...]] = (
    (FaultKind.KILL, "daemon", 5),
    (FaultKind.STOP, "daemon", 4),
    (FaultKind.FREEZE, "daemon", 4),
    (FaultKind.KILL, "coordinator", 3),
    (FaultKind.STOP, "coordinator", 2),
    (FaultKind.FREEZE, "coordinator", 2),
    (FaultKind.KILL, "engine", 2),
    (FaultKind.STOP, "engine", 2),
    (FaultKind.FREEZE, "engine", 2),
    (FaultKind.CUT, "cable", 5),
    (FaultKind.FULL, "disk", 3),
    (FaultKind.FULL, "disk-coordinator", 1),
    (FaultKind.RESTORE, "coordinator", 1),
)
_OF_A_NODE: Final = frozenset({"daemon", "engine", "cable", "disk"})
_CAN_BE_LONG: Final = frozenset({"daemon", "cable"})
_LONG_RATIO: Final = 0.15
_FULL_SECONDS: Final = (6.0, 16.0)
_BEGIN_ON_FULL_RATIO: Final = 0.5
"""So often what has its disk full is started anew on it."""


def make_plan(seed: int, minutes: float, faults: int | None = None) -> Plan:
    """The same plan for the same arguments, always. ``faults``: how many, else by the minutes."""
    seconds = minutes * 60
    chance = random.Random(f"chaos {seed} {minutes} {faults}")
    count = faults if faults is not None else round(minutes * FAULTS_PER_MINUTE)
    planned = _plan_faults(chance, seconds, count)
    return Plan(seed, seconds, planned, _plan_work(chance, seconds, planned))


def _plan_faults(chance: random.Random, seconds: float, count: int) -> tuple[Fault, ...]:
    planned: list[Fault] = []
    apart = (seconds - _CALM_SECONDS) / max(count, 1)
    for number in range(count):
        at = _CALM_SECONDS + apart * (number + chance.random() * 0.8)
        planned.append(_choose_fault(chance, at, planned, seconds))
    return tuple(sorted(planned, key=lambda fault: (fault.at_seconds, fault.target)))


def _choose_fault(chance: random.Random, at: float, before: list[Fault], seconds: float) -> Fault:
    """One whose target has no other fault at the time; short where many faults are under way."""
    under_way = [fault for fault in before if fault.until_seconds + 2 > at]
    on_full = _begin_on_a_full_disk(chance, at, under_way)
    if on_full is not None:
        return on_full
    taken = {fault.target for fault in under_way}
    long = [fault for fault in under_way if fault.seconds >= LONG_SECONDS[0]]
    while True:
        kind, target, _ = chance.choices(_FAULTS, [weight for *_, weight in _FAULTS])[0]
        full = f"{target}-{chance.choice(NODES)}" if target in _OF_A_NODE else target
        if full in taken:
            continue
        is_crowded = len(under_way) - len(long) >= _OVERLAPPING_FAULTS - 1
        lasts = chance.uniform(0.2, 2.0) if is_crowded else chance.uniform(0.2, 12.0)
        if kind is FaultKind.FULL:
            lasts = chance.uniform(*_FULL_SECONDS)
        can_be_long = target in _CAN_BE_LONG and at + LONG_SECONDS[1] < seconds and not long
        if can_be_long and chance.random() < _LONG_RATIO:
            lasts = chance.uniform(*LONG_SECONDS)
        return Fault(round(at, 2), kind, full, round(lasts, 2))


def _begin_on_a_full_disk(chance: random.Random, at: float, under_way: list[Fault]) -> Fault | None:
    """Whatever has its disk full now is killed or stopped, and begins anew on it."""
    for fault in under_way:
        if fault.kind is FaultKind.FULL and fault.until_seconds > at + 3:
            whose = fault.target.removeprefix("disk-")
            target = whose if whose == "coordinator" else f"daemon-{whose}"
            is_free = all(one.target != target for one in under_way)
            if is_free and chance.random() < _BEGIN_ON_FULL_RATIO:
                kind = chance.choice((FaultKind.KILL, FaultKind.STOP))
                return Fault(round(at, 2), kind, target, round(chance.uniform(0.2, 1.0), 2))
    return None


_WORK: Final[tuple[tuple[str, int], ...]] = (
    ("local", 3),
    ("pool", 4),
    ("array", 2),
    ("retries", 2),
    ("stop-after", 2),
    ("run", 3),
    ("run-pool", 3),
    ("pause", 2),
    ("preempt", 1),
)
_OUTLASTING: Final = 4
"""So many jobs are handed in before each long fault that it may catch."""
_SIZES: Final = ("0.05", "0.1", "0.25", "0.5", "1")
_SIZE_WEIGHTS: Final = (3, 3, 3, 2, 2)


def _plan_work(chance: random.Random, seconds: float, faults: tuple[Fault, ...]) -> tuple[Work, ...]:
    count = round(seconds / 60 * WORK_PER_MINUTE)
    times = sorted(round(chance.uniform(0.0, seconds - 2), 2) for _ in range(count))
    chosen = [choose_work(chance, at, number) for number, at in enumerate(times)]
    long = [fault for fault in faults if fault.seconds >= LONG_SECONDS[0]]
    fenced = [_outlast(chance, fault, number) for fault in long for number in range(_OUTLASTING)]
    return tuple(sorted([*chosen, *fenced], key=lambda work: (work.at_seconds, work.key)))


def _outlast(chance: random.Random, fault: Fault, number: int) -> Work:
    """A job that is to be under way when a long fault begins, and to run elsewhere before it is over."""
    at = round(max(0.0, fault.at_seconds - chance.uniform(2.0, 6.0)), 2)
    beats = round(fault.seconds / BEAT_SECONDS) + chance.randint(0, 60)
    key = f"w-long-{round(fault.at_seconds)}-{number}"
    return Work(
        at, WorkKind.SUBMIT, key, NODES[number % len(NODES)], True, "1", beats,
        stop_after_seconds=STOP_AFTER_SECONDS, wait=number == 0,
    )  # fmt: skip


def choose_work(chance: random.Random, at: float, number: int) -> Work:
    """One piece of work, named by its number."""
    sort = chance.choices([name for name, _ in _WORK], [weight for _, weight in _WORK])[0]
    key, node = f"w{number:04d}", chance.choice(NODES)
    gpu = chance.choices(_SIZES, _SIZE_WEIGHTS)[0]
    beats, code = chance.randint(8, 60), chance.choice((0, 0, 0, 7))
    cancel = round(chance.uniform(0.5, 15.0), 2) if chance.random() < 0.12 else None
    wait, follow, remove = chance.random() < 0.6, chance.random() < 0.25, chance.random() < 0.3
    is_pool = chance.random() < 0.6
    match sort:
        case "pause" | "preempt":
            return Work(at, WorkKind(sort), key, node, lasting_seconds=round(chance.uniform(0.2, 6.0), 2))
        case "run" | "run-pool":
            pool = sort == "run-pool"
            return Work(at, WorkKind.RUN, key, node, pool, gpu, beats, (code,), remove=chance.random() < 0.7)
        case "stop-after":
            beats = chance.randint(60, 420)
            return Work(
                at, WorkKind.SUBMIT, key, node, True, gpu, beats, (0,),
                stop_after_seconds=STOP_AFTER_SECONDS, wait=wait,
            )  # fmt: skip
        case _:
            is_array, is_retried = sort == "array", sort == "retries"
            return Work(
                at, WorkKind.SUBMIT, key, node,
                pool=sort == "pool" or (sort != "local" and is_pool),
                gpu=gpu, beats=beats, codes=(3, 3, 0) if is_retried else (code,),
                array=chance.randint(3, 8) if is_array else 0,
                retries=2 if is_retried else 0,
                remove=remove, wait=wait,
                # With --rm there is no output after the end, and an array has no one output.
                follow=follow and not is_array and not remove,
                cancel_after_seconds=cancel,
            )  # fmt: skip
