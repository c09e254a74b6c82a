"""Compute how much of one limit each node of a pool may give by itself: arithmetic, without a state.

The sum of what nodes hold and may give, of what jobs of the pool hold and of what is kept for build work
never exceeds the limit. A share is raised only out of what is left. A lowered share counts in full until its
node has said that it knows the lower one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from gpushared.domain.jobs.job import NodeName


@dataclass(slots=True)
class NodeLimitUse:
    """One node in the book of one limit, in permille of GPUs.

    ``share``: the most that it may go by. ``least`` and ``wanted``: what waits there for more, the smallest
    lease and all. ``open``: it can be told of another share now.
    """

    held: int = 0
    share: int = 0
    least: int = 0
    wanted: int = 0
    gpus: int = 0
    open: bool = False

    @property
    def counts(self) -> int:
        return max(self.held, self.share)

    @property
    def lent(self) -> int:
        """Return the part of the share that the node may give and does not hold."""
        return self.counts - self.held


@dataclass(slots=True)
class LimitUse:
    """One limit. ``held``: by jobs of the pool. ``kept``: for build work that has not come yet.

    ``unseen``: what jobs that are under way may hold besides, of which nobody has told yet.
    """

    limit: int
    held: int = 0
    kept: int = 0
    unseen: int = 0
    nodes: dict[NodeName, NodeLimitUse] = field(default_factory=dict)

    @property
    def left(self) -> int:
        """Return the part of the limit that nobody holds or may give."""
        known = self.held + self.unseen + self.kept
        return self.limit - known - sum(node.counts for node in self.nodes.values())

    @property
    def lent(self) -> int:
        return sum(node.lent for node in self.nodes.values())


def shared_out(book: LimitUse, *, pressed: bool) -> Mapping[NodeName, int]:
    """The share of each node that can be told of one now.

    Every node has a slice to give at once, and without its coordinator, half of the limit all together. A
    node on which somebody waits gets what is wanted, the one that holds least first, and gives back what is
    well over a slice. ``pressed``: the pool's own jobs wait for the limit, so that nobody keeps what is not
    used; so it is too where nodes want more than is left.
    """
    asking = {name: node for name, node in book.nodes.items() if node.open}
    waiting = {name: node for name, node in asking.items() if 0 < node.least <= book.limit - book.kept}
    shares = {name: node.share for name, node in asking.items()}
    left = max(0, book.left)
    pressed = pressed or sum(_lack(node, node.wanted) for node in waiting.values()) > left
    for name, node in sorted(waiting.items(), key=lambda one: (one[1].held, one[0])):
        more = min(left, _lack(node, node.wanted))
        if more >= _lack(node, node.least):
            shares[name], left = node.counts + more, left - more
        elif pressed:
            shares[name] = min(node.share, node.held)
    slice_ = 0 if pressed else max(0, book.limit - book.kept) // (2 * max(1, len(book.nodes)))
    for name, node in sorted(asking.items(), key=lambda one: (one[1].counts, one[0])):
        if name not in waiting:
            shares[name] = _idle_share(node, slice_, left)
            left -= max(0, shares[name] - node.counts)
    return shares


def _idle_share(node: NodeLimitUse, slice_: int, left: int) -> int:
    """Return the share of a node on which nobody waits: small differences are not worth a message."""
    own = min(slice_, max(0, node.gpus - node.held))
    spare = node.share - node.held
    if spare > own + own // 2:
        return node.held + own
    if spare < own // 2:
        return node.counts + min(left, own - max(0, spare))
    return node.share


def _lack(node: NodeLimitUse, wanted: int) -> int:
    """Return how much a share lacks for ``wanted`` besides what the node holds."""
    return max(0, node.held + wanted - node.counts)
