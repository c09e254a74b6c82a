"""Who is calling: from the kernel's word on a socket to a ``Caller``."""

from __future__ import annotations

import asyncio
import grp
import os
import pwd
import socket
import struct
import time
from collections.abc import Collection
from dataclasses import dataclass

from gpushared.domain.request import Caller
from gpushared.gate.accounts import ask_names

_UCRED = struct.Struct("3i")
"""``struct ucred`` of unix(7): pid, uid, gid."""

NAME_SERVICE_SECONDS = 3.0
REMEMBER_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Peer:
    """SO_PEERCRED: who connected, as of the connect."""

    pid: int
    uid: int
    gid: int


def peer_of(sock: socket.socket) -> Peer:
    """The credentials that the kernel noted when the peer connected (unix(7), SO_PEERCRED)."""
    return Peer(*_UCRED.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)))


class Identities:
    """Names and groups of users, remembered for a minute, because name services may be slow or away."""

    def __init__(self, trusted_groups: Collection[str]) -> None:
        self.trusted_groups = frozenset(trusted_groups)
        self._known: dict[tuple[int, int], tuple[float, Caller]] = {}

    async def caller(self, peer: Peer) -> Caller:
        """The caller behind a peer; a user without a name goes by the number and is not trusted."""
        if peer.uid == 0:
            # Nothing could make root anybody else, and root must get in while the name services hang.
            return Caller(0, peer.gid, "root", trusted=True)
        key = (peer.uid, peer.gid)
        remembered = self._known.get(key)
        if remembered is not None and time.monotonic() - remembered[0] < REMEMBER_SECONDS:
            return remembered[1]
        try:
            async with asyncio.timeout(NAME_SERVICE_SECONDS):
                caller = await ask_names(look_up, peer.uid, peer.gid, self.trusted_groups)
        except TimeoutError:
            return Caller(peer.uid, peer.gid, str(peer.uid))
        self._known[key] = (time.monotonic(), caller)
        return caller

    def forget(self) -> None:
        """Look everybody up anew, because groups may have changed."""
        self._known.clear()


def look_up(uid: int, gid: int, trusted_groups: Collection[str]) -> Caller:
    """Ask the name services (getpwuid, getgrouplist)."""
    try:
        name = pwd.getpwuid(uid).pw_name
        groups = {_group_name(one) for one in os.getgrouplist(name, gid)}
    except KeyError:
        return Caller(uid, gid, str(uid))
    return Caller(uid, gid, name, trusted=not groups.isdisjoint(trusted_groups))


def _group_name(gid: int) -> str:
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)
