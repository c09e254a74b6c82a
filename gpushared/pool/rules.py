"""The configuration's figures that a coordinator's rules need."""

from __future__ import annotations

from gpushared.config.model import HostMode
from gpushared.config.pool import CoordinatorConfig
from gpushared.config.queue_policy import queue_policy_of
from gpushared.config.users import EVERYBODY
from gpushared.domain.jobs.coordinator_rules import PoolRules


def pool_rules_of(config: CoordinatorConfig) -> PoolRules:
    """Return the rules of the pool as configured."""
    return PoolRules(
        policy=queue_policy_of(config, stop_grace_seconds=config.queue.stop_grace_seconds),
        preemption=config.queue.preemption,
        placement=config.placement.policy,
        counts_host=config.placement.host is HostMode.AUTO,
        max_queued=config.queue.max_queued,
        max_queued_bytes=config.queue.max_queued_bytes,
        max_queued_per_realm=config.queue.max_queued_per_realm,
        max_queued_bytes_per_realm=config.queue.max_queued_bytes_per_realm,
        max_queued_per_person=config.queue.max_queued_per_person,
        max_queued_bytes_per_person=config.queue.max_queued_bytes_per_person,
        settle_seconds=float(config.nodes.settle_seconds),
        beat_seconds=config.nodes.beat_seconds,
        beats_per_second=config.nodes.beats_per_second,
        reserve_seconds=config.nodes.reserve_seconds,
        stop_grace_seconds=config.queue.stop_grace_seconds,
        when_cut_off=config.quotas.when_cut_off,
        cut_off_seconds=float(config.quotas.cut_off_seconds),
        principals={name: one.principals for name, one in config.users.items() if name != EVERYBODY},
        common_realms=_common_realms(config),
    )


def _common_realms(config: CoordinatorConfig) -> frozenset[str]:
    everybody = config.users.get(EVERYBODY)
    return frozenset(one.partition("@")[2] for one in everybody.principals) if everybody else frozenset()
