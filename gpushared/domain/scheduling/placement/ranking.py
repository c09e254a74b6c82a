"""Keep the hosts of a fleet in the order of one kind of request, up to date instead of made anew."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from heapq import heapify, heappop, heappush

from gpushared.domain.scheduling.placement.gpu_choice import HostReason, Score, rate
from gpushared.domain.scheduling.placement.hosts import HostFree
from gpushared.domain.scheduling.placement.policies import PlacementPolicy
from gpushared.domain.scheduling.placement.request_shape import Need

Entry = tuple[Score, int]


class Ranking:
    """Rank the hosts for one kind: each host's cost, the best first, and the counts of refusals by reason."""

    def __init__(self, need: Need, policy: PlacementPolicy, hosts: Sequence[HostFree]) -> None:
        self.need = need
        self.policy = policy
        self.seen = 0
        """The fleet's changes up to this point are in the ranking."""
        self.refusals: Counter[HostReason] = Counter()
        self._heap: list[Entry] = []
        self._answers: list[Score | HostReason] = []
        self._rate_all(hosts)

    def _rate_all(self, hosts: Sequence[HostFree]) -> None:
        """Rate all hosts.

        Hosts in the same state answer alike, and a fleet that is mostly empty has few states. In a fleet that
        is mostly full, a look at the free compute settles nearly all hosts.
        """
        need, policy, answers, heap = self.need, self.policy, self._answers, self._heap
        least = 0 if need.models else need.least_permille
        by_twin: dict[int, Score | HostReason] = {}
        full = 0
        for at, free in enumerate(hosts):
            if free.top_permille < least:
                answers.append(HostReason.GPUS)
                full += 1
                continue
            answer = None if free.twin is None else by_twin.get(free.twin)
            if answer is None:
                answer = rate(need, free, policy)
                if free.twin is not None and not need.pinned:
                    by_twin[free.twin] = answer
            answers.append(answer)
            if isinstance(answer, tuple):
                heap.append((answer, at))
            else:
                self.refusals[answer] += 1
        self.refusals[HostReason.GPUS] += full
        heapify(heap)

    def refresh(self, changed: Iterable[int], hosts: Sequence[HostFree]) -> None:
        """Rate again the hosts that have changed."""
        for at in changed:
            before = self._answers[at]
            answer = rate(self.need, hosts[at], self.policy)
            if answer == before:
                continue
            self._answers[at] = answer
            if isinstance(before, HostReason):
                self.refusals[before] -= 1
            if isinstance(answer, HostReason):
                self.refusals[answer] += 1
            else:
                heappush(self._heap, (answer, at))
        if len(self._heap) > 4 * len(hosts):
            self._heap = [
                (answer, at) for at, answer in enumerate(self._answers) if isinstance(answer, tuple)
            ]
            heapify(self._heap)

    def best(self, skipped: Collection[int] = ()) -> Entry | None:
        """Return the host that costs least, without the skipped ones; the first listed among equals."""
        for entry in self._in_order(skipped):
            return entry
        return None

    def could_take(self, at: int) -> bool:
        """Return True if this host can take the request, as far as only the host is asked."""
        return isinstance(self._answers[at], tuple)

    def cost(self, at: int) -> Score | None:
        """Return the cost of this host, or None if it cannot take the request."""
        answer = self._answers[at]
        return answer if isinstance(answer, tuple) else None

    def _in_order(self, skipped: Collection[int]) -> Iterator[Entry]:
        aside = []
        try:
            while self._heap:
                entry = self._heap[0]
                if self._answers[entry[1]] != entry[0]:
                    heappop(self._heap)
                elif entry[1] in skipped:
                    aside.append(heappop(self._heap))
                else:
                    yield entry
                    return
        finally:
            for entry in aside:
                heappush(self._heap, entry)
