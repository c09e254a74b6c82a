"""What a running coordinator is made of, as its services see it, and at which of its doors each is served."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

import grpc

from gpushared.config.pool import CoordinatorConfig
from gpushared.pool.link import LinkService
from gpushared.pool.loop import PoolLoop
from gpushared.pool.store import Store
from gpushared.pool.trust.trust import Trust
from gpushared.serving.audit_log import AuditLog
from gpushared.serving.call_audit import CallAudit
from gpushared.serving.jsonapi import Unary
from gpushared.serving.troubles import Troubles


class Door(StrEnum):
    """Where a call may come in."""

    NODES = "nodes"
    """TLS; each connection has a node's certificate."""
    USERS = "users"
    """TLS; nobody has one."""
    LOCAL = "local"
    """The unix socket, for administrators."""


@dataclass(frozen=True, slots=True)
class Service:
    """One gRPC service. ``calls``: those of its unary calls that the unix socket answers as JSON, too."""

    name: str
    doors: frozenset[Door]
    add: Callable[[grpc.aio.Server], None]
    calls: Mapping[str, Unary] = field(default_factory=dict)


@dataclass(slots=True)
class Coordinator:
    """Everything that services need. ``config`` gives the newest configuration."""

    config: Callable[[], CoordinatorConfig]
    loop: PoolLoop
    store: Store
    trust: Trust
    link: LinkService
    troubles: Troubles
    audit: AuditLog
    of_calls: CallAudit
    """Where calls are told of that the audit is to know."""
    nodes_port: Callable[[], int]


Room = Callable[[Coordinator], Sequence[Service]]
"""Makes the services of one part of the program."""
