"""Serve the node's metrics: over the socket as the caller may see them, over TCP without names of people."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping

from gpushared.config.metrics_settings import NAMES_OF_PEOPLE, metrics_address
from gpushared.config.model import Config
from gpushared.daemon.measures import SHORT_SECONDS, Distribution, follow_lag
from gpushared.daemon.troubles import Troubles
from gpushared.domain.model.errors import GpushareError
from gpushared.domain.model.lease import LeaseId
from gpushared.domain.model.request import Caller
from gpushared.net.exposition import format_of, write
from gpushared.net.http_server import WebReply
from gpushared.net.metrics_listener import KeptPages, MetricsListener
from gpushared.node.runtime.container_reconciler import ContainerReconciler
from gpushared.node.runtime.loop import Loop
from gpushared.node.runtime.sampler import Sampler
from gpushared.node.services.dcgm_mapping import DcgmMapping
from gpushared.node.services.node_counters import NodeCounters
from gpushared.node.services.node_metrics import NodeFigures, Viewer, node_families
from gpushared.ports.gpus import Driver
from gpushared.storage.audit.audit_log import AuditLog
from gpushared.storage.audit.line import AuditLine

VERSION_SECONDS = 3600.0
PAUSE_FACTOR = 100
"""The queue is looked at again after this many times the duration of the last look."""
VERSION_RETRY_SECONDS = 60.0


class NodeMetrics:
    """Follow the loop and the samples from now on. ``config`` returns the newest configuration."""

    def __init__(
        self,
        loop: Loop,
        sampler: Sampler,
        reconciler: ContainerReconciler,
        troubles: Troubles,
        audit: AuditLog,
        driver: Driver | None,
        config: Callable[[], Config],
    ) -> None:
        """Take ``driver``, which is None if the GPUs are simulated."""
        self._loop = loop
        self._sampler = sampler
        self._reconciler = reconciler
        self._troubles = troubles
        self._audit = audit
        self._driver = driver
        self._config = config
        self._lag = Distribution(SHORT_SECONDS)
        self._reasons: Mapping[LeaseId, str] = {}
        self._next_pass_at = 0.0
        self._version = "" if driver else "simulated"
        self._counters = NodeCounters(loop.state, loop.now)
        self._pages = KeptPages()
        self._listener = MetricsListener(
            self._address, lambda _, accept: self._page_on_network(accept), troubles
        )
        self._mapping = DcgmMapping(loop, lambda: config().metrics.dcgm_job_mapping, troubles)
        loop.observers.append(self._counters.observe)
        sampler.observers.append(self._counters.observe_sample)

    def take_audit(self, line: AuditLine) -> None:
        """Count a line of the gate, and pass it on to the audit."""
        self._counters.observe_audit(line)
        self._audit.take(line)

    def page(self, caller: Caller, accept: str) -> WebReply:
        """Return the page for a caller on the socket: a confined one sees the own leases only."""
        return self._page(Viewer(None if caller.trusted else caller.uid), accept)

    def reload(self) -> None:
        """Apply the settings that changed."""
        self._listener.reload()

    async def run(self) -> None:
        """Measure, listen and write for ever."""
        async with asyncio.TaskGroup() as group:
            group.create_task(follow_lag(self._lag))
            group.create_task(self._follow_driver())
            group.create_task(self._listener.run())
            group.create_task(self._mapping.run())

    def _address(self) -> tuple[str, int] | None:
        return metrics_address(self._config().metrics.listen)

    def _page_on_network(self, accept: str) -> WebReply:
        labels = self._config().metrics.labels
        viewer = Viewer(names_users="user" in labels)
        return self._page(viewer, accept, frozenset(NAMES_OF_PEOPLE) - frozenset(labels))

    def _page(self, viewer: Viewer, accept: str, hidden: frozenset[str] = frozenset()) -> WebReply:
        form = format_of(accept)

        def make_page() -> WebReply:
            return WebReply(200, write(node_families(self._figures(), viewer), form, hidden), form.encode())

        return self._pages.page((viewer, form, hidden), make_page)

    def _figures(self) -> NodeFigures:
        loop = self._loop
        return NodeFigures(
            now=loop.now(),
            state=loop.state,
            sample=self._sampler.newest,
            reasons=self._reasons_of_waits(),
            counters=self._counters,
            refusals=loop.refusals,
            pass_seconds=loop.pass_seconds,
            commit_seconds=loop.commit_seconds,
            loop_lag=self._lag,
            troubles=self._troubles.by_part(),
            engine_up=self._reconciler.available.is_set(),
            audit_lost=self._audit.lost_total,
            driver=self._version,
            simulated=self._driver is None,
        )

    def _reasons_of_waits(self) -> Mapping[LeaseId, str]:
        """Return why leases wait. A pass over a long queue takes long, so it is made less often than scrapes come."""
        now = self._loop.now()
        if now >= self._next_pass_at:
            begun = time.perf_counter()
            decided = self._loop.decisions()
            self._reasons = {
                decision.lease: decision.reason for decision in decided if decision.reason is not None
            }
            self._next_pass_at = now + PAUSE_FACTOR * (time.perf_counter() - begun)
        return self._reasons

    async def _follow_driver(self) -> None:
        """Ask for the driver's version, which changes only with the driver."""
        while self._driver is not None:
            try:
                self._version = (await self._driver.describe()).version
            except GpushareError:
                await asyncio.sleep(VERSION_RETRY_SECONDS)
            else:
                await asyncio.sleep(VERSION_SECONDS)
