"""Judge the claims of nodes to have seen more of the pool than its coordinator remembers.

A claim may be true: the coordinator's store is an old copy, or a copy of the coordinator led the nodes. No
other sign shows that, so a claim makes the pool recover, and all nodes report anew. A claim may also be
false, from an intruder who controls the node. So each node's claim counts once in a coordinator's life. The
claim of a node without which a recovery went on does not count, because the changes that the node has seen
are known to be lost.
"""

from __future__ import annotations

from gpushared.domain.jobs.coordinator_events import NodeRegistered
from gpushared.domain.jobs.coordinator_state import PoolState
from gpushared.domain.jobs.job import NodeName
from gpushared.domain.jobs.member import Member
from gpushared.domain.model.errors import StateConflict


class ClaimRefused(StateConflict):
    """Refuse a node's second claim to have seen more of the pool than the coordinator."""


def is_outranked(event: NodeRegistered, state: PoolState) -> bool:
    """Return True if another coordinator's orders of this epoch, or of a higher one, may be under way.

    An old store continues from its old epoch, so a node that we have not met may know our epoch already.
    """
    met = event.node in state.reported
    return event.seen_epoch > state.epoch or (not met and event.seen_epoch == state.epoch)


def has_seen_more(event: NodeRegistered, state: PoolState) -> bool:
    """Return True if the node knows of a change of this pool that we do not know of."""
    return is_outranked(event, state) or event.seen_revision > state.revision > 0


def is_news(event: NodeRegistered, member: Member, state: PoolState) -> bool:
    """Return True if the node's registration is a reason to ask all nodes anew.

    Raise ClaimRefused if the node has already used its one claim, and no order may be sent to it before all
    nodes have been asked.
    """
    if not has_seen_more(event, state) or member.excused:
        return False
    if event.node not in state.claimants:
        return True
    if is_outranked(event, state):
        raise refused(event.node)
    return False


def refused(node: NodeName) -> ClaimRefused:
    return ClaimRefused(
        f"node {node} says again that another coordinator of this pool leads it, with a higher epoch",
        hint="does a copy of the coordinator run? end it, then restart gpushared-pool. If not, the node may "
        f"be in the wrong hands: gpushare pool revoke --node {node}",
    )


def claim_trouble(node: NodeName) -> str:
    """Return the message to administrators about a node whose claim was believed."""
    return (
        f"node {node} said that it has seen more of this pool than the coordinator remembers, so all nodes "
        "were asked anew; it is not believed again before a restart. If no old copy was put back and no "
        f"other coordinator led it, it may be in the wrong hands: gpushare pool revoke --node {node}"
    )
