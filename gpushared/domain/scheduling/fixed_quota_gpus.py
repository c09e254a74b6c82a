"""Choose the GPUs on which fixed quotas are kept: each quota as whole GPUs and one rest.

The whole GPUs are on one host if a host has room for all of them, and the rest is on one GPU. Build work of the
project counts as part of what is kept on its GPU, so that the GPU or the rest is whole again when that work has
ended. Nothing is remembered from one pass to the next: only free capacity moves, which nobody notices.

If others were on the GPUs before the quota was, or a GPU has gone, a whole GPU or a rest finds no place. Then as
much capacity is kept in pieces, wherever something is free.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from gpushared.domain.model.gpu import WHOLE_PERMILLE, Gpu, GpuId
from gpushared.domain.model.lease import Grant


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

    def grant_on(self, gpu: GpuId) -> Grant:
        return Grant(gpu, self.memory_bytes, self.permille)


NONE = Amount(0, 0)


def amount_of(grant: Grant) -> Amount:
    return Amount(grant.compute_permille, grant.memory_bytes)


def share_of(gpu: Gpu, permille: int) -> Amount:
    """Return a share of a GPU's compute and memory."""
    return Amount(permille, gpu.memory_of_share(permille))


@dataclass(frozen=True, slots=True)
class Slot:
    """Describe a GPU on which a quota may be kept.

    ``stray_bytes``: memory held without a lease that does not keep the GPU from being leased whole.
    """

    gpu: Gpu
    host: str
    free: Amount
    stray_bytes: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class FixedQuotaNeed:
    """Describe a fixed quota.

    ``build_work``: the amount that build work of the project holds on each GPU already.
    """

    project: str
    whole: int
    rest: int
    slots: Sequence[Slot]
    build_work: Mapping[GpuId, Amount]

    def held(self, slot: Slot) -> Amount:
        return self.build_work.get(slot.gpu.id, NONE)

    def is_within_rest(self, slot: Slot) -> bool:
        """Return True if the rest is enough for the build work that is there."""
        return share_of(slot.gpu, self.rest).covers(self.held(slot))


class KeptPart(NamedTuple):
    """Hold what is kept on one GPU, without the project's own work there."""

    project: str
    gpu: GpuId
    amount: Amount


@dataclass(slots=True)
class Arrangement:
    """Hold what is kept. ``lacking``: the whole GPUs and rests without a place, in permille."""

    parts: list[KeptPart] = field(default_factory=list)
    pieces: list[KeptPart] = field(default_factory=list)
    lacking: list[tuple[FixedQuotaNeed, int]] = field(default_factory=list)

    @property
    def lacking_permille(self) -> int:
        return sum(permille for _, permille in self.lacking)


def arrange(needs: Sequence[FixedQuotaNeed]) -> Arrangement:
    """Place the rests that are in use, then the whole GPUs, then the other rests: each time the largest first.

    A rest that is in use already should not cost the project one of its whole GPUs.
    """
    board = _Board(needs)
    rests = sorted((need for need in needs if need.rest), key=lambda need: -need.rest)
    other_rests = [need for need in rests if not (need.whole and board.keep_rest(need, in_use=True))]
    for need in sorted(needs, key=lambda need: -need.whole):
        board.keep_whole(need)
    for need in other_rests:
        if not board.keep_rest(need):
            board.arrangement.lacking.append((need, need.rest))
    for need, permille in board.arrangement.lacking:
        board.keep_pieces(need, permille)
    return board.arrangement


class _Board:
    """Note what is free yet while parts are placed."""

    def __init__(self, needs: Sequence[FixedQuotaNeed]) -> None:
        self.arrangement = Arrangement()
        self._free = {slot.gpu.id: slot.free for need in needs for slot in need.slots}
        self._used: dict[int, set[GpuId]] = defaultdict(set)

    def keep_rest(self, need: FixedQuotaNeed, *, in_use: bool = False) -> bool:
        """Keep the rest around work that is there, else on the GPU that has the least left.

        ``in_use``: only around build work that fits in the rest, and rather on a GPU that cannot be kept as a
        whole one. Return False if there is no such GPU.
        """
        fitting = [slot for slot in need.slots if self._fits(need, slot, need.rest)]
        if in_use:
            fitting = [slot for slot in fitting if need.held(slot) != NONE and need.is_within_rest(slot)]
        if fitting:
            best = min(
                fitting,
                key=lambda slot: (
                    in_use and self._fits(need, slot, WHOLE_PERMILLE),
                    -need.held(slot).permille,
                    self._free[slot.gpu.id].permille,
                ),
            )
            self._keep(need, best, need.rest)
        return bool(fitting)

    def keep_whole(self, need: FixedQuotaNeed) -> None:
        """Keep the whole GPUs, on one host if one has room for all."""
        fitting: dict[str, list[Slot]] = defaultdict(list)
        for slot in sorted(need.slots, key=lambda slot: -need.held(slot).permille):
            if need.whole and self._fits(need, slot, WHOLE_PERMILLE):
                fitting[slot.host].append(slot)
        lacking = need.whole
        while lacking and fitting:
            host = max(fitting, key=lambda host: _worth(need, fitting[host], lacking))
            for slot in fitting.pop(host)[:lacking]:
                self._keep(need, slot, WHOLE_PERMILLE)
                lacking -= 1
        self.arrangement.lacking += [(need, WHOLE_PERMILLE)] * lacking

    def keep_pieces(self, need: FixedQuotaNeed, permille: int) -> None:
        """Keep so much, wherever something is left."""
        for slot in sorted(need.slots, key=lambda slot: -self._free[slot.gpu.id].permille):
            free = self._free[slot.gpu.id]
            by_memory = free.memory_bytes * WHOLE_PERMILLE // slot.gpu.leasable_bytes
            if (piece := min(permille, free.permille, by_memory)) > 0:
                self._take(need, slot, share_of(slot.gpu, piece), self.arrangement.pieces)
                permille -= piece

    def _fits(self, need: FixedQuotaNeed, slot: Slot, permille: int) -> bool:
        usable = self._free[slot.gpu.id].plus(need.held(slot))
        if permille == WHOLE_PERMILLE:
            usable = usable.plus(Amount(0, slot.stray_bytes))
        return slot.gpu.id not in self._used[id(need)] and usable.covers(share_of(slot.gpu, permille))

    def _keep(self, need: FixedQuotaNeed, slot: Slot, permille: int) -> None:
        self._used[id(need)].add(slot.gpu.id)
        self._take(need, slot, share_of(slot.gpu, permille).less(need.held(slot)), self.arrangement.parts)

    def _take(self, need: FixedQuotaNeed, slot: Slot, amount: Amount, parts: list[KeptPart]) -> None:
        free = self._free[slot.gpu.id]
        amount = Amount(amount.permille, min(amount.memory_bytes, free.memory_bytes))
        self._free[slot.gpu.id] = free.less(amount)
        if any(amount):
            parts.append(KeptPart(need.project, slot.gpu.id, amount))


def _worth(need: FixedQuotaNeed, slots: Sequence[Slot], count: int) -> tuple[int, int, int]:
    """Return a host's worth: how many whole GPUs fit, how much of these is in use, how few GPUs it has."""
    chosen = slots[:count]
    return len(chosen), sum(need.held(slot).permille for slot in chosen), -len(slots)
