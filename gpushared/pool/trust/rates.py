"""Limit how often an unknown caller may try."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from gpushared.domain.model.errors import LimitReached

BURST = 20
PER_SECOND = 1 / 3
MAX_PEERS = 4096


class Rates:
    """A bucket of tries for each peer, which fills by time. Those that were longest away are forgotten."""

    def __init__(
        self, now: Callable[[], float], *, burst: int = BURST, per_second: float = PER_SECOND
    ) -> None:
        self._now = now
        self._burst = burst
        self._per_second = per_second
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def spend(self, peer: str) -> None:
        """One try. Raises LimitReached, with how long to wait."""
        now = self._now()
        left, at = self._left.pop(peer, (float(self._burst), now))
        left = min(self._burst, left + max(0.0, now - at) * self._per_second)
        if left < 1:
            self._left[peer] = (left, now)
            seconds = (1 - left) / self._per_second
            raise LimitReached(f"{peer} tries too often", hint=f"try again in {seconds:.0f} s")
        self._left[peer] = (left - 1, now)
        if len(self._left) > MAX_PEERS:
            self._left.popitem(last=False)


def host_of(peer: str) -> str:
    """``ipv4:10.0.0.7:4711`` (grpc's peer) without the port, so that all its connections count as one."""
    return peer.rpartition(":")[0] or peer
