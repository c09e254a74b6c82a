"""A node's history comes to a coordinator in parts, and whatever is cut, repeated or lost, the sums are the same."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest.mock import patch

from hypothesis import given, settings
from hypothesis import strategies as st

from gpushared.domain.accounting.account import Account
from gpushared.domain.accounting.summary import LeaseSummary, summary_of
from gpushared.domain.model.gpu import MIB, GpuId
from gpushared.domain.model.lease import LeaseId
from gpushared.domain.model.span import Span
from gpushared.pool.link.history_wire import part_bytes, position_bytes, read_part, read_position, unpack
from gpushared.storage.history import HistoryFile, history_parts
from gpushared.storage.history.history_parts import HistoryPart, HistoryPosition
from gpushared.storage.history.hour_use import HOUR_MS, HourUse
from gpushared.storage.history.records import GpuFacts, HistoryBatch, HistoryFilter, KeepHistory, SourceName
from gpushared.testing import fake_lease

BEGIN_MS = 500_000 * HOUR_MS
GPUS = (GpuId("GPU-0"), GpuId("GPU-1"))
NODE, POOL = "n1", "lab"
STEP_MS = 600_000


def open_file(folder: str, name: str) -> HistoryFile:
    return HistoryFile(Path(folder) / f"{name}.db", busy_seconds=1.0)


@dataclass
class Holding:
    lease: LeaseId
    gpu: GpuId
    since_ms: int
    waits: bool


@dataclass
class Played:
    """A node that plays leases, and writes its file as the recorder does."""

    file: HistoryFile
    now_ms: int = BEGIN_MS
    journal: int = 1
    number: int = 0
    begun: int = 0
    held: list[Holding] = field(default_factory=list)
    spans: list[tuple[int, Span]] = field(default_factory=list)
    hours: dict[tuple[str, str], dict[int, HourUse]] = field(default_factory=dict)
    unwritten: dict[LeaseId, LeaseSummary] = field(default_factory=dict)

    def begin(self, gpu: int, *, waits: bool) -> None:
        self.begun += 1
        lease = LeaseId(f"l-{self.begun:04}")
        self.held.append(Holding(lease, GPUS[gpu], self.now_ms, waits))
        self.unwritten[lease] = replace(summary_of(fake_lease(1)), lease=lease, created_at=self.now_ms / 1000)

    def end(self, which: int) -> None:
        if self.held:
            one = self.held.pop(which % len(self.held))
            self.number += 1
            self.spans.append((self.number, self.span(one)))
            summary = replace(summary_of(fake_lease(1)), lease=one.lease, created_at=one.since_ms / 1000)
            self.unwritten[one.lease] = replace(summary, ended_at=self.now_ms / 1000, outcome="finished")

    def span(self, one: Holding) -> Span:
        held = (None, 0, 0) if one.waits else (one.gpu, 250, 20_000 * MIB)
        return Span(one.lease, "vision", one.since_ms, self.now_ms, *held)

    def work(self) -> None:
        for one in self.held:
            if not one.waits:
                hours = self.hours.setdefault((one.lease, one.gpu), {})
                hour = hours.setdefault(self.now_ms // HOUR_MS, HourUse(self.now_ms // HOUR_MS))
                hour.seen_permille_ms += 250 * STEP_MS
                hour.active_permille_ms += 250 * STEP_MS
                hour.used_permille_ms += 100 * STEP_MS
                hour.memory_ms += STEP_MS
                hour.memory_max_mib = max(hour.memory_max_mib, 5_000 + len(self.hours))
        self.now_ms += STEP_MS

    def write(self) -> None:
        waits = {(one.lease, "no-gpu"): self.now_ms - one.since_ms for one in self.held if one.waits}
        self.file.write(
            HistoryBatch(
                SourceName("box", self.journal),
                self.now_ms,
                gpus=tuple(GpuFacts(gpu, str(index), "H100", 80_000) for index, gpu in enumerate(GPUS)),
                leases=tuple(self.unwritten.values()),
                spans=tuple(self.spans),
                open_spans=tuple(self.span(one) for one in self.held),
                waits=waits,
                uses={key: tuple(hours.values()) for key, hours in self.hours.items()},
            )
        )
        self.unwritten.clear()
        self.spans.clear()
        newest = self.now_ms // HOUR_MS
        self.hours = {
            key: {hour: use for hour, use in hours.items() if hour >= newest}
            for key, hours in self.hours.items()
        }

    def replace_journal(self) -> None:
        """The journal is lost, and with it what was open."""
        self.write()
        self.journal, self.number = self.journal + 1, 0
        self.held.clear()
        self.hours.clear()
        self.now_ms += 1000
        self.write()


class Gathering:
    """A coordinator that asks for part after part; each message may be lost on its way."""

    def __init__(self, node: HistoryFile, here: HistoryFile) -> None:
        self.node, self.here = node, here
        self.position: HistoryPosition | None = None
        self.last: HistoryPart | None = None

    def ask(self) -> HistoryPart | None:
        if self.position is None:
            self.position = self.here.position(NODE)
        asked = read_position(position_bytes(self.position))
        return read_part(unpack(part_bytes(self.node.part(asked, POOL, NODE))), 2 * BEGIN_MS)

    def take(self) -> bool:
        part = self.ask()
        if part is None:
            return False
        self.here.write(part.batch(NODE))
        self.position, self.last = part.next, part
        return part.more

    def write_again(self) -> None:
        """The answer was written and the coordinator ended before it could go on: it asks for it again."""
        if self.last is not None:
            self.here.write(self.last.batch(NODE))

    def restart(self) -> None:
        self.position = self.last = None

    def catch_up(self) -> None:
        while self.take():
            pass


def totals(file: HistoryFile) -> tuple[object, ...]:
    """Everything that commands tell of the file, without the name of the node."""
    everything = HistoryFilter()
    accounts = sorted(
        (one.lease, one.owner, one.gpu_label, one.peak_mib, repr(one.account))
        for one in file.accounts(everything)
    )
    waits = sorted((one.lease, one.waited_ms, repr(one.reasons)) for one in file.waits(everything))
    leases = sorted(
        (one.summary.lease, one.summary.outcome, one.run_ms, one.waited_ms, one.ended_ms or 0)
        for one in file.leases(everything, 10_000)
    )
    return accounts, waits, leases


def held(file: HistoryFile) -> int:
    return sum((one.account for one in file.accounts(HistoryFilter())), Account()).held_permille_ms


@contextmanager
def small_parts(rows: int) -> Iterator[None]:
    with patch.object(history_parts, "ROWS", rows):
        yield


BEGIN = st.tuples(st.just("begin"), st.integers(0, 3))
END = st.tuples(st.just("end"), st.integers(0, 9))
OTHER = st.tuples(
    st.sampled_from(["work", "work", "write", "take", "take", "lose", "again", "restart", "journal"]),
    st.just(0),
)


@given(st.integers(1, 6), st.lists(st.one_of(BEGIN, END, OTHER), max_size=60))
@settings(max_examples=60, deadline=None)
def test_the_coordinator_has_what_the_node_has(rows: int, steps: list[tuple[str, int]]) -> None:
    with TemporaryDirectory() as folder, small_parts(rows):
        node = Played(open_file(folder, "node"))
        gathering = Gathering(node.file, open_file(folder, "pool"))
        play: dict[str, Callable[[int], object]] = {
            "begin": lambda number: node.begin(number % 2, waits=number > 1),
            "end": node.end,
            "work": lambda _: node.work(),
            "write": lambda _: node.write(),
            "journal": lambda _: node.replace_journal(),
            "take": lambda _: gathering.take(),
            "lose": lambda _: gathering.ask(),
            "again": lambda _: gathering.write_again(),
            "restart": lambda _: gathering.restart(),
        }
        for step, number in steps:
            play[step](number)
            assert held(gathering.here) <= held(node.file)
        node.write()
        gathering.catch_up()
        assert totals(gathering.here) == totals(node.file)
        gathering.restart()
        gathering.catch_up()
        assert totals(gathering.here) == totals(node.file)
        node.file.close()
        gathering.here.close()


def test_an_hour_that_was_dropped_does_not_come_back(tmp_path: Path) -> None:
    """The coordinator may keep hours for a shorter time than the node, and has their sums."""
    node = Played(open_file(str(tmp_path), "node"))
    gathering = Gathering(node.file, open_file(str(tmp_path), "pool"))
    node.begin(0, waits=False)
    node.work()
    node.end(0)
    node.write()
    gathering.catch_up()
    (before,) = gathering.here.leases(HistoryFilter(), 9)
    gathering.here.prune(KeepHistory(minutes_days=0, hours_days=1), node.now_ms + 48 * HOUR_MS)
    gathering.restart()
    gathering.catch_up()
    (after,) = gathering.here.leases(HistoryFilter(), 9)
    assert after.account == before.account
    assert before.account.active_permille_ms == 250 * STEP_MS


def test_the_hour_that_is_under_way_counts_as_far_as_it_is_known(tmp_path: Path) -> None:
    """The coordinator has no minutes: of that hour it must not take the part that is over for a part of its sums."""
    node = Played(open_file(str(tmp_path), "node"))
    gathering = Gathering(node.file, open_file(str(tmp_path), "pool"))
    node.begin(0, waits=False)
    node.work()
    node.end(0)
    node.write()
    gathering.catch_up()
    (one,) = gathering.here.accounts(HistoryFilter(0, node.now_ms + 1))
    assert one.account.active_permille_ms == 250 * STEP_MS
    (half,) = gathering.here.accounts(HistoryFilter(0, node.now_ms - STEP_MS // 2))
    assert half.account.active_permille_ms == 250 * STEP_MS // 2


def test_image_and_names_leave_the_node_for_jobs_of_the_pool_only(tmp_path: Path) -> None:
    file = open_file(str(tmp_path), "node")
    secret = replace(
        summary_of(fake_lease(1)),
        image="secret",
        container_name="secret",
        outcome_text="secret",
        job="secret",
        attempt=1,
        owner="ada",
    )
    names = {"local": "", "ours": POOL, "other": "elsewhere"}
    leases = tuple(replace(secret, lease=LeaseId(name), pool=pool) for name, pool in names.items())
    file.write(HistoryBatch(SourceName("box", 1), BEGIN_MS, leases=leases))
    part = file.part(HistoryPosition(), POOL, NODE)
    assert part is not None
    summaries = {lease.lease: lease for lease in part.leases}
    assert summaries[LeaseId("ours")] == leases[1]
    for name in ("local", "other"):
        assert "secret" not in repr(summaries[LeaseId(name)])
        assert summaries[LeaseId(name)].owner == "ada"
    without = file.part(HistoryPosition(), "", NODE)
    assert without is not None
    assert all("secret" not in repr(lease) for lease in without.leases)
