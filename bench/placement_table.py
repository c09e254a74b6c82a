"""Measure what share of the GPUs asked for each placement policy places, on many lists made of one.

Reads what ``placement.py`` reads. Each list is offered once in random order until 1.3 times the GPUs there are
have been asked for. The table has the share of what was asked for, or of all GPUs where that is less, that was
placed when 90, 100 and 130 % of the GPUs had been asked for, and the time of a decision.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from placement import POLICIES, prepared
from traces import asked_permille, read_fleet, read_tasks, sequence, varied

from gpushared.domain.model.lease import LeaseId
from gpushared.domain.scheduling.placement.fleet import Placement
from gpushared.domain.scheduling.placement.policies import Together

LISTS = (
    *("", "half:1", "again:1", "kinds:1", "kinds:2", "sizes:2", "sizes:3", "hosts:1", "hosts:2"),
    *("gangs:1", "gangs:2", "bound:1", "shared:1", "cpu:1"),
)
DEMANDS = (0.9, 1.0, 1.3)


@dataclass(frozen=True, slots=True)
class Row:
    """One policy on one list."""

    placed_percent: tuple[float, ...]
    """For each of the demands."""
    mean_milliseconds: float


def measure(traces: Path, how: str, policy: str, seed: int) -> Row:
    hosts, tasks = varied(read_fleet(traces), read_tasks(traces), how)
    load = sequence(tasks, hosts, seed)
    fleet, place = prepared(hosts, load, policy, seed, Together.OFF)
    gpus = 1000 * sum(len(host.gpus) for host in hosts)
    asked = placed = 0
    found: list[float] = []
    demands = iter(DEMANDS)
    due = next(demands)
    began = time.process_time()
    for number, request in enumerate(load):
        fleet.see(request)
        answer = place(fleet, request)
        if isinstance(answer, Placement):
            fleet.take(LeaseId(str(number)), request, answer)
            fleet.commit()
            placed += sum(grant.compute_permille for grant in answer.grants)
        asked += asked_permille(request)
        while asked >= due * gpus and len(found) < len(DEMANDS):
            found.append(100 * placed / min(asked, gpus))
            due = next(demands, 2.0)
    seconds = time.process_time() - began
    return Row(tuple(found), 1000 * seconds / len(load))


def rows(traces: Path, lists: list[str], policy: str, seed: int) -> Iterator[Row]:
    for how in lists:
        row = measure(traces, how, policy, seed)
        cells = "".join(f"{one:9.2f}" for one in row.placed_percent)
        print(f"{how or 'as it is':12}{policy:15}{cells}{row.mean_milliseconds:9.3f}", flush=True)
        yield row


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("traces", type=Path)
    parser.add_argument("--policy", action="append", choices=POLICIES)
    parser.add_argument("--list", action="append", dest="lists", help="default: all of them")
    parser.add_argument("--seed", type=int, default=42)
    words = parser.parse_args()
    heads = "".join(f"{f'{demand:.0%}':>9}" for demand in DEMANDS)
    print(f"{'list':12}{'policy':15}{heads}{'ms mean':>9}")
    for policy in words.policy or ("fragmentation",):
        done = list(rows(words.traces, words.lists or list(LISTS), policy, words.seed))
        means = "".join(
            f"{statistics.mean(column):9.2f}"
            for column in zip(*(row.placed_percent for row in done), strict=True)
        )
        print(f"{'mean':12}{policy:15}{means}{statistics.mean(row.mean_milliseconds for row in done):9.3f}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
