"""Define placement policies: each tells with two numbers the cost of a place, and the cheapest place wins.

``part`` judges one GPU by its free permille before and after, ``host`` the effect of the request on the rest
of its host. All policies break ties the same way: the GPU that is left with less memory, the lower index, the
host that was listed first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Protocol

from gpushared.domain.model.gpu import WHOLE_PERMILLE
from gpushared.domain.scheduling.placement.demand_profile import MOST_GPUS, DemandProfile
from gpushared.domain.scheduling.placement.hosts import UNLIMITED, HostFree
from gpushared.domain.scheduling.placement.request_shape import Need

FREE_GPU_WEIGHT = 0.02
"""A free GPU on the host counts as much as a fiftieth of a GPU stranded there: enough to break ties."""
MEMORY_WEIGHT = 0.3
"""Host memory counts less than CPU: a process seldom uses all of the memory that it asks for."""

GANG_WEIGHT = 0.05
"""An untouched GPU that requests of several can no longer use counts as a twentieth of a stranded one: others
may still fill it. With more the mean over all lists of ``bench/placement_table.py`` falls."""
MODEL_WEIGHT = 0.02
"""A GPU whose model is in full demand counts as a fiftieth of a stranded one. Any weight above 0 keeps requests
that may have another model off that GPU; a large weight only breaks good fits."""

AFFINITY_PERMILLE = 300.0
"""The worth is a little more than a quarter of a GPU, a usual size. It outweighs a slice's best fit, but
never a whole GPU."""

Stranded = Callable[[int, int], float]


class PolicyName(StrEnum):
    """Name the policies that the configuration may choose."""

    PACK = "pack"
    SPREAD = "spread"
    FRAGMENTATION = "fragmentation"


class Together(StrEnum):
    """Say whose leases are put together if that costs little."""

    OFF = "off"
    PROJECT = "project"


class PlacementPolicy(Protocol):
    """Tell the cost of a place."""

    whole_gpus_last: bool
    """True if a GPU that nobody uses is left alone while a slice fits elsewhere."""
    affinity_worth: float
    """The worth for a slice to be on a GPU with others of its project, in the unit of ``part``."""

    def part(self, before: int, after: int) -> float:
        """Return the cost of leaving ``after`` permille of a GPU that had ``before``."""

    def model(self, name: str) -> float:
        """Return the cost of 1 permille of a GPU of this model, borne by requests that only this model serves."""

    def host(self, need: Need, free: HostFree, taken_permille: int, broken: int) -> float:
        """Return the host's cost if ``taken_permille`` of its GPUs go, with the need's CPU and memory.

        ``broken``: the number of untouched GPUs among those that are taken.
        """


class Pack:
    """Choose the best fit: the GPU, then the host, that is left with the least."""

    whole_gpus_last = True
    affinity_worth = AFFINITY_PERMILLE

    def part(self, before: int, after: int) -> float:  # noqa: ARG002 - what was there does not matter
        return float(after)

    def model(self, name: str) -> float:  # noqa: ARG002 - all models are alike
        return 0.0

    def host(self, need: Need, free: HostFree, taken_permille: int, broken: int) -> float:  # noqa: ARG002 - only what is left matters
        return float(free.total_permille - taken_permille)


class Spread:
    """Choose the worst fit, which gives as few neighbours as possible."""

    whole_gpus_last = False
    affinity_worth = AFFINITY_PERMILLE

    def part(self, before: int, after: int) -> float:  # noqa: ARG002 - what was there does not matter
        return -float(after)

    def model(self, name: str) -> float:  # noqa: ARG002 - all models are alike
        return 0.0

    def host(self, need: Need, free: HostFree, taken_permille: int, broken: int) -> float:  # noqa: ARG002 - only what is left matters
        return -float(free.total_permille - taken_permille)


class Fragmentation:
    """Choose the least growth of the capacity that will stay idle.

    Idle capacity is leftover shares that no request is for, GPUs whose host has no CPU or memory left for
    coming requests, untouched GPUs of which a host has too few for requests of several, and GPUs that others
    took from those who can use this model alone. The policy learns from past requests what comes.
    """

    whole_gpus_last = True
    affinity_worth = FREE_GPU_WEIGHT * WHOLE_PERMILLE

    def __init__(self, demand_profile: DemandProfile, supply: Mapping[str, float] | None = None) -> None:
        """Take ``supply``: the part of the fleet's GPUs that each model makes."""
        self._leftover = demand_profile.leftover
        self._cpu = demand_profile.cpu
        self._memory = demand_profile.memory
        self._too_few = demand_profile.too_few
        self._model_costs = {
            model: MODEL_WEIGHT * min(1.0, share / supply[model])
            for model, share in demand_profile.bound.items()
            if supply and supply.get(model)
        }

    def part(self, before: int, after: int) -> float:
        return round(self._leftover[after] - self._leftover[before], 6)

    def model(self, name: str) -> float:
        return self._model_costs.get(name, 0.0)

    def host(self, need: Need, free: HostFree, taken_permille: int, broken: int) -> float:
        before, after = free.total_permille, free.total_permille - taken_permille
        cost = FREE_GPU_WEIGHT * after
        if broken:
            untouched = min(free.untouched, MOST_GPUS)
            cost += GANG_WEIGHT * (self._too_few[max(0, untouched - broken)] - self._too_few[untouched])
        if free.cpu_milli < UNLIMITED >> 1:
            cost += _growth(self._cpu.stranded, free.cpu_milli, need.cpu_milli, before, after)
        if free.memory_bytes < UNLIMITED >> 1:
            growth = _growth(self._memory.stranded, free.memory_bytes, need.memory_bytes, before, after)
            cost += MEMORY_WEIGHT * growth
        return cost


def _growth(stranded: Stranded, amount: int, less: int, before: int, after: int) -> float:
    return stranded(amount - less, after) - stranded(amount, before)


def policy_for(
    name: PolicyName, demand_profile: DemandProfile, supply: Mapping[str, float] | None = None
) -> PlacementPolicy:
    """Return the policy for the demand profile as it is now; a later lesson needs a new policy.

    ``supply``: the part of the fleet's GPUs that each model makes.
    """
    match name:
        case PolicyName.PACK:
            return Pack()
        case PolicyName.SPREAD:
            return Spread()
        case PolicyName.FRAGMENTATION:
            return Fragmentation(demand_profile, supply)
