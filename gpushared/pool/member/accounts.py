"""As whom a job's owner runs on this node: by its own users and settings, never by foreign numbers."""

from __future__ import annotations

import asyncio
import pwd
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from gpushared.domain.errors import PermissionRefused, TimedOut
from gpushared.domain.jobs.model import Owner
from gpushared.domain.request import Caller
from gpushared.domain.units import shown
from gpushared.gate.accounts import ask_names
from gpushared.serving.identity import look_up

NAME_SERVICE_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class AccountRules:
    """``realm`` is this node's own; ``accounts``: local accounts by principal or by person."""

    realm: str
    trusted_realms: Collection[str] = ()
    accounts: Mapping[str, str] = field(default_factory=dict)
    trusted_groups: Collection[str] = ()

    def account_name(self, owner: Owner) -> str:
        """The local account of an owner. Raises PermissionRefused where there is none.

        An entry for the principal wins over one for the person; without either, users of this node's realm
        and of those that it trusts are the accounts of the same names.
        """
        for known in (owner.principal, owner.person):
            if known in self.accounts:
                return self.accounts[known]
        name, _, realm = owner.principal.partition("@")
        if name and realm in {self.realm, *self.trusted_realms}:
            return name
        who = shown(owner.principal)
        raise PermissionRefused(
            f"{who} has no account on this node, which does not trust the realm {shown(realm)}",
            hint=f'the node\'s admin names one below [pool.accounts]: {who} = "alice"',
        )


class LocalAccounts:
    """Finds owners' accounts. ``rules`` may be replaced at any time."""

    def __init__(self, rules: AccountRules) -> None:
        self.rules = rules

    async def caller(self, owner: Owner, coordinator: str) -> Caller:
        """As whom an owner's containers run here.

        By a pool's order nobody is trusted or root, whatever they are here: who has taken over another
        machine of the pool has not taken over this one. By the node's own book (``coordinator`` empty) they
        are what they are on the socket. Raises PermissionRefused, and TimedOut where the name services hang.
        """
        name = self.rules.account_name(owner)
        try:
            async with asyncio.timeout(NAME_SERVICE_SECONDS):
                caller = await ask_names(_look_up, name, self.rules.trusted_groups)
        except TimeoutError:
            raise TimedOut(
                f"the user database does not answer for {shown(name)}", hint="try again later"
            ) from None
        if caller is None:
            raise PermissionRefused(
                f"{shown(owner.principal)} would be {shown(name)} on this node, and there is no such account",
                hint="the node's admin makes one, or names another below [pool.accounts]",
            )
        if caller.uid == 0 and coordinator:
            raise PermissionRefused(
                f"{shown(owner.principal)} would be root on this node, and jobs do not run as root",
                hint="submit it as a user with an account of its own",
            )
        return replace(caller, trusted=False) if coordinator else caller


def _look_up(name: str, trusted_groups: Collection[str]) -> Caller | None:
    try:
        entry = pwd.getpwnam(name)
    except (KeyError, ValueError):  # ValueError: a NUL in it
        return None
    # By its number from here on: two names of one number are one account.
    if entry.pw_uid == 0:
        return Caller(0, 0, "root", trusted=True)
    return look_up(entry.pw_uid, entry.pw_gid, trusted_groups)
