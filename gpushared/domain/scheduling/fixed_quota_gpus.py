"""Choose the GPUs on which fixed quotas are kept.

A quota is kept in *units*: one for each whole GPU, and one for the rest. A unit lies on one GPU, and if a
host has room for all whole units of a quota, they are on one host. Build work of the project on a GPU counts
as part of the unit there, so that the unit is whole again when that work has ended. Nothing is remembered
from one pass to the next: a unit may lie elsewhere then, which nobody notices, because only free capacity
moves.

If others were on the GPUs before the quota was, or a GPU has gone, a unit finds no place. Then as much
capacity is kept in *pieces*, wherever something is free.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice, permutations, product
from typing import NamedTuple

from gpushared.domain.model.gpu import WHOLE_PERMILLE, Gpu, GpuId
from gpushared.domain.model.lease import Grant

TRIES = 256
"""So many GPUs are looked at, all tries together, to find a place for all units; at least two tries."""


class Amount(NamedTuple):
    """Hold an amount of one GPU."""

    permille: int
    memory_bytes: int

    def plus(self, other: Amount) -> Amount:
        return Amount(self.permille + other.permille, self.memory_bytes + other.memory_bytes)

    def less(self, other: Amount) -> Amount:
        """Return the rest of the amount, which is never below zero."""
        return Amount(max(0, self.permille - other.permille), max(0, self.memory_bytes - other.memory_bytes))

    def least(self, other: Amount) -> Amount:
        return Amount(min(self.permille, other.permille), min(self.memory_bytes, other.memory_bytes))

    def covers(self, other: Amount) -> bool:
        return self.permille >= other.permille and self.memory_bytes >= other.memory_bytes


NONE = Amount(0, 0)


def amount_of(grant: Grant) -> Amount:
    return Amount(grant.compute_permille, grant.memory_bytes)


def share_of(gpu: Gpu, permille: int) -> Amount:
    """Return a share of a GPU's compute and memory."""
    return Amount(permille, gpu.memory_of_share(permille))


@dataclass(frozen=True, slots=True)
class Slot:
    """Describe a GPU that units may lie on.

    ``stray_bytes``: memory held without a lease that does not keep the GPU from being leased whole.
    """

    gpu: Gpu
    host: str
    free: Amount
    stray_bytes: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class FixedQuotaNeed:
    """Describe a fixed quota.

    ``mine``: the amount that build work of the project holds on each GPU already.
    """

    project: str
    pool: str
    whole: int
    rest: int
    slots: Sequence[Slot]
    mine: Mapping[GpuId, Amount]


class KeptPart(NamedTuple):
    """Hold a part kept on one GPU: a unit less the project's own work there, or a piece."""

    want: FixedQuotaNeed
    grant: Grant


@dataclass(slots=True)
class Arrangement:
    """Hold the places of the units.

    ``lacking``: the units without a place, in permille, with their quotas.
    """

    units: list[KeptPart] = field(default_factory=list)
    pieces: list[KeptPart] = field(default_factory=list)
    lacking: list[tuple[FixedQuotaNeed, int]] = field(default_factory=list)

    @property
    def lacking_permille(self) -> int:
        return sum(permille for _, permille in self.lacking)


def arrange(wants: Sequence[FixedQuotaNeed]) -> Arrangement:
    """Return the first arrangement found in which every unit has a place, else the one that lacks least."""
    gpus = max((len(want.slots) for want in wants), default=0)
    best: Arrangement | None = None
    for ways in islice(_ways(wants), max(2, TRIES // max(1, gpus))):
        made = _Board(ways).arranged()
        if best is None or made.lacking_permille < best.lacking_permille:
            best = made
        if not best.lacking:
            break
    return best or Arrangement()


def _ways(wants: Iterable[FixedQuotaNeed]) -> Iterable[Sequence[tuple[FixedQuotaNeed, bool]]]:
    """Yield orders for placing the quotas' rests; the flag says if a rest first goes to where its work is."""
    largest_first = sorted(wants, key=lambda want: (-want.rest, want.project, want.pool))
    for order in permutations(largest_first):
        for early in product((True, False), repeat=len(order)):
            yield list(zip(order, early, strict=True))


class _Board:
    """Place the units of one try."""

    def __init__(self, ways: Sequence[tuple[FixedQuotaNeed, bool]]) -> None:
        self._ways = ways
        self._free = {slot.gpu.id: slot.free for want, _ in ways for slot in want.slots}
        self._used: dict[int, set[GpuId]] = defaultdict(set)
        self._made = Arrangement()

    def arranged(self) -> Arrangement:
        # A rest that is in use already should not cost the project one of its whole GPUs.
        settled = {id(want) for want, early in self._ways if early and self._rest_where_work_is(want)}
        for want, _ in sorted(self._ways, key=lambda way: (-way[0].whole, way[0].project, way[0].pool)):
            self._wholes(want)
        for want, _ in self._ways:
            if want.rest and id(want) not in settled:
                self._rest(want, want.slots)
        for want, permille in self._made.lacking:
            self._pieces(want, permille)
        return self._made

    def _fits(self, want: FixedQuotaNeed, slot: Slot, permille: int) -> bool:
        """Return True if a unit may lie there."""
        gpu = slot.gpu.id
        if gpu in self._used[id(want)]:
            return False
        there = self._free[gpu].plus(want.mine.get(gpu, NONE))
        if permille == WHOLE_PERMILLE:
            there = there.plus(Amount(0, slot.stray_bytes))
        return there.covers(share_of(slot.gpu, permille))

    def _put(self, want: FixedQuotaNeed, slot: Slot, permille: int) -> None:
        gpu = slot.gpu.id
        self._used[id(want)].add(gpu)
        self._keep(want, slot, share_of(slot.gpu, permille).less(want.mine.get(gpu, NONE)), self._made.units)

    def _keep(self, want: FixedQuotaNeed, slot: Slot, amount: Amount, kept: list[KeptPart]) -> None:
        gpu = slot.gpu.id
        amount = Amount(amount.permille, min(amount.memory_bytes, self._free[gpu].memory_bytes))
        self._free[gpu] = self._free[gpu].less(amount)
        if any(amount):
            kept.append(KeptPart(want, Grant(gpu, amount.memory_bytes, amount.permille)))

    def _rest_where_work_is(self, want: FixedQuotaNeed) -> bool:
        """Keep the rest around the largest build work that fits in it; return True if there was a place."""
        return bool(want.rest and want.whole) and self._rest(
            want,
            [
                slot
                for slot in want.slots
                if slot.gpu.id in want.mine
                and share_of(slot.gpu, want.rest).covers(want.mine[slot.gpu.id])
                and self._fits(want, slot, want.rest)
            ],
        )

    def _rest(self, want: FixedQuotaNeed, slots: Sequence[Slot]) -> bool:
        """Keep the rest around work that is there, else on the GPU that has the least left."""
        able = [slot for slot in slots if self._fits(want, slot, want.rest)]
        if able:
            best = min(able, key=lambda slot: (-_held(want, slot), self._free[slot.gpu.id].permille))
            self._put(want, best, want.rest)
        elif slots is want.slots:
            self._made.lacking.append((want, want.rest))
        return bool(able)

    def _wholes(self, want: FixedQuotaNeed) -> None:
        """Keep the whole GPUs, on one host if one has room for all."""
        able: dict[str, list[Slot]] = defaultdict(list)
        for slot in want.slots if want.whole else ():
            if self._fits(want, slot, WHOLE_PERMILLE):
                able[slot.host].append(slot)
        left = want.whole
        while left and able:
            host, slots = max(able.items(), key=lambda one: _worth(want, one[1], left))
            for slot in _most_held(want, slots)[:left]:
                self._put(want, slot, WHOLE_PERMILLE)
            left -= min(left, len(slots))
            del able[host]
        self._made.lacking += [(want, WHOLE_PERMILLE)] * left

    def _pieces(self, want: FixedQuotaNeed, permille: int) -> None:
        """Keep so much, wherever something is left."""
        left = permille
        for slot in sorted(want.slots, key=lambda one: -self._free[one.gpu.id].permille):
            free = self._free[slot.gpu.id]
            piece = min(left, free.permille, free.memory_bytes * WHOLE_PERMILLE // slot.gpu.leasable_bytes)
            if piece > 0:
                self._keep(want, slot, share_of(slot.gpu, piece), self._made.pieces)
                left -= piece


def _held(want: FixedQuotaNeed, slot: Slot) -> int:
    return want.mine.get(slot.gpu.id, NONE).permille


def _most_held(want: FixedQuotaNeed, slots: Iterable[Slot]) -> list[Slot]:
    return sorted(slots, key=lambda slot: -_held(want, slot))


def _worth(want: FixedQuotaNeed, slots: Sequence[Slot], left: int) -> tuple[int, int, int]:
    """Return a host's worth for the units: how many fit, how much of them is in use, how few GPUs it has."""
    chosen = _most_held(want, slots)[:left]
    return len(chosen), sum(_held(want, slot) for slot in chosen), -len(slots)
