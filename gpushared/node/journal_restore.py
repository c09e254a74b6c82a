"""Restore the node's state from its journal at the start of the daemon."""

from __future__ import annotations

import secrets
from collections.abc import Sequence

from gpushared.config.model import Config
from gpushared.daemon.clocks import boot_id
from gpushared.domain.leases.node_machine import restore
from gpushared.domain.leases.node_state import NodeState
from gpushared.domain.model.lease import Lease
from gpushared.domain.scheduling.allowance import Allowance
from gpushared.node.runtime.configured import host_size, is_quiet, rules_of
from gpushared.ports import Clock, JournalSnapshot

FIRST_SEQUENCES = 2**19
"""Half of the ids of four characters (see ``lease_id``)."""


def remembered(
    config: Config,
    clock: Clock,
    snapshot: JournalSnapshot,
    ended: Sequence[Lease],
    allowance: Allowance | None,
) -> NodeState:
    """``ended``: leases that are over, the newest first. ``allowance``: what the pool let it give last."""
    now, ahead = clock.now(), clock.ahead()
    state = NodeState(
        rules=rules_of(config),
        quiet=is_quiet(config.idle_quiet, now + ahead),
        ahead_seconds=ahead,
        host=host_size(),
        boot_id=boot_id(),
        allowance=allowance,
    )
    return restore(
        state,
        snapshot.leases,
        first_sequence(snapshot),
        reversed(ended),
        snapshot.drained,
        snapshot.standing,
        snapshot.attempts,
        snapshot.contacts,
    )


def first_sequence(snapshot: JournalSnapshot) -> int:
    """Return the next lease's number; a new journal begins anywhere.

    Containers bear the names of leases. Those of another journal, lost or on the same engine, must not pass
    for those of ours.
    """
    new = snapshot.next_sequence == 1 and not snapshot.leases
    return 1 + secrets.randbelow(FIRST_SEQUENCES) if new else snapshot.next_sequence
