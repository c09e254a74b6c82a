"""Define the people of a pool, in its coordinator's configuration: ``[users.ada]``."""

from __future__ import annotations

from dataclasses import dataclass

from gpushared.config.fields import setting
from gpushared.config.jobs import is_realm
from gpushared.config.kinds import Text, TextList, YesOrNo
from gpushared.domain.leases.project_settings import is_user_name

USERS = "users"
EVERYBODY = "*"
"""With ``[users."*"]`` each user of these realms is the person of the same name."""


def is_principal(text: str) -> bool:
    """Return True if the text is ``USER@REALM``, or ``*@REALM``."""
    user, at, realm = text.partition("@")
    return bool(at) and (user == EVERYBODY or is_user_name(user)) and is_realm(realm)


@dataclass(frozen=True, slots=True)
class UserConfig:
    """One person. A principal that no person lists is a person of their own of that name: ``ada@ws3``."""

    principals: tuple[str, ...] = setting(
        (),
        TextList(Text("a principal such as `ada@lab`", is_principal)),
        "Who on the nodes is this person: user names with the realm (a node's own name, or one that several "
        'nodes share). In `[users."*"]`: `*@REALM`, whose users are the persons of the same names.',
    )
    admin: bool = setting(
        False, YesOrNo(), "May see and end everybody's jobs, drain nodes, and make and revoke tokens."
    )
