"""The rounds of a run against several coordinators: what is hit in each, and how. A seed gives one plan.

A round is made from the seed and its own number, so that round 17 is the same in a run of 20 and of 1 000. Who
leads, and who follows, is found out when a blow strikes.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final, TypeVar

from tests.chaos.plan import FaultKind, Work, WorkKind, choose_work

HOSTS: Final = ("h1", "h2", "h3")
"""Each has a coordinator and a member of etcd."""
LEASE_SECONDS: Final = 10
T = TypeVar("T")


class Role(StrEnum):
    """Whom a blow hits."""

    LEADER = "leader"
    STANDBY = "standby"
    ETCD_LEADER = "etcd-leader"
    ETCD_FOLLOWER = "etcd-follower"
    NODE = "node"


class Way(StrEnum):
    """The direction in which a network is cut, seen from who is hit; what is sent the other way arrives."""

    TO_ETCD = "to etcd"
    FROM_ETCD = "from etcd"
    TO_NODES = "to nodes"
    FROM_NODES = "from nodes"
    TO_MEMBERS = "to members"
    FROM_MEMBERS = "from members"
    TO_CLIENTS = "to clients"
    FROM_CLIENTS = "from clients"
    OUT = "out"
    """Nothing leaves the machine."""
    IN = "in"
    """Nothing reaches the machine."""


WAYS: Final = {
    Role.LEADER: (Way.TO_ETCD, Way.FROM_ETCD, Way.TO_NODES, Way.FROM_NODES, Way.OUT, Way.IN),
    Role.STANDBY: (Way.TO_ETCD, Way.FROM_ETCD, Way.TO_NODES, Way.FROM_NODES, Way.OUT, Way.IN),
    Role.ETCD_LEADER: (Way.TO_MEMBERS, Way.FROM_MEMBERS, Way.TO_CLIENTS, Way.FROM_CLIENTS),
    Role.ETCD_FOLLOWER: (Way.TO_MEMBERS, Way.FROM_MEMBERS, Way.TO_CLIENTS, Way.FROM_CLIENTS),
    Role.NODE: (Way.OUT, Way.IN),
}
_ROLES: Final = (
    (Role.LEADER, 5),
    (Role.STANDBY, 2),
    (Role.ETCD_LEADER, 3),
    (Role.ETCD_FOLLOWER, 2),
)
_KINDS: Final = ((FaultKind.KILL, 3), (FaultKind.FREEZE, 3), (FaultKind.CUT, 4), (FaultKind.SLOW, 2))
_SECOND_RATIO: Final = 0.35
"""So often something else is hit in the same round."""
_SECOND_IS_A_NODE_RATIO: Final = 0.6
_SHORT_SECONDS: Final = (0.2, 8.0)
_LONG_SECONDS: Final = (LEASE_SECONDS + 1.0, LEASE_SECONDS + 6.0)
"""Longer than a leader's lease lives."""
_LONG_RATIO: Final = 0.5
_CANCEL_RATIO: Final = 0.3
_MAX_BEATS: Final = 60
_WORKS: Final = (1, 2, 2, 3)
_TAKES_OFF: Final = frozenset({WorkKind.PAUSE, WorkKind.PREEMPT})


@dataclass(frozen=True, slots=True)
class Blow:
    """``pick`` chooses among those who have the role; ``way`` is of a cut."""

    after_seconds: float
    kind: FaultKind
    role: Role
    seconds: float
    pick: float
    way: Way | None = None

    def __str__(self) -> str:
        return f"{self.kind} {self.role}{f' {self.way}' if self.way else ''}"


@dataclass(frozen=True, slots=True)
class Round:
    """Times are seconds since its begin."""

    number: int
    blows: tuple[Blow, ...]
    work: tuple[Work, ...]


def make_round(seed: int, number: int) -> Round:
    """The same round for the same arguments, always."""
    chance = random.Random(f"ha {seed} {number}")
    first = _choose_blow(chance, _weighted(chance, _ROLES), 0.0)
    blows = [first]
    if chance.random() < _SECOND_RATIO:
        is_node = chance.random() < _SECOND_IS_A_NODE_RATIO
        other = Role.NODE if is_node else _another_role(chance, first.role)
        blows.append(_choose_blow(chance, other, chance.uniform(0.0, 5.0)))
    return Round(number, tuple(blows), _choose_work(chance, number))


def _weighted(chance: random.Random, choices: tuple[tuple[T, int], ...]) -> T:
    return chance.choices([one for one, _ in choices], [weight for _, weight in choices])[0]


def _another_role(chance: random.Random, first: Role) -> Role:
    while True:
        role = _weighted(chance, _ROLES)
        if role is not first:
            return role


def _choose_blow(chance: random.Random, role: Role, after_seconds: float) -> Blow:
    kind = _weighted(chance, _KINDS)
    bounds = _LONG_SECONDS if chance.random() < _LONG_RATIO else _SHORT_SECONDS
    way = chance.choice(WAYS[role]) if kind is FaultKind.CUT else None
    return Blow(round(after_seconds, 2), kind, role, round(chance.uniform(*bounds), 2), chance.random(), way)


def _choose_work(chance: random.Random, number: int) -> tuple[Work, ...]:
    chosen = []
    for place in range(chance.choice(_WORKS)):
        at = round(chance.uniform(0.0, 10.0), 2)
        work = choose_work(chance, at, number * 10 + place)
        while work.kind in _TAKES_OFF:
            work = choose_work(chance, at, number * 10 + place)
        work = replace(work, beats=min(work.beats, _MAX_BEATS))
        if work.kind is WorkKind.SUBMIT and chance.random() < _CANCEL_RATIO:
            work = replace(work, cancel_after_seconds=round(chance.uniform(0.5, 12.0), 2))
        chosen.append(work)
    return tuple(chosen)
