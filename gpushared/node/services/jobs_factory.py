"""Build the parts for jobs that come in on this node: its own book, and its records for a pool."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from gpushared.config.model import Config
from gpushared.daemon.troubles import Troubles
from gpushared.domain.jobs.coordinator_rules import PoolRules
from gpushared.domain.model.errors import StateConflict
from gpushared.node.jobs.job_host import JobHost
from gpushared.node.jobs.local_jobs import LocalBook
from gpushared.node.runtime.loop import Loop
from gpushared.node.services.jobs_of_node import NodeJobs
from gpushared.node.services.node_service import Api
from gpushared.pool.member.outbox import OUTBOX, Outbox
from gpushared.pool.trust.assertions import Asserter
from gpushared.ports import Clock
from gpushared.ports.job_store import JobStore

MAX_AT_ONCE = 50
"""At most so many jobs of one person are in the node's queue at a time."""


def book_rules_of(config: Config) -> PoolRules:
    """Return the rules of the node's own book; half of one user's part of the queue is left for ``run``."""
    return PoolRules(
        here=True,
        stop_grace_seconds=config.engine.stop_grace_seconds,
        here_at_once=min(MAX_AT_ONCE, max(1, config.queue.max_queued_per_user // 2)),
    )


def _in_no_pool() -> Asserter:
    raise StateConflict("this node is in no pool", hint="gpushare node join HOST --token-file FILE")


class JobsRoom:
    """``jobs`` has the calls; ``outbox`` what the link to a pool needs. Both only while it is ``open``."""

    jobs: NodeJobs
    outbox: Outbox

    def __init__(
        self,
        store: JobStore,
        clock: Clock,
        troubles: Troubles,
        asserter: Callable[[], Asserter] = _in_no_pool,
    ) -> None:
        """``asserter`` speaks for this node's users; it raises StateConflict where there is no pool."""
        self._store = store
        self._clock = clock
        self._troubles = troubles
        self._asserter = asserter

    @asynccontextmanager
    async def open(
        self,
        config: Callable[[], Config],
        loop: Loop,
        api: Api,
        host: JobHost,
        *,
        node_name: str,
        socket: str,
    ) -> AsyncIterator[NodeJobs]:
        """``socket``: the path of the node's own. Raises ConfigError, StoreUnavailable, TimedOut."""
        book = LocalBook(self._store, book_rules_of(config()), host.desk, self._clock, self._troubles)
        async with book.running():
            kept = await self._store.load(OUTBOX)
            self.outbox = Outbox(
                {key: record.value for key, record in kept.records.items()},
                book.loop.write,
                self._asserter,
                lambda: self._clock.now() + self._clock.ahead(),
            )
            self.jobs = NodeJobs(
                book,
                loop,
                api.views,
                host,
                node_name=node_name,
                realm=lambda: config().pool.realm or node_name,
                presets=lambda: api.presets,
                stop_grace_seconds=config().engine.stop_grace_seconds,
                socket=socket,
            )
            yield self.jobs
