"""The figures of the configuration that a coordinator needs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from gpushared.domain.fleet.policies import PolicyName
from gpushared.domain.gpu import MIB
from gpushared.domain.policy.projects import Policy, Project, without_preemption
from gpushared.domain.rules import Preemption

TOLD_JOBS = 4096
"""So many jobs that a coordinator does not remember it learns from one node: more than run on a node, with
those that are over and of which a node tells."""
TOLD_BYTES = 64 * MIB
"""So much of what was said of them."""


class WhenCutOff(StrEnum):
    """What a node may give by itself of a project with a limit while its coordinator does not answer.

    ``serve``: what it was allowed last. ``refuse``: nothing more after ``cut_off_seconds``. Either way the
    coordinator counts that as held until it hears of the node: leases outlive the permission to give them.
    """

    SERVE = "serve"
    REFUSE = "refuse"


@dataclass(frozen=True, slots=True)
class PoolRules:
    """Times in seconds.

    ``here``: this is a node's own book. Its only member is the node itself, in whose queue jobs wait with
    everybody else, so that nothing is planned here.
    """

    here: bool = False
    policy: Policy = field(default_factory=Policy)
    preemption: Preemption = Preemption.AUTO
    placement: PolicyName = PolicyName.FRAGMENTATION
    counts_host: bool = True
    max_queued: int = 200_000
    """Of jobs that are not over, as all bounds of the pool and of a realm."""
    max_queued_bytes: int = 2048 * MIB
    """Of what was said of these jobs at their submission."""
    max_queued_per_realm: int = 150_000
    max_queued_bytes_per_realm: int = 1024 * MIB
    max_queued_per_person: int = 120_000
    """Of jobs that wait."""
    max_queued_bytes_per_person: int = 512 * MIB
    max_told_per_node: int = TOLD_JOBS
    max_told_bytes_per_node: int = TOLD_BYTES
    max_numbers_per_node: int = 100_000
    """Of so many attempts that are over, of jobs that are not remembered, one node says only the number."""
    ended_kept: int = 20_000
    """So many jobs that are over are remembered; the store has more."""
    ended_bytes_kept: int = 256 * MIB
    """So much of what was said of them at their submission."""
    settle_seconds: float = 60.0
    """So long after a start nothing old is placed, where not all members have reported before."""
    recover_seconds: float = 120.0
    """A recovery lasts at least so long, for members that joined after what we remember."""
    beat_seconds: float = 5.0
    beats_per_second: float = 50.0
    """Of more members than make so many, each beats less often."""
    resend_seconds: float = 10.0
    """An order without an answer is said again after so long."""
    retry_seconds: float = 5.0
    """Before a job is run again after its first failure; doubled with each further one."""
    retry_most_seconds: float = 600.0
    troubles_borne: int = 12
    """So often in a row a job may fail to begin for something that passes, after the same waits,"""
    trouble_most_seconds: float = 300.0
    """of which none is longer: half an hour in all."""
    refused_seconds: float = 0.5
    """Before a job that a node had no room for is placed again, and the same growth."""
    refused_most_seconds: float = 30.0
    refusals_before_rest: int = 3
    """A node that refuses so many places in a row is tried last for ``rest_seconds``, and with each more that
    it refuses by the same words for twice as long."""
    rest_seconds: float = 60.0
    stop_grace_seconds: int = 10
    fence_margin_seconds: float = 30.0
    fence_drift: float = 0.01
    """By how much a node's clock may be slower than ours."""
    reserve_seconds: int = 60
    """A gang's reservations last so long without a word."""
    gang_patience_seconds: float = 120.0
    """A gang that waits longer has nodes kept for it."""
    plan_seconds: float = 0.05
    """Between two passes over the queue."""
    looked_at: int = 500
    """So many waiting jobs are looked at in a pass,"""
    looked_at_alike: int = 64
    """and so many that ask for the same."""
    placed_at_once: int = 100
    """So many are placed in a pass."""
    here_at_once: int = 50
    """With ``here``: so many of one person wait in the node's own queue, which has bounds; the others wait
    in the book."""

    when_cut_off: WhenCutOff = WhenCutOff.SERVE
    cut_off_seconds: float = 300.0
    principals: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """By person, whoever on nodes that is;"""
    common_realms: frozenset[str] = frozenset()
    """and in these realms everybody is the person of the same name."""

    def policy_with(self, projects: Mapping[str, Project]) -> Policy:
        """Who goes next, and whether anybody gives way."""
        policy = replace(self.policy, projects={**self.policy.projects, **projects})
        if self.preemption is Preemption.ON or (self.preemption is Preemption.AUTO and policy.projects):
            return policy
        return without_preemption(policy)
