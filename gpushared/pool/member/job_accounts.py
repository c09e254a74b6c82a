"""Find a job owner's account on this node by the node's own users and settings, never by foreign numbers."""

from __future__ import annotations

import asyncio
import pwd
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from gpushared.domain.jobs.job import Owner
from gpushared.domain.model.errors import PermissionRefused, TimedOut
from gpushared.domain.model.request import Caller
from gpushared.domain.model.units import shown
from gpushared.net.accounts import ask_names
from gpushared.net.identity import look_up

NAME_SERVICE_SECONDS = 5.0
LOGIN_DEFS = Path("/etc/login.defs")
FIRST_USER_ID = 1000
"""Ordinary users begin at this number if login.defs(5) does not say: the default of shadow's UID_MIN."""
NOBODY_ID = 65534
"""The kernel names this user if it has no better name (``/proc/sys/kernel/overflowuid``)."""


@dataclass(frozen=True, slots=True)
class AccountRules:
    """``realm`` is this node's own; ``accounts``: local accounts by principal or by person."""

    realm: str
    trusted_realms: Collection[str] = ()
    accounts: Mapping[str, str] = field(default_factory=dict)
    trusted_groups: Collection[str] = ()

    def named(self, owner: Owner) -> str | None:
        """The account that an admin named: an entry for the principal wins over one for the person."""
        return self.accounts.get(owner.principal) or self.accounts.get(owner.person)

    def account_name(self, owner: Owner) -> str:
        """The local account of an owner. Raises PermissionRefused where there is none.

        Whom nobody named: users of this node's realm and of those that it trusts are the accounts of the same
        names.
        """
        if (named := self.named(owner)) is not None:
            return named
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
        """Return the account as which an owner's containers run here.

        By a pool's order no account is trusted or root, whatever it is here: an attacker of another machine
        of the pool has not taken over this one. Nor is it an account of the system, whose name is the same on
        all machines, unless an admin of this machine named that account. By the node's own book
        (``coordinator`` empty) the account has the rights that it has on the socket. Raise PermissionRefused,
        or TimedOut if the name services hang.
        """
        rules = self.rules
        name = rules.account_name(owner)
        try:
            async with asyncio.timeout(NAME_SERVICE_SECONDS):
                caller = await ask_names(_look_up, name, rules.trusted_groups)
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
        if coordinator and rules.named(owner) is None and await ask_names(_is_of_the_system, caller.uid):
            raise PermissionRefused(
                f"{shown(owner.principal)} would be {shown(name)} on this node, an account of the system "
                f"(uid {caller.uid})",
                hint="submit it as an ordinary user; or, where that account is meant, the node's admin names "
                f'it below [pool.accounts]: "{owner.principal}" = "{name}"',
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


def _is_of_the_system(uid: int) -> bool:
    """Return True if the number is no ordinary user's: daemons own what their accounts own."""
    return uid < _first_user_id() or uid == NOBODY_ID


def _first_user_id() -> int:
    """UID_MIN of login.defs(5). Never below 1: root is nobody's account."""
    try:
        lines = LOGIN_DEFS.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return FIRST_USER_ID
    words = [line.split() for line in lines]
    told = [pair[1] for pair in words if len(pair) > 1 and pair[0] == "UID_MIN" and pair[1].isdecimal()]
    return max(1, int(told[-1])) if told else FIRST_USER_ID
