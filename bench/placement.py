"""Measure how much of a fleet's GPUs the placement policies fill, and how long a decision takes.

Reads a folder with ``nodes.csv.gz`` and ``tasks.csv.gz`` in the columns of Alibaba's cluster-trace-gpu-v2023.
All tasks come in random order, then are drawn again until they ask for 1.3 times the GPUs there are. Each is
offered once, none leaves, none is tried again. What counts is the share of all GPUs that is placed.
"""

from __future__ import annotations

import argparse
import random
import resource
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from fgd import Fgd
from traces import Load, read_fleet, read_tasks, sequence, varied

from gpushared.domain.model.gpu import GpuId
from gpushared.domain.model.lease import Grant, LeaseId
from gpushared.domain.model.request import Request
from gpushared.domain.scheduling.placement.fleet import Fleet, NoPlace, Placement
from gpushared.domain.scheduling.placement.hosts import Host, HostFree
from gpushared.domain.scheduling.placement.policies import PolicyName, Together
from gpushared.domain.scheduling.placement.request_shape import Need

CHECK_EVERY = 10
"""Each so-manieth refusal is held against a search of all hosts."""


class FirstFit:
    """The first host in the list."""

    whole_gpus_last = False
    affinity_worth = 0.0

    def part(self, before: int, after: int) -> float:  # noqa: ARG002
        return 0.0

    def model(self, name: str) -> float:  # noqa: ARG002
        return 0.0

    def host(self, need: Need, free: HostFree, taken_permille: int, broken: int) -> float:  # noqa: ARG002
        return 0.0


class Random:
    """A random place among those that fit."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def place(self, fleet: Fleet, request: Request) -> Placement | NoPlace:
        need = Need.of(request)
        order = self._random.sample(fleet.hosts, len(fleet.hosts))
        host = next((host.name for host in order if fits(need, fleet.free(host.name))), None)
        if host is None:
            return NoPlace({})
        capacities = [capacity for capacity in fleet.free(host).capacities if need.fits(capacity)]
        chosen = self._random.sample(capacities, need.count)
        return Placement(host, tuple(Grant(capacity.gpu.id, *need.on(capacity.gpu)) for capacity in chosen))


Placer = Callable[[Fleet, Request], Placement | NoPlace]


def by_fleet(fleet: Fleet, request: Request) -> Placement | NoPlace:
    return fleet.place(request)


@dataclass
class Run:
    """Hold the result of one run over one sequence; seconds of CPU time, since machines have other work too."""

    placed_percent: float
    seconds: list[float] = field(default_factory=list)
    refused: int = 0
    checked: int = 0
    wrong: int = 0
    beside_percent: float = 0.0
    """Of the slices of GPUs, those that share their GPU with another one of their project."""


def fits(need: Need, free: HostFree) -> bool:
    """Return True if the host can take the request, without any of the fleet's short cuts."""
    if max((capacity.free_permille for capacity in free.capacities), default=0) < (
        need.request.compute_permille or 0
    ):
        return False
    if need.cpu_milli > free.cpu_milli or need.memory_bytes > free.memory_bytes:
        return False
    return sum(need.fits(capacity) for capacity in free.capacities) >= need.count


def replay(hosts: Sequence[Host], load: Load, policy: str, seed: int, together: Together) -> Run:
    """Offer each request of the load once."""
    fleet, place = prepared(hosts, load, policy, seed, together)
    gpus = sum(len(host.gpus) for host in hosts)
    run, placed = Run(0.0), 0
    slices: Counter[tuple[str, GpuId]] = Counter()
    for number, request in enumerate(load):
        start = time.process_time()
        fleet.see(request)
        answer = place(fleet, request)
        if isinstance(answer, Placement):
            fleet.take(LeaseId(str(number)), request, answer)
            fleet.commit()
        run.seconds.append(time.process_time() - start)
        if isinstance(answer, Placement):
            placed += sum(grant.compute_permille for grant in answer.grants)
            if not request.wants_whole_gpus:
                slices.update((request.project, grant.gpu) for grant in answer.grants)
            continue
        run.refused += 1
        if run.refused % CHECK_EVERY == 0:
            need = Need.of(request)
            run.checked += 1
            run.wrong += any(fits(need, fleet.free(host.name)) for host in hosts)
    run.placed_percent = placed / gpus / 10
    alone = sum(count == 1 for count in slices.values())
    run.beside_percent = 100 * (1 - alone / max(1, slices.total()))
    return run


def owned(load: Load, projects: int, seed: int) -> Load:
    """The requests as those of so many projects, each of which asks for as much; 0 leaves them alone."""
    chance = random.Random(seed)
    return [replace(one, project=f"p{chance.randrange(projects)}") if projects else one for one in load]


def prepared(
    hosts: Sequence[Host], load: Load, policy: str, seed: int, together: Together
) -> tuple[Fleet, Placer]:
    match policy:
        case "random":
            return Fleet(hosts, PolicyName.PACK), Random(seed).place
        case "first-fit":
            return Fleet(hosts, FirstFit()), by_fleet
        case "fgd":
            return Fleet(hosts, PolicyName.PACK), Fgd(load, hosts).place
        case _:
            return Fleet(hosts, PolicyName(policy), together=together), by_fleet


POLICIES = ("random", "spread", "pack", "first-fit", "fgd", "fragmentation")
HEAD = (
    *("policy", "placed % mean", "min", "max", "ms median", "mean", "p99"),
    *("refused", "checked", "wrong", "beside %"),
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("traces", type=Path)
    parser.add_argument("--seeds", default="42-51")
    parser.add_argument("--policy", action="append", choices=POLICIES)
    parser.add_argument(
        "--vary", default="", help="half|again|kinds|sizes|hosts[:SEED]: another list made of this one"
    )
    parser.add_argument("--projects", type=int, default=0, help="the tasks are those of so many projects")
    parser.add_argument("--together", type=Together, choices=list(Together), default=Together.OFF)
    options = parser.parse_args()
    first, _, last = options.seeds.partition("-")
    hosts, tasks = varied(read_fleet(options.traces), read_tasks(options.traces), options.vary)
    print(
        f"{len(hosts)} hosts, {sum(len(host.gpus) for host in hosts)} GPUs, {len(tasks)} tasks {options.vary}"
    )
    print(("{:14}" + "{:>14}" + "{:>10}" * 9).format(*HEAD))
    wrong = 0
    for policy in options.policy or POLICIES:
        runs = [
            replay(
                hosts,
                owned(sequence(tasks, hosts, seed), options.projects, seed),
                policy,
                seed,
                options.together,
            )
            for seed in range(int(first), int(last or first) + 1)
        ]
        show(policy, runs)
        wrong += sum(run.wrong for run in runs)
    used = resource.getrusage(resource.RUSAGE_SELF)
    print(f"CPU {used.ru_utime + used.ru_stime:.0f} s, {used.ru_maxrss / 1024:.0f} MiB")
    return 1 if wrong else 0


def show(policy: str, runs: Sequence[Run]) -> None:
    placed = [run.placed_percent for run in runs]
    times = sorted(1000 * second for run in runs for second in run.seconds)
    print(
        f"{policy:14}{statistics.mean(placed):14.2f}{min(placed):10.2f}{max(placed):10.2f}"
        f"{statistics.median(times):10.3f}{statistics.mean(times):10.3f}{times[int(len(times) * 0.99)]:10.3f}"
        f"{sum(run.refused for run in runs):10}{sum(run.checked for run in runs):10}"
        f"{sum(run.wrong for run in runs):10}{statistics.mean(run.beside_percent for run in runs):10.1f}",
        flush=True,
    )


if __name__ == "__main__":
    raise SystemExit(main())
