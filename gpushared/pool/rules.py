"""The configuration's figures that a coordinator's rules need."""

from __future__ import annotations

from gpushared.config.model import HostMode
from gpushared.config.pool import CoordinatorConfig
from gpushared.domain.jobs.rules import PoolRules
from gpushared.domain.policy.projects import Policy
from gpushared.domain.request import LeaseClass


def pool_rules_of(config: CoordinatorConfig) -> PoolRules:
    """What holds from now on."""
    return PoolRules(
        policy=policy_of(config),
        preemption=config.queue.preemption,
        placement=config.placement.policy,
        counts_host=config.placement.host is HostMode.AUTO,
        max_queued=config.queue.max_queued,
        max_queued_per_person=config.queue.max_queued_per_person,
        settle_seconds=float(config.nodes.settle_seconds),
        beat_seconds=config.nodes.beat_seconds,
        beats_per_second=config.nodes.beats_per_second,
        reserve_seconds=config.nodes.reserve_seconds,
        stop_grace_seconds=config.queue.stop_grace_seconds,
    )


def policy_of(config: CoordinatorConfig) -> Policy:
    """The configuration's projects, classes and figures, as the policy reads them."""
    queue = config.queue
    return Policy(
        projects={name: one.project(name) for name, one in config.projects.items()},
        classes={
            LeaseClass.BUILD: config.classes_build.rules,
            LeaseClass.TRAIN: config.classes_train.rules,
            LeaseClass.INFER: config.classes_infer.rules,
        },
        half_life_seconds=float(queue.half_life_seconds),
        patience_seconds=float(queue.patience_seconds),
        turn_seconds=float(queue.turn_seconds),
        notice_seconds=float(queue.preempt_notice_seconds),
        grace_seconds=float(queue.stop_grace_seconds),
        reservations=queue.reservations,
    )
