"""Define the parts of a running coordinator for its services, and the doors at which they are served."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

import grpc

from gpushared.config.pool_settings import CoordinatorConfig
from gpushared.daemon.troubles import Troubles
from gpushared.jobs.coordinator_loop import PoolLoop
from gpushared.net.call_audit import CallAudit
from gpushared.net.unary_json import Unary
from gpushared.pool.coordinator.node_links import LinkService
from gpushared.pool.trust.trust import PoolTrust
from gpushared.ports.job_store import JobStore
from gpushared.storage.audit.audit_log import AuditLog


class Listener(StrEnum):
    """Name the doors at which a call may come in."""

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
    doors: frozenset[Listener]
    add: Callable[[grpc.aio.Server], None]
    calls: Mapping[str, Unary] = field(default_factory=dict)


@dataclass(slots=True)
class CoordinatorParts:
    """Everything that services need. ``config`` gives the newest configuration."""

    config: Callable[[], CoordinatorConfig]
    loop: PoolLoop
    store: JobStore
    trust: PoolTrust
    link: LinkService
    troubles: Troubles
    audit: AuditLog
    of_calls: CallAudit
    """Calls that the audit is to know are told here."""
    nodes_port: Callable[[], int]


Room = Callable[[CoordinatorParts], Sequence[Service]]
"""Makes the services of one part of the program."""
