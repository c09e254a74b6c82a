"""Build the parts for users' jobs here, and of a pool's member: link, view of the pool's jobs, tunnels."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from gpushared.api.v1 import jobs_pb2
from gpushared.config.model import Config
from gpushared.daemon.troubles import Troubles
from gpushared.doctor.machine_facts import PoolView
from gpushared.domain.jobs.attempt_log import Attempt
from gpushared.domain.jobs.coordinator_rules import PoolRules
from gpushared.domain.jobs.job import Job, NodeName, Owner
from gpushared.domain.leases.node_state import NodeState
from gpushared.domain.model.lease import AttemptKey
from gpushared.domain.model.request import Caller
from gpushared.jobs.job_recorder import JobRecorder
from gpushared.net.call_checks import error_of
from gpushared.net.unary_json import Unary
from gpushared.node.jobs.job_host import JobHost
from gpushared.node.jobs.local_jobs import LocalJobs
from gpushared.node.pool.calls_for_pool import calls_for_pool
from gpushared.node.pool.membership_service import admin_calls
from gpushared.node.pool.order_audit import OrderAudit
from gpushared.node.pool.pool_jobs import PoolJobs
from gpushared.node.pool.pool_link import PoolClients, PoolLink, in_no_pool
from gpushared.node.runtime.loop import Loop
from gpushared.node.services.jobs_of_node import NodeJobs
from gpushared.node.services.node_service import Api
from gpushared.pool.member.coordinator_calls import CoordinatorCalls, Metadata
from gpushared.pool.member.enrolment import Enrolment
from gpushared.pool.member.node_ports import Answerer
from gpushared.pool.member.outbox import OUTBOX, Outbox
from gpushared.pool.member.tunnel_endpoints import TunnelEndpoints
from gpushared.pool.member.tunnel_ends import TunnelEnds
from gpushared.pool.trust.assertions import Asserter
from gpushared.ports import Clock
from gpushared.ports.job_store import JobStore
from gpushared.storage.audit.line import Sink
from gpushared.storage.history import SqliteHistory

DOCKER_HOSTS_FOLDER = "doors"
MAX_AT_ONCE = 50
"""At most this many jobs of one person are in the node's queue at a time."""


class PoolServices:
    """Serve the pool's part of a node, during a membership; local calls are the same without it."""

    def __init__(
        self,
        config: Callable[[], Config],
        enrolment: Enrolment,
        loop: Loop,
        host: JobHost,
        job_services: JobServices,
        api: Api,
        troubles: Troubles,
        audit: Sink,
        *,
        runtime_dir: Path,
        simulated: bool,
        answerers: Mapping[str, Answerer],
    ) -> None:
        """Take an open ``job_services`` and a loaded ``enrolment``."""
        orders = OrderAudit(audit, lambda: enrolment.membership.pool if enrolment.membership else "")
        self.link = PoolLink(
            config,
            enrolment,
            host.order_handler,
            loop,
            job_services.outbox,
            troubles,
            orders,
            simulated=simulated,
            answerers=answerers,
        )
        self._loop = loop
        self._enrolment = enrolment
        self._job_services = job_services
        self._api = api
        self._accounts = host.accounts
        self._calls = CoordinatorCalls(
            self.link.channel,
            enrolment.asserter,
            lambda caller: job_services.jobs.owner(caller).principal,
            lambda _: (),
            time.time,
        )
        self._make_tunnels(runtime_dir, host, orders)
        job_services.outbox.sender = self.link
        self._follow_membership()

    def _make_tunnels(self, runtime_dir: Path, host: JobHost, orders: OrderAudit) -> None:
        self._ends = TunnelEnds(
            self.link.channel,
            self._attempt,
            self._account,
            host.loopback_gate.socket_as,
            orders.tunnel,
            self.link.connected_seconds,
        )
        self._endpoints = TunnelEndpoints(
            runtime_dir / DOCKER_HOSTS_FOLDER,
            self.link.channel,
            self._vouch,
            lambda error: error_of(error, "the pool's coordinator"),
        )
        self.link.receivers.open_tunnel = self._ends.open
        self.link.receivers.fell_silent = self._calls.give_up

    def calls(self) -> dict[str, Unary]:
        """Return the calls, besides those about jobs, that go to the coordinator unchanged."""
        return admin_calls(self._calls)

    def with_pool(self, own: Mapping[str, Unary]) -> dict[str, Unary]:
        """Return this node's own calls, which the coordinator answers where a message asks for the pool."""
        return calls_for_pool(own, self._calls)

    def view(self, realm: str) -> PoolView | None:
        """Return the membership's state for the doctor, None without a pool. ``realm``: its users' realm."""
        membership = self._enrolment.membership
        if membership is None:
            return None
        facts, state = membership.facts, self.link.state
        return PoolView(
            name=membership.pool,
            node=membership.node,
            address=state.address if state is not None else membership.node_address,
            now=time.time(),
            issued_at=facts.issued_at,
            expires_at=facts.expires_at,
            realm=realm,
            may_assert=facts.may_assert(realm),
            away=self.link.away(),
            hint=state.hint if state is not None else "",
            coordinators=state.coordinators if state is not None else 1,
            clock_ahead_seconds=state.clock_ahead_seconds if state is not None else None,
        )

    async def run(self) -> None:
        """Keep up the parts of the membership, for ever."""
        async with AsyncExitStack() as stack:
            stack.push_async_callback(self._endpoints.close)
            stack.push_async_callback(self._ends.close)
            clients = PoolClients(self._job_services.outbox, self.link)
            await asyncio.gather(self.link.run(), self._follow(), clients.run())

    async def _follow(self) -> None:
        """Serve the pool's jobs while the node is in a pool."""
        while True:
            version = self._enrolment.version
            self._follow_membership()
            await self._enrolment.changed(version)

    def _follow_membership(self) -> None:
        """Set the pool that the node is in now; the first call comes before any client can ask."""
        membership, jobs = self._enrolment.membership, self._job_services.jobs
        jobs.endpoints = None if membership is None else self._endpoints
        if membership is None:
            jobs.pool = None
        elif jobs.pool is None or jobs.pool.name != membership.pool:
            jobs.pool = self._pool_jobs(membership.pool, NodeName(membership.node))

    def _pool_jobs(self, pool: str, node: NodeName) -> PoolJobs:
        return PoolJobs(
            pool, node, self._job_services.outbox, self._calls, self.link, presets=lambda: self._api.presets
        )

    def _attempt(self, key: AttemptKey) -> Attempt | None:
        """Find an attempt in the log of the pool that this node is in now."""
        membership = self._enrolment.membership
        attempt_log = self._loop.state.attempts.get(membership.pool) if membership is not None else None
        return None if attempt_log is None else attempt_log.get(key)

    async def _account(self, owner: Owner) -> Caller:
        """Return the account of an owner's containers here under the pool's orders. Raises StateConflict."""
        membership = self._enrolment.membership
        if membership is None:
            raise in_no_pool()
        return await self._accounts.caller(owner, membership.pool)

    async def _vouch(self, caller: Caller, first: jobs_pb2.TunnelChunk) -> Metadata:
        return self._calls.assertion_metadata(first, caller)


def local_job_rules_of(config: Config) -> PoolRules:
    """Return the rules of the node's own jobs; half of one user's part of the queue is left for ``run``."""
    return PoolRules(
        here=True,
        stop_grace_seconds=config.engine.stop_grace_seconds,
        here_at_once=min(MAX_AT_ONCE, max(1, config.queue.max_queued_per_user // 2)),
    )


def _no_asserter() -> Asserter:
    raise in_no_pool()


class JobServices:
    """Hold ``jobs``, which has the calls, and ``outbox`` for the link to a pool, both only while ``open``."""

    jobs: NodeJobs
    outbox: Outbox
    recorder: JobRecorder
    _local_jobs: LocalJobs

    def __init__(
        self,
        store: JobStore,
        clock: Clock,
        troubles: Troubles,
        history: SqliteHistory,
        asserter: Callable[[], Asserter] = _no_asserter,
    ) -> None:
        """Take ``asserter``, which vouches for this node's users; it raises StateConflict without a pool."""
        self.on_change: Callable[[], None] = lambda: None
        """This function is called when the node's own jobs have changed."""
        self._store = store
        self._clock = clock
        self._troubles = troubles
        self._history = history
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
        """Open the jobs while the block runs. Raises ConfigError, StoreUnavailable, TimedOut.

        ``socket`` is the path of the node's own socket.
        """
        local_jobs = LocalJobs(
            self._store, local_job_rules_of(config()), host.order_handler, self._clock, self._troubles
        )
        async with local_jobs.running():
            self._local_jobs = local_jobs
            local_jobs.loop.on_change = self._tell_of_change
            self.recorder = JobRecorder(
                local_jobs.loop, self._history, self._troubles, lambda job: _account_of(job, loop.state)
            )
            contents = await self._store.load(OUTBOX)
            self.outbox = Outbox(
                {key: record.value for key, record in contents.records.items()},
                local_jobs.loop.write,
                self._asserter,
                lambda: self._clock.now() + self._clock.ahead(),
            )
            self.jobs = NodeJobs(
                local_jobs,
                loop,
                api.views,
                host,
                node_name=node_name,
                realm=lambda: config().pool.realm or node_name,
                presets=lambda: api.presets,
                socket=socket,
            )
            try:
                yield self.jobs
            finally:
                await self.recorder.close()

    def reload(self, config: Config) -> None:
        """Apply the settings that can change at run time."""
        self._local_jobs.loop.take_rules(local_job_rules_of(config))

    def _tell_of_change(self) -> None:
        self.on_change()


def _account_of(job: Job, state: NodeState) -> tuple[str, int]:
    """Return the account of a job's lease; before it has one the name in its submission, with no number."""
    for part in job.parts:
        lease = None if part.lease is None else state.leases.get(part.lease) or state.ended.get(part.lease)
        if lease is not None:
            return lease.owner_name, lease.owner_uid
    return job.spec.owner.name, -1
