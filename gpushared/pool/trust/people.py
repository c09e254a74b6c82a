"""Map principals, for whom realms vouch, to the people of the pool."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from gpushared.config.queue_rules import EVERYBODY, UserConfig
from gpushared.domain.jobs.job import Owner
from gpushared.domain.model.errors import ConfigError
from gpushared.domain.model.units import shown
from gpushared.pool.trust.principal_names import split_principal


@dataclass(frozen=True, slots=True)
class People:
    """The pool's user table. Nobody in it = everybody is a person of their own, and nobody an admin.

    A person who is configured has no ``@`` in the name, and one who is not always has: the two never meet.
    """

    persons: Mapping[str, str] = field(default_factory=dict)
    """The persons by principal."""
    realms: frozenset[str] = frozenset()
    """In these realms every user is the person of the same name."""
    admins: frozenset[str] = frozenset()

    @property
    def named_realms(self) -> frozenset[str]:
        """All that the table names: whoever speaks for one of these speaks for somebody in it."""
        return self.realms | {principal.partition("@")[2] for principal in self.persons}

    def owner(self, principal: str) -> Owner:
        """Return the person of a principal in the pool. Raise RequestError if the text is no principal."""
        user, realm = split_principal(principal)
        person = self.persons.get(principal) or (user if realm in self.realms else principal)
        return Owner(principal, person, admin=person in self.admins)


def people_of(users: Mapping[str, UserConfig]) -> People:
    """The table as configured. Raises ConfigError where it contradicts itself."""
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
    return People(
        persons={principal: name for principal, name in persons.items() if name != EVERYBODY},
        realms=frozenset(one.partition("@")[2] for one, name in persons.items() if name == EVERYBODY),
        admins=frozenset(name for name, user in users.items() if user.admin),
    )
