"""Hold the figures of the configuration that a coordinator needs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from gpushared.domain.model.gpu import MIB
from gpushared.domain.scheduling.placement.policies import PolicyName
from gpushared.domain.scheduling.projects import Policy, PreemptionSetting, Project, with_preemption

MAX_REPORTED_JOBS = 4096
"""A coordinator learns at most this many jobs that it does not remember from one node. That is more than a
node's running jobs together with the finished jobs that the node reports."""
MAX_REPORTED_BYTES = 64 * MIB
"""The descriptions of these jobs take at most this much."""


@dataclass(frozen=True, slots=True)
class PoolRules:
    """Bound and time a coordinator's work. Times are in seconds.

    ``here`` means that these are a node's own jobs. Their only member is the node itself, and the jobs wait
    in the node's own queue with all other requests, so the coordinator plans nothing.
    """

    here: bool = False
    policy: Policy = field(default_factory=Policy)
    preemption: PreemptionSetting = PreemptionSetting.AUTO
    placement: PolicyName = PolicyName.FRAGMENTATION
    counts_host: bool = True
    max_queued: int = 200_000
    """The bound counts unfinished jobs, as do all bounds of the pool and of a realm."""
    max_queued_bytes: int = 2048 * MIB
    """The descriptions of these jobs at their submission take at most this much."""
    max_queued_per_realm: int = 150_000
    max_queued_bytes_per_realm: int = 1024 * MIB
    max_queued_per_person: int = 120_000
    """The bound counts waiting jobs."""
    max_queued_bytes_per_person: int = 512 * MIB
    max_reported_jobs_per_node: int = MAX_REPORTED_JOBS
    max_reported_bytes_per_node: int = MAX_REPORTED_BYTES
    max_numbers_per_node: int = 100_000
    """A node reports only the numbers of at most this many finished attempts of jobs that are not
    remembered."""
    ended_kept: int = 20_000
    """This many finished jobs are remembered; the store has more."""
    ended_bytes_kept: int = 256 * MIB
    """The descriptions of these jobs at their submission take at most this much."""
    settle_seconds: float = 60.0
    """Nothing old is placed for this long after a start, unless all members have reported before."""
    recover_seconds: float = 120.0
    """A recovery lasts at least this long, for members that joined after the last change that we remember."""
    beat_seconds: float = 5.0
    beats_per_second: float = 50.0
    """With so many members that heartbeats would be more frequent than this, each member sends heartbeats
    less often."""
    resend_seconds: float = 10.0
    """An order without an answer is sent again after this long."""
    retry_seconds: float = 5.0
    """A job waits this long to be run again after its first failure, twice as long after each further one."""
    retry_most_seconds: float = 600.0
    troubles_borne: int = 12
    """A job may fail this many times in a row to begin for a passing reason, after the same waits,"""
    trouble_most_seconds: float = 300.0
    """and none of these waits is longer than this: half an hour in all."""
    refused_seconds: float = 0.5
    """A job that a node had no room for waits this long to be placed again, and the wait grows in the same
    way."""
    refused_most_seconds: float = 30.0
    refusals_before_rest: int = 3
    """A node that refuses this many places in a row is tried last for ``rest_seconds``. Each further refusal
    with the same report doubles that time."""
    rest_seconds: float = 60.0
    stop_grace_seconds: int = 10
    fence_margin_seconds: float = 30.0
    fence_drift: float = 0.01
    """A node's clock may be slower than ours by this much."""
    reserve_seconds: int = 60
    """A gang's reservations last this long without contact."""
    gang_patience_seconds: float = 120.0
    """A gang that waits longer has nodes kept for it."""
    plan_seconds: float = 0.05
    """This much time lies between two passes over the queue."""
    looked_at: int = 500
    """A pass looks at this many waiting jobs,"""
    looked_at_alike: int = 64
    """and at this many that ask for the same."""
    placed_at_once: int = 100
    """A pass places at most this many jobs."""
    here_at_once: int = 50
    """With ``here``: this many jobs of one person wait in the node's own queue, which has bounds. The
    others wait in the job store."""
    principals: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """A person's principals on the nodes;"""
    common_realms: frozenset[str] = frozenset()
    """in these realms every user is the person of the same name."""

    def policy_with(self, projects: Mapping[str, Project]) -> Policy:
        """Return the policy that decides which request goes next, and if any lease gives way."""
        policy = replace(self.policy, projects={**self.policy.projects, **projects})
        return with_preemption(policy, self.preemption)
