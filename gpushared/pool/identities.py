"""Decide who may administer the pool from the coordinator's own machine."""

from __future__ import annotations

import os
from dataclasses import replace

from gpushared.domain.model.request import Caller
from gpushared.serving.identity import Identities, Peer


class AdminIdentities(Identities):
    """Root, the members of trusted groups, and the daemon's own user: who owns its files is asked anyway."""

    async def caller(self, peer: Peer) -> Caller:
        caller = await super().caller(peer)
        return replace(caller, trusted=True) if peer.uid == os.geteuid() else caller
