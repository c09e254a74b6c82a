"""Placement policies: each says with two numbers what a place costs. The lowest place wins.

``part`` judges one GPU by how much of it is free before and after (permille), ``host`` what the request does
to the rest of its host. Ties are broken the same way for all: the GPU that is left with less memory, the
lower index, the host that was listed first.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import Protocol

from gpushared.domain.fleet.hosts import UNLIMITED, Free
from gpushared.domain.fleet.mix import Mix
from gpushared.domain.fleet.need import Need
from gpushared.domain.gpu import WHOLE_PERMILLE

FREE_GPU_WEIGHT = 0.02
"""A free GPU on the host counts as much as a fiftieth of a GPU stranded there: enough to break ties."""
MEMORY_WEIGHT = 0.3
"""Host memory counts less than CPU: what a process asks for of it, it seldom uses."""

KIN_PERMILLE = 300.0
"""A little more than a quarter of a GPU, a usual size: worth a slice's best fit, never a whole GPU."""

Stranded = Callable[[int, int], float]


class PolicyName(StrEnum):
    """What the configuration may choose."""

    PACK = "pack"
    SPREAD = "spread"
    FRAGMENTATION = "fragmentation"


class Together(StrEnum):
    """Whose leases are put together where that costs little."""

    OFF = "off"
    PROJECT = "project"


class Policy(Protocol):
    """What a place costs."""

    whole_gpus_last: bool
    """Whether a GPU that nobody uses is left alone while a slice fits elsewhere."""
    kin_worth: float
    """What it is worth for a slice to be on a GPU with others of its project, in the unit of ``part``."""

    def part(self, before: int, after: int) -> float:
        """The cost of leaving ``after`` permille of a GPU that had ``before``."""

    def host(self, need: Need, free: Free, taken: int) -> float:
        """The cost for the host when ``taken`` permille of its GPUs go, and what the need takes beside."""


class Pack:
    """Best fit: the GPU, then the host, that is left with the least."""

    whole_gpus_last = True
    kin_worth = KIN_PERMILLE

    def part(self, before: int, after: int) -> float:  # noqa: ARG002 - what was there does not matter
        return float(after)

    def host(self, need: Need, free: Free, taken: int) -> float:  # noqa: ARG002 - only what is left matters
        return float(free.total_permille - taken)


class Spread:
    """Worst fit: neighbours as few as possible."""

    whole_gpus_last = False
    kin_worth = KIN_PERMILLE

    def part(self, before: int, after: int) -> float:  # noqa: ARG002 - what was there does not matter
        return -float(after)

    def host(self, need: Need, free: Free, taken: int) -> float:  # noqa: ARG002 - only what is left matters
        return -float(free.total_permille - taken)


class Fragmentation:
    """The least growth of what will stay idle.

    That is leftover shares that no request is for, and GPUs whose host has no CPU or memory left for those
    who would come. What comes is learned from what came.
    """

    whole_gpus_last = True
    kin_worth = FREE_GPU_WEIGHT * WHOLE_PERMILLE

    def __init__(self, mix: Mix) -> None:
        self._leftover = mix.leftover
        self._cpu = mix.cpu
        self._memory = mix.memory

    def part(self, before: int, after: int) -> float:
        return round(self._leftover[after] - self._leftover[before], 6)

    def host(self, need: Need, free: Free, taken: int) -> float:
        cost = FREE_GPU_WEIGHT * (free.total_permille - taken)
        if free.cpu_milli < UNLIMITED >> 1:
            cost += _growth(self._cpu.stranded, free.cpu_milli, need.cpu_milli, free.total_permille, taken)
        if free.memory_bytes < UNLIMITED >> 1:
            grown = _growth(
                self._memory.stranded, free.memory_bytes, need.memory_bytes, free.total_permille, taken
            )
            cost += MEMORY_WEIGHT * grown
        return cost


def _growth(stranded: Stranded, amount: int, less: int, permille: int, taken: int) -> float:
    return stranded(amount - less, permille - taken) - stranded(amount, permille)


def policy_for(name: PolicyName, mix: Mix) -> Policy:
    """The policy as the mix is now; a later lesson needs a new one."""
    match name:
        case PolicyName.PACK:
            return Pack()
        case PolicyName.SPREAD:
            return Spread()
        case PolicyName.FRAGMENTATION:
            return Fragmentation(mix)
