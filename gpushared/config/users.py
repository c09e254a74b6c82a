"""The people of a pool, in its coordinator's configuration: ``[users.ada]``."""

from __future__ import annotations

from dataclasses import dataclass

from gpushared.config.fields import setting
from gpushared.config.jobs import is_realm
from gpushared.config.kinds import Flag, Text, Words
from gpushared.domain.quotas import is_user_name

USERS = "users"
EVERYBODY = "*"
"""``[users."*"]``: in these realms everybody is the person of the same name."""


def is_principal(text: str) -> bool:
    """Whether it is ``USER@REALM``, or ``*@REALM``."""
    user, at, realm = text.partition("@")
    return bool(at) and (user == EVERYBODY or is_user_name(user)) and is_realm(realm)


@dataclass(frozen=True, slots=True)
class UserConfig:
    """One person. Who is not named is a person of their own, called as their principal: ``ada@ws3``."""

    principals: tuple[str, ...] = setting(
        (),
        Words(Text("a principal such as `ada@lab`", is_principal)),
        "Who on the nodes is this person: user names with the realm (a node's own name, or one that several "
        'nodes share). In `[users."*"]`: `*@REALM`, whose users are the persons of the same names.',
    )
    admin: bool = setting(
        False, Flag(), "May see and end everybody's jobs, drain nodes, and make and revoke tokens."
    )
