"""Make the queue's policy from the configuration of a node or of a coordinator."""

from __future__ import annotations

from gpushared.config.model import Config
from gpushared.config.pool_settings import CoordinatorConfig
from gpushared.domain.model.request import LeaseClass
from gpushared.domain.scheduling.projects import Policy


def queue_policy_of(config: Config | CoordinatorConfig, *, stop_grace_seconds: int) -> Policy:
    """Return the configuration's projects, classes and figures, as the policy reads them."""
    queue = config.queue
    return Policy(
        projects={name: project.project(name) for name, project in config.projects.items()},
        classes={
            LeaseClass.BUILD: config.classes_build.rules,
            LeaseClass.TRAIN: config.classes_train.rules,
            LeaseClass.INFER: config.classes_infer.rules,
        },
        half_life_seconds=float(queue.half_life_seconds),
        patience_seconds=float(queue.patience_seconds),
        turn_seconds=float(queue.turn_seconds),
        notice_seconds=float(queue.preempt_notice_seconds),
        grace_seconds=float(stop_grace_seconds),
        reservations=queue.reservations,
        drain_seconds=float(queue.drain_seconds),
    )
