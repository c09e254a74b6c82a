"""What the sharing benchmark's lines amount to. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from bench.gpu.observe import Observation

STEP = "sharing"


class Way(StrEnum):
    """How the clients come to the GPU."""

    ONE_BY_ONE = "one-by-one"
    TIME_SLICING = "time-slicing"
    BY_HAND = "mps-by-hand"
    GPUSHARED = "gpushared"
    UNEQUAL = "gpushared-unequal"


@dataclass(frozen=True, slots=True)
class Crowd:
    """So many clients of a kind, with these shares of the GPU (permille)."""

    kind: str
    shares: tuple[int, ...]

    @property
    def name(self) -> str:
        return f"{len(self.shares)}-{self.kind}" + ("" if len(set(self.shares)) == 1 else "-unequal")

    def ways(self) -> tuple[Way, ...]:
        """Unequal shares are gpushared's alone, beside the same clients without any."""
        if len(set(self.shares)) > 1:
            return (Way.TIME_SLICING, Way.UNEQUAL)
        return (Way.ONE_BY_ONE, Way.TIME_SLICING, Way.BY_HAND, Way.GPUSHARED)


CROWDS = (
    *(Crowd("infer", (1000 // count,) * count) for count in (1, 2, 4, 8)),
    Crowd("train", (500, 500)),
    Crowd("infer", (500, 250, 250)),
)


def summary(shares: Sequence[int], worked: Sequence[Mapping[str, Any]], *, in_turns: bool) -> dict[str, Any]:
    """Of one round of the benchmark, by its clients' lines: throughput, latencies, fairness, memory.

    Clients that work at the same time add up; clients in turns share the time. Fairness is what a client got
    of all rounds, over its share of all shares: 1 is what it leased.
    """
    rounds = [int(line["rounds"]) for line in worked]
    seconds = [float(line["seconds"]) for line in worked]
    if in_turns:
        throughput = sum(rounds) / sum(seconds)
    else:
        throughput = sum(count / taken for count, taken in zip(rounds, seconds, strict=True))
    rates = [count / taken for count, taken in zip(rounds, seconds, strict=True)]
    fairness = [rate / sum(rates) / (share / sum(shares)) for rate, share in zip(rates, shares, strict=True)]
    return {
        "rounds_per_second": throughput,
        "p50_seconds": [line["p50_seconds"] for line in worked],
        "p99_seconds": [line["p99_seconds"] for line in worked],
        "fairness": fairness,
        "memory_bytes": [line.get("memory_bytes") for line in worked],
    }


def throughput(observations: Sequence[Observation]) -> dict[tuple[str, str], float]:
    """The median of all rounds, by crowd and way; only what was measured."""
    found: dict[tuple[str, str], list[float]] = {}
    for one in observations:
        if one.measured and "rounds_per_second" in one.values:
            key = (str(one.values["crowd"]), str(one.values["way"]))
            found.setdefault(key, []).append(float(one.values["rounds_per_second"]))
    return {key: statistics.median(values) for key, values in found.items()}


def ratios(observations: Sequence[Observation]) -> dict[str, dict[str, float]]:
    """The throughput under gpushared over that by hand and that of time-slicing, by crowd, where measured."""
    medians = throughput(observations)

    def over(way: Way) -> dict[str, float]:
        return {
            crowd: mine / medians[crowd, way]
            for (crowd, which), mine in medians.items()
            if which == Way.GPUSHARED and medians.get((crowd, way))
        }

    return {
        "gpushared_to_by_hand": over(Way.BY_HAND),
        "gpushared_to_time_slicing": over(Way.TIME_SLICING),
    }
