"""Learn from the fleet's requests so far what a leftover part of a GPU is worth.

The demand profile is learned while deciding: no size is known beforehand but for a weak prior of halves.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import accumulate

from gpushared.domain.model.gpu import WHOLE_PERMILLE

PRIOR: Mapping[int, float] = {1000: 1.0, 500: 1.0, 250: 1.0}
MOST_GPUS = 16
"""Requests of so many whole GPUs and more of one host count alike."""
PATIENCE = 50.0
"""The number of further requests that a GPU is expected to see; each may take the rest of the GPU."""
FIRST_LESSON = 16
LESSON_GROWTH = 2.0
MEMORY = 20_000.0
"""When so many requests are counted, old ones count half: the demand profile follows the users' habits."""


@dataclass(frozen=True, slots=True)
class Size:
    """Hold the size of a request: GPUs, permille of each, and host CPU and memory for each 1000 permille.

    ``models``: the only GPU models that will do; empty for all.
    """

    count: int
    permille: int
    cpu_ratio: float
    memory_ratio: float
    models: frozenset[str] = frozenset()


@dataclass(slots=True)
class DemandProfile:
    """Count requests per size; ``lessons`` is how often the tables made of the counts have changed."""

    counts: dict[Size, float] = field(default_factory=dict)
    total: float = 0.0
    next_lesson: float = FIRST_LESSON
    lessons: int = 0
    leftover: list[float] = field(default_factory=lambda: expected_leftover(PRIOR))
    cpu: Scarcity = field(default_factory=lambda: Scarcity(()))
    memory: Scarcity = field(default_factory=lambda: Scarcity(()))
    too_few: list[float] = field(default_factory=lambda: unused_by_gangs({}))
    bound: Mapping[str, float] = field(default_factory=dict)
    """The part of all demand, in GPUs, that only GPUs of a model can serve."""

    def copy(self) -> DemandProfile:
        """Return a demand profile with its own counts.

        The tables are shared, since they are made anew and never changed.
        """
        return replace(self, counts=dict(self.counts))

    def see(self, size: Size) -> None:
        """Count one more request; the tables are made anew each time the count has doubled."""
        self.counts[size] = self.counts.get(size, 0.0) + 1.0
        self.total += 1.0
        if self.total >= self.next_lesson:
            self._learn()

    def _learn(self) -> None:
        if self.total >= MEMORY:
            self.counts = {size: count / 2 for size, count in self.counts.items() if count > 1.0}
            self.total = sum(self.counts.values())
        self.next_lesson = min(self.total * LESSON_GROWTH, MEMORY)
        self.lessons += 1
        sizes = dict(PRIOR)
        for size, count in self.counts.items():
            sizes[size.permille] = sizes.get(size.permille, 0.0) + count * size.count
        self.leftover = expected_leftover(sizes)
        weights = [(size, count * size.count * size.permille) for size, count in self.counts.items()]
        self.cpu = Scarcity((size.cpu_ratio, weight) for size, weight in weights)
        self.memory = Scarcity((size.memory_ratio, weight) for size, weight in weights)
        total = sum(weight for _, weight in weights) or 1.0
        gangs: dict[int, float] = {}
        bound: dict[str, float] = {}
        for size, weight in weights:
            if size.permille == WHOLE_PERMILLE:
                count = min(size.count, MOST_GPUS)
                gangs[count] = gangs.get(count, 0.0) + weight / total
            for model in size.models:
                bound[model] = bound.get(model, 0.0) + weight / total / len(size.models)
        self.too_few, self.bound = unused_by_gangs(gangs), bound


def expected_leftover(sizes: Mapping[int, float]) -> list[float]:
    """Return for each free permille of a GPU how much of it will stay idle if requests of these sizes come.

    A rest that fits no size stays idle. A rest that fits some sizes is taken, with the chance that one of
    them comes while somebody waits for the rest, and the remainder is a rest again.
    """
    total = sum(sizes.values())
    shares = sorted((size, count / total) for size, count in sizes.items() if 0 < size <= WHOLE_PERMILLE)
    leftover = [0.0] * (WHOLE_PERMILLE + 1)
    for rest in range(1, WHOLE_PERMILLE + 1):
        fitting = [(size, share) for size, share in shares if size <= rest]
        chance = sum(share for _, share in fitting)
        if not chance:
            leftover[rest] = float(rest)
            continue
        never = math.exp(-PATIENCE * chance)
        after = sum(share * leftover[rest - size] for size, share in fitting) / chance
        leftover[rest] = never * rest + (1.0 - never) * after
    return leftover


def unused_by_gangs(shares: Mapping[int, float]) -> list[float]:
    """Return for each number of untouched GPUs on a host the permille that whole requests leave unused.

    ``shares``: the part of all demand that requests of so many whole GPUs make. Requests of k GPUs leave the
    rest of the number by k unused, until other requests fill that rest.
    """
    return [
        WHOLE_PERMILLE * sum(share * (count % size) for size, share in shares.items() if size > 1)
        for count in range(MOST_GPUS + 1)
    ]


class Scarcity:
    """Tell for how much of a host's free GPUs its CPU (or memory) is too little for coming requests."""

    def __init__(self, demand: Iterable[tuple[float, float]]) -> None:
        """Take ``demand``: pairs of the amount wanted for 1000 permille of GPU, and that amount's weight."""
        ordered = sorted(pair for pair in demand if pair[0] > 0 and pair[1] > 0)
        total = sum(weight for _, weight in ordered) or 1.0
        self._ratios = [ratio for ratio, _ in ordered]
        self._weights = _sums_from([weight / total for _, weight in ordered])
        self._slopes = _sums_from([weight / total / ratio for ratio, weight in ordered])

    def stranded(self, amount: int, gpu_permille: int) -> float:
        """Return the permille of GPUs that are expected to get no CPU or memory out of ``amount``."""
        if gpu_permille <= 0:
            return 0.0
        ratio = amount * WHOLE_PERMILLE / gpu_permille
        above = bisect_right(self._ratios, ratio)
        return (self._weights[above] - ratio * self._slopes[above]) * gpu_permille


def _sums_from(values: list[float]) -> list[float]:
    """Return for each position the sum of the values from there on, and 0 at the end."""
    return [*accumulate(reversed(values), initial=0.0)][::-1]
