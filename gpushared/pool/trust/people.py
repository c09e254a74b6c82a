"""Name principals as certificates carry them, and map them to the people of the pool.

``gpushare://lab/node/ws3`` is a node, ``gpushare://lab/coordinator`` the coordinator, and
``gpushare://lab/realm/vision`` a realm whose users a node may assert.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from gpushared.config.job_settings import is_realm
from gpushared.config.queue_rules import EVERYBODY, UserConfig
from gpushared.domain.jobs.job import NodeName, Owner
from gpushared.domain.leases.project_settings import is_user_name
from gpushared.domain.model.errors import ConfigError, RequestError
from gpushared.domain.model.units import shown

SCHEME = "gpushare"
_POOL = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,30}[a-z0-9])?")


@dataclass(frozen=True, slots=True)
class People:
    """Hold the pool's user table. With an empty table every principal is a person, and nobody is an admin.

    A configured person has no ``@`` in the name, and every other person has one, so that the two never clash.
    """

    persons: Mapping[str, str] = field(default_factory=dict)
    """The keys are principals, the values are persons."""
    realms: frozenset[str] = frozenset()
    """In these realms every user is the person of the same name."""
    admins: frozenset[str] = frozenset()

    @property
    def named_realms(self) -> frozenset[str]:
        """Return all realms that the table names.

        A node with one of these realms may assert a person of the table.
        """
        return self.realms | {principal.partition("@")[2] for principal in self.persons}

    def owner(self, principal: str) -> Owner:
        """Return the person of a principal in the pool. Raises RequestError if the text is no principal."""
        user, realm = split_principal(principal)
        person = self.persons.get(principal) or (user if realm in self.realms else principal)
        return Owner(principal, person, admin=person in self.admins)


def people_of(users: Mapping[str, UserConfig]) -> People:
    """Return the table as configured. Raises ConfigError if the table contradicts itself."""
    persons: dict[str, str] = {}
    for name, user in users.items():
        if "@" in name:
            raise ConfigError(f"{shown(name)} cannot be a person's name", hint="it may have no @")
        for principal in user.principals:
            if (name == EVERYBODY) != principal.startswith(f"{EVERYBODY}@"):
                hint = f'only [users."{EVERYBODY}"] has them, and nothing else: principals = ["*@lab"]'
                raise ConfigError(f"users.{name}: {principal} stands in the wrong place", hint=hint)
            if persons.setdefault(principal, name) != name:
                hint = "each principal is one person"
                raise ConfigError(f"{principal} is both {persons[principal]} and {name}", hint=hint)
    if EVERYBODY in users and users[EVERYBODY].admin:
        raise ConfigError('users."*" cannot be admin', hint="name the admins one by one: [users.ada]")
    of_everybody = (principal for principal, name in persons.items() if name == EVERYBODY)
    return People(
        persons={principal: name for principal, name in persons.items() if name != EVERYBODY},
        realms=frozenset(principal.partition("@")[2] for principal in of_everybody),
        admins=frozenset(name for name, user in users.items() if user.admin),
    )


def pool_name(text: str) -> str:
    """Return the text if it can be a pool's name, which is a part of host names. Raises RequestError."""
    if _POOL.fullmatch(text) is None:
        hint = "use up to 32 small letters, digits and dashes, with a letter or digit at both ends"
        raise RequestError(f"{shown(text)} cannot be a pool's name", hint=hint)
    return text


def node_name(text: str) -> NodeName:
    """Return the text if it can be a node's name, which is also a realm's. Raises RequestError."""
    return NodeName(realm_name(text, "a node's"))


def realm_name(text: str, whose: str = "a realm's") -> str:
    """Return the text if it can be a realm's name. Raises RequestError."""
    if not is_realm(text):
        hint = "use up to 64 letters, digits and . _ - with a letter or digit at both ends"
        raise RequestError(f"{shown(text)} cannot be {whose} name", hint=hint)
    return text


def split_principal(text: str) -> tuple[str, str]:
    """Split ``ada@lab`` into ``("ada", "lab")``. Raises RequestError."""
    user, _, realm = text.partition("@")
    if user == "*" or not is_user_name(user) or not is_realm(realm):
        raise RequestError(f"{shown(text)} is not a principal", hint="write USER@REALM, as ada@lab")
    return user, realm


def coordinator_uri(pool: str) -> str:
    return f"{SCHEME}://{pool}/coordinator"


def node_uri(pool: str, node: str) -> str:
    return f"{SCHEME}://{pool}/node/{node}"


def realm_uri(pool: str, realm: str) -> str:
    return f"{SCHEME}://{pool}/realm/{realm}"


def coordinator_host(pool: str) -> str:
    """Return the host name that every server certificate of the pool holds, at whatever address.

    Clients that know the pool's anchors request this name; ICANN reserves ``.internal`` for private use.
    """
    return f"coordinator.{pool}.gpushare.internal"
