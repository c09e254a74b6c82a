"""Measure how much of one host each placement policy fills, since a node places on its own GPUs only.

Reads what ``placement.py`` reads. Hosts of 8 GPUs are drawn, each gets random tasks of a list, offered once,
until 1.3 times its GPUs have been asked for. The policies see the same hosts and tasks, and the learning ones
have seen a thousand tasks before. The table has the share of what was asked for, or of the GPUs where that is
less, that is placed, and the standard error of the difference from ``pack``.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from placement_table import DEMANDS
from traces import asked_permille, read_fleet, read_tasks, varied

from gpushared.domain.model.lease import LeaseId
from gpushared.domain.model.request import Request
from gpushared.domain.scheduling.placement.demand_profile import DemandProfile
from gpushared.domain.scheduling.placement.fleet import Fleet, Placement
from gpushared.domain.scheduling.placement.hosts import Host
from gpushared.domain.scheduling.placement.policies import PolicyName
from gpushared.domain.scheduling.placement.request_shape import size_of

LISTS = "", "kinds:1", "kinds:2", "sizes:2", "gangs:1", "bound:1", "shared:1", "cpu:1"
GPUS = 8
SEEN = 1000


def placed(
    host: Host, load: Sequence[Request], policy: PolicyName, demand_profile: DemandProfile
) -> list[float]:
    """Return the percentage placed at each of the demands."""
    fleet = Fleet([host], policy, demand_profile=demand_profile.copy())
    gpus, asked, held = 1000 * GPUS, 0, 0
    found: list[float] = []
    for number, request in enumerate(load):
        fleet.see(request)
        answer = fleet.place(request)
        if isinstance(answer, Placement):
            fleet.take(LeaseId(str(number)), request, answer)
            fleet.commit()
            held += sum(grant.compute_permille for grant in answer.grants)
        asked += asked_permille(request)
        while len(found) < len(DEMANDS) and asked >= DEMANDS[len(found)] * gpus:
            found.append(100 * held / min(asked, gpus))
    return found


def _load(tasks: Sequence[Request], chance: random.Random) -> list[Request]:
    load, asked = list[Request](), 0
    while asked < max(DEMANDS) * 1000 * GPUS:
        load.append(chance.choice(tasks))
        asked += asked_permille(load[-1])
    return load


def measure(traces: Path, how: str, times: int) -> None:
    hosts, tasks = varied(read_fleet(traces), read_tasks(traces), how)
    whole = [host for host in hosts if len(host.gpus) == GPUS]
    chance, demand_profile = random.Random(5), DemandProfile()
    rows: dict[PolicyName, list[list[float]]] = {policy: [] for policy in PolicyName}
    for request in chance.choices(tasks, k=SEEN):
        size = size_of(request)
        if size is not None:
            demand_profile.see(size)
    for _ in range(times):
        host = chance.choice(whole)
        fitting = [one for one in tasks if not one.models or host.gpus[0].name in one.models]
        load = _load(fitting, chance)
        for policy, found in rows.items():
            found.append(placed(host, load, policy, demand_profile))
    for policy, found in rows.items():
        means = "".join(f"{statistics.mean(column):9.2f}" for column in zip(*found, strict=True))
        apart = [one[1] - other[1] for one, other in zip(found, rows[PolicyName.PACK], strict=True)]
        error = statistics.stdev(apart) / len(apart) ** 0.5
        print(
            f"{how or 'as it is':12}{policy:15}{means}{statistics.mean(apart):9.2f} +-{error:5.2f}",
            flush=True,
        )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("traces", type=Path)
    parser.add_argument("--times", type=int, default=400)
    said = parser.parse_args()
    heads = "".join(f"{f'{demand:.0%}':>9}" for demand in DEMANDS)
    print(f"{'list':12}{'policy':15}{heads}  from pack at 100 %")
    for how in LISTS:
        measure(said.traces, how, said.times)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
