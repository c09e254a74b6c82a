"""Wire the coordinator's parts, and run the coordinator from its start to its end."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import grpc

import gpushared
from gpushared.api.v1 import jobs_pb2, link_pb2, pool_pb2, pool_pb2_grpc
from gpushared.config.model import HostMode
from gpushared.config.pool_settings import CoordinatorConfig
from gpushared.config.queue_policy import queue_policy_of
from gpushared.config.queue_rules import EVERYBODY
from gpushared.daemon.clocks import CLOCK_NAME, SteadyClock, keep, keep_always
from gpushared.daemon.process import first_to_end, keep_aside, no_collection, until_one_ends
from gpushared.daemon.systemd import Notifier, feed_watchdog
from gpushared.daemon.troubles import Troubles
from gpushared.domain.jobs.coordinator import restore
from gpushared.domain.jobs.coordinator_events import NodeEnrolled, PoolTick
from gpushared.domain.jobs.coordinator_rules import PoolRules
from gpushared.domain.jobs.coordinator_state import PoolState
from gpushared.domain.jobs.job import HERE, Ended, Job, NodeName
from gpushared.domain.jobs.member import Member
from gpushared.domain.model.errors import ConfigError, GpushareError, NotFound
from gpushared.domain.model.lease import JobId
from gpushared.domain.model.request import Caller
from gpushared.domain.model.span import milliseconds
from gpushared.domain.scheduling.projects import may_use
from gpushared.jobs.coordinator_loop import PoolLoop
from gpushared.jobs.job_recorder import JobRecorder
from gpushared.jobs.job_search import known_job
from gpushared.jobs.job_views import JobViews, has_simulated
from gpushared.jobs.leader_clock import ClockOfLoop, keep_leader_clock
from gpushared.jobs.restore import restored
from gpushared.jobs.standby import Standby
from gpushared.net.call_audit import CallAudit
from gpushared.net.call_checks import CallAuthenticator, check_identity
from gpushared.net.front import Front, listen
from gpushared.net.http_server import Exchange, Routes, WebReply, WebRequest
from gpushared.net.identity import Identities, Peer
from gpushared.net.intake import Intake
from gpushared.net.revisions import Revisions
from gpushared.net.unary_json import JsonApi
from gpushared.notify.outbox import NotificationOutbox
from gpushared.notify.payload import Origin
from gpushared.notify.targets import routes_of
from gpushared.pool.coordinator.admin_service import phase_of
from gpushared.pool.coordinator.connections import Connections, bounds_here
from gpushared.pool.coordinator.coordinator_registry import CoordinatorRegistry
from gpushared.pool.coordinator.history_gatherer import HistoryGatherer, LeaseOwners
from gpushared.pool.coordinator.node_links import LinkService
from gpushared.pool.coordinator.page_streams import pool_streams
from gpushared.pool.coordinator.pool_metrics import PoolMetrics
from gpushared.pool.coordinator.pool_notifier import PoolNotifier
from gpushared.pool.coordinator.pool_page import PoolPage
from gpushared.pool.coordinator.running_parts import CoordinatorParts, Listener, Service, ServiceFactory
from gpushared.pool.coordinator.service_factories import (
    ListenerServer,
    admin_services,
    audit_services,
    history_services,
    jobs_services,
    link_services,
    listing_services,
)
from gpushared.pool.coordinator.stores import open_store
from gpushared.pool.coordinator.succession import Succession
from gpushared.pool.trust.people import people_of
from gpushared.pool.trust.trust import PoolTrust
from gpushared.ports import Clock
from gpushared.ports.job_store import JobStore, SharedStore
from gpushared.storage.audit.audit_file import SqliteAudit
from gpushared.storage.audit.audit_log import AuditLog
from gpushared.storage.history import SqliteHistory
from gpushared.storage.history.records import KeepHistory
from gpushared.storage.notification_file import SqliteNotifications

log = logging.getLogger(__name__)

AUDIT_NAME = "audit.db"
HISTORY_NAME = "history.db"
NOTIFICATIONS_NAME = "notifications.db"
SOCKET_NAME = "gpushared-pool.sock"
INNER_SOCKET = "inner/grpc.sock"
TICK_SECONDS = 1.0
PRUNE_SECONDS = 300.0
SERVICE_FACTORIES: tuple[ServiceFactory, ...] = (
    admin_services,
    audit_services,
    link_services,
    jobs_services,
    history_services,
    listing_services,
)


@dataclass(frozen=True, slots=True)
class PoolParts:
    """Hold the external parts that a coordinator uses.

    ``now`` returns the time of day, for certificates and tokens.
    """

    store: JobStore
    clock: Clock
    audit: SqliteAudit
    history: SqliteHistory
    now: Callable[[], float] = time.time


def real_pool_parts(config: CoordinatorConfig) -> PoolParts:
    """Return the parts as configured."""
    folder = Path(config.coordinator.state_dir)
    return PoolParts(
        open_store(config),
        SteadyClock(folder / CLOCK_NAME),
        SqliteAudit(folder / AUDIT_NAME),
        SqliteHistory(folder / HISTORY_NAME),
    )


class PoolDaemon:
    """Run a pool's coordinator, built from parts, until ``stop`` is called."""

    def __init__(
        self,
        config: CoordinatorConfig,
        parts: PoolParts,
        notifier: Notifier,
        factories: Sequence[ServiceFactory] = SERVICE_FACTORIES,
    ) -> None:
        self._config = config
        self._people = people_of(config.users)
        self._parts = parts
        self._notifier = notifier
        self._factories = factories
        self._stop = asyncio.Event()
        self._troubles = Troubles()
        self._revisions = Revisions()
        self._troubles.on_change = self._revisions.state_changed
        self._identities = AdminIdentities(config.coordinator.trusted_groups)
        self._runtime_dir = Path(config.coordinator.runtime_dir)
        self._loop: PoolLoop | None = None
        self._audit = AuditLog(parts.audit, self._troubles, config.audit)
        self._call_audit = CallAudit(self._audit.take)
        self._metrics = PoolMetrics(
            lambda: self._loop, self._troubles, self._audit, lambda: self._config, self._standby
        )
        self._json = JsonApi({})
        self._page: PoolPage | None = None
        self._logged_status = ""
        self._shared = parts.store if isinstance(parts.store, SharedStore) else None
        self._started_at = parts.now()
        self._succession: Succession | None = None
        self._registry: CoordinatorRegistry | None = None
        self.users_port = 0
        self.nodes_port = 0

    def stop(self) -> None:
        """Stop serving; jobs on nodes continue."""
        self._stop.set()

    def reload(self, config: CoordinatorConfig) -> None:
        """Apply the settings that can change at run time: people, projects, figures. Raises ConfigError."""
        self._people = people_of(config.users)
        self._config = config
        self._identities.trusted_groups = frozenset(config.coordinator.trusted_groups)
        self._identities.forget()
        if self._loop is not None:
            self._loop.take_rules(pool_rules_of(config))
        self._logged_status = ""  # the next tick logs the status again, after the messages about the reload
        self._metrics.reload()
        self._revisions.state_changed()
        if self._page is not None:  # None before it serves; nothing has read the configuration then
            self._outbox.reload()
            self._page.listeners.reload()
        self._audit.config = config.audit
        self._audit.take_reload()
        log.info("configuration reloaded")

    def not_reloaded(self, error: GpushareError) -> None:
        """Record that the reload failed and the old configuration stays."""
        self._audit.take_reload(error)

    async def run(self) -> None:
        """Run from opening the store to closing the last connection.

        Raises ConfigError if the coordinator cannot start, or Deposed.
        """
        async with AsyncExitStack() as stack:
            stack.push_async_callback(self._parts.store.close)
            stack.push_async_callback(self._audit.close)
            stack.push_async_callback(self._parts.history.close)
            watchdog = asyncio.create_task(feed_watchdog(self._notifier))
            stack.callback(watchdog.cancel)
            await keep(self._parts.clock, self._troubles)
            stack.push_async_callback(keep, self._parts.clock, self._troubles)
            front, authenticator = self._front()
            trust = self._trust(authenticator)
            loop = await self._loop_of(trust)
            self._make_notifier(loop, trust.pool, stack)
            await stack.enter_async_context(loop.running())
            await stack.enter_async_context(trust.running())
            coordinator = self._coordinator(loop, trust)
            connections = await self._serve(coordinator, front, stack)
            stack.push_async_callback(coordinator.recorder.close)
            await self._live(loop, connections, coordinator)

    # --- parts -----------------------------------------------------------------------------------------

    def _trust(self, authenticator: CallAuthenticator) -> PoolTrust:
        trust = PoolTrust(
            Path(self._config.coordinator.state_dir),
            self._parts.store,
            epoch=lambda: 0 if self._loop is None else self._loop.epoch,
            people=lambda: self._people,
            now=self._parts.now,
            hosts=(socket.gethostname(), *filter(None, [self._config.coordinator.advertise])),
            enrolled=self._enrolled,
            authenticator=authenticator,
            audit=self._call_audit,
            is_shared=self._shared is not None,
        )
        name = self._config.coordinator.name
        if name and name != trust.pool:
            raise ConfigError(
                f"coordinator.name is {name}, and the authority in the state directory is {trust.pool}'s",
                hint="is it the right state directory? a pool's name is never changed",
            )
        return trust

    async def _loop_of(self, trust: PoolTrust) -> PoolLoop:
        """Return the loop, which leads already with a store of its own, and stands by with a shared store."""
        clock = self._parts.clock
        if self._shared is not None:
            await trust.load()
            state = restore(pool_rules_of(self._config), epoch=0, now=clock.now())
            loop = self._loop = PoolLoop(state, self._shared, clock, self._troubles)
            loop.on_change = self._revisions.state_changed
            self._succession = Succession(
                self._shared,
                loop,
                clock,
                lambda: pool_rules_of(self._config),
                self._troubles,
                name=self._name,
                on_other_change=trust.note_change,
            )
            await self._succession.prepare()
            return loop
        epoch = await self._parts.store.lead()
        with no_collection():
            state = await restored(
                self._parts.store,
                pool_rules_of(self._config),
                epoch=epoch,
                now=clock.now(),
                ahead_seconds=clock.ahead(),
                enrolled=enrolled_in(trust, clock.ahead()),
                is_behind=await self._parts.store.is_behind(),
            )
        self._log_loaded(state)
        self._loop = PoolLoop(state, self._parts.store, clock, self._troubles)
        self._loop.on_change = self._revisions.state_changed
        return self._loop

    @property
    def _name(self) -> str:
        return self._config.coordinator.advertise or socket.gethostname()

    def _log_loaded(self, state: PoolState) -> None:
        log.info(
            "store loaded epoch=%d revision=%d jobs=%d nodes=%d",
            *(state.epoch, state.revision, len(state.jobs), len(state.members)),
        )

    def _make_notifier(self, loop: PoolLoop, pool: str, stack: AsyncExitStack) -> None:
        def day(at: float) -> float:
            return loop.state.day(at)

        self._outbox = NotificationOutbox(
            SqliteNotifications(Path(self._config.coordinator.state_dir) / NOTIFICATIONS_NAME),
            self._troubles,
            lambda: routes_of(self._config.notify, {}),
            ClockOfLoop(loop),
            Origin(pool, lambda: has_simulated(loop.state), day),
        )
        stack.push_async_callback(self._outbox.close)
        self._pool_notifier = PoolNotifier(loop, self._outbox)

    def _coordinator(self, loop: PoolLoop, trust: PoolTrust) -> CoordinatorParts:
        views = JobViews(lambda: loop.state, loop.now, loop.snapshot)
        link = LinkService(
            loop,
            trust.guard,
            JobOrigins(lambda: loop.state, views.job),
            beat=self._beat,
            troubles=self._troubles,
            audit=self._call_audit,
        )
        loop.subscribe(link.perform)
        loop.on_new_epoch(link.renew)
        link.standby = trust.callers.standby = self._standby
        trust.on_invalid(link.drop)
        trust.anchors_changed = lambda: link.send_trust(trust.guard.trust(renew_now=True))
        owners = LeaseOwners(
            partial(self._job, loop),
            trust.guard.local_owner,
            lambda person, project: may_use(loop.state.policy, person, project),
        )
        gatherer = HistoryGatherer(
            link,
            self._parts.history,
            self._troubles,
            trust.pool,
            owners,
            lambda: loop.state.ahead_seconds,
        )
        if self._shared is not None:
            self._registry = CoordinatorRegistry(self._shared, self._announcement)
            link.addresses = self._registry.addresses
        return CoordinatorParts(
            config=lambda: self._config,
            loop=loop,
            store=self._parts.store,
            trust=trust,
            link=link,
            history=self._parts.history,
            gatherer=gatherer,
            owners=owners,
            recorder=JobRecorder(loop, self._parts.history, self._troubles),
            troubles=self._troubles,
            audit=self._audit,
            call_audit=self._call_audit,
            nodes_port=lambda: self.nodes_port,
            standby=self._standby,
            registry=self._registry,
        )

    def _standby(self) -> Standby | None:
        if self._loop is None or self._loop.standby is not None or self._shared is None:
            return None if self._loop is None else self._loop.standby
        if not self._shared.doubt_seconds():
            return None
        return Standby(self._name, self._shared.doubt_seconds, is_deposed=True)

    async def _job(self, loop: PoolLoop, job: JobId) -> Job | None:
        return known_job(loop.state, job) or await loop.archive.get(job)

    def _front(self) -> tuple[Front, CallAuthenticator]:
        """Return the unix socket's front, and the authenticator of its gRPC calls."""
        inner = self._runtime_dir / INNER_SOCKET
        routes = Routes(
            json=self._answer, docker=_no_docker, metrics=self._metrics.page, browser=self._take_over
        )
        front = Front(inner, self._identities, routes)
        self._shares = routes.shares
        return front, CallAuthenticator(self._identities, front.secret, shares=routes.shares)

    async def _take_over(self, exchange: Exchange) -> None:
        assert self._page is not None, "the socket is served after the page was made"
        await self._page.take_over(exchange)

    async def _answer(self, request: WebRequest) -> WebReply:
        return await self._json.answer(request)

    # --- serving ---------------------------------------------------------------------------------------

    async def _serve(self, coordinator: CoordinatorParts, front: Front, stack: AsyncExitStack) -> Connections:
        services = [service for factory in self._factories for service in factory(coordinator)]
        section, identity = self._config.coordinator, coordinator.trust.identity
        listener = stack.enter_context(listen(self._runtime_dir / SOCKET_NAME, section.socket_mode))
        callers = coordinator.trust.callers
        bounds = bounds_here()
        intake = Intake(callers.admitted, callers.refuse_unread)
        users = ListenerServer(Listener.USERS, section.listen, identity.for_users(), intake, bounds.of_port)
        nodes = ListenerServer(
            Listener.NODES, section.listen_nodes, identity.for_nodes(), intake, bounds.of_port
        )
        self.users_port, self.nodes_port = users.port, nodes.port
        connections = Connections({users.port, nodes.port}, bounds)
        callers.note_admitted = connections.note_admitted
        await self._serve_locally(coordinator, services, front, listener, stack)
        for server in (users, nodes):
            await stack.enter_async_context(server.serving(services))
        stack.push_async_callback(coordinator.link.close)
        return connections

    async def _serve_locally(
        self,
        coordinator: CoordinatorParts,
        services: Sequence[Service],
        front: Front,
        listener: socket.socket,
        stack: AsyncExitStack,
    ) -> None:
        inner = self._runtime_dir / INNER_SOCKET
        inner.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        inner.parent.chmod(0o700)
        calls = {path: call for service in services for path, call in service.calls.items()}
        self._json = JsonApi(calls, self._call_audit, lambda: self._revisions, self._age)
        streams = pool_streams(self._json, self._revisions, services)
        stack.push_async_callback(streams.close)
        self._page = PoolPage(coordinator, self._json, streams, self._identities, self._shares)
        server = ListenerServer(Listener.LOCAL, f"unix:{inner}", None)
        await stack.enter_async_context(server.serving(services))
        await stack.enter_async_context(front.serving(listener))
        await check_identity(listener.getsockname(), _ask_status)

    def _age(self) -> str:
        standby = self._standby()
        return "" if standby is None else f"{standby.age_seconds():.1f}"

    async def _live(self, loop: PoolLoop, connections: Connections, coordinator: CoordinatorParts) -> None:
        """Serve until the stop. Raises Deposed if this coordinator must not go on."""
        page = self._page
        assert page is not None, "_serve_locally made the page"
        self._notifier.ready(self._status(loop))
        log.info(
            "serving pool users_port=%d nodes_port=%d: %s",
            self.users_port,
            self.nodes_port,
            self._status(loop),
        )
        await until_one_ends(
            self._notifier,
            self._lead(loop, coordinator),
            self._tick(loop),
            connections.run(),
            keep_always(self._parts.clock, self._troubles),
            keep_aside(),
            self._audit.run(),
            self._outbox.run(),
            self._metrics.run(),
            page.listeners.run(),
            loop.ended(),
            self._stop.wait(),
        )

    async def _lead(self, loop: PoolLoop, coordinator: CoordinatorParts) -> None:
        """Stand by first if the store is shared, then lead. Raises Deposed if this coordinator must not go on."""
        if self._succession is not None:
            await self._stand_by(self._succession, coordinator)
            self._log_loaded(loop.state)
        await first_to_end(
            *(() if self._registry is None else (self._registry.keep(loop), keep_leader_clock(loop))),
            self._prune(loop),
            coordinator.gatherer.run(),
            coordinator.recorder.run(),
            self._pool_notifier.run(),
            self._parts.store.lost(),
        )

    async def _stand_by(self, succession: Succession, coordinator: CoordinatorParts) -> None:
        registry = coordinator.registry
        assert registry is not None, "a coordinator with a shared store has a registry"

        async def members(epoch: int, ahead_seconds: float) -> list[Member]:
            await coordinator.trust.begin(epoch)
            return enrolled_in(coordinator.trust, ahead_seconds)

        await succession.run(registry.announce, members)

    def _announcement(self) -> pool_pb2.PoolCoordinator:
        return pool_pb2.PoolCoordinator(
            name=self._name,
            address=f"{_in_brackets(self._name)}:{self.users_port}",
            node_address=f"{_in_brackets(self._name)}:{self.nodes_port}",
            version=gpushared.__version__,
            started_at=self._started_at,
        )

    async def _tick(self, loop: PoolLoop) -> None:
        while True:
            await asyncio.sleep(TICK_SECONDS)
            try:
                await loop.send(PoolTick())
            except GpushareError as error:
                log.debug("tick refused: %s", error)
            status = self._status(loop)
            if status != self._logged_status:
                self._logged_status = status
                self._notifier.status(status)

    async def _prune(self, loop: PoolLoop) -> None:
        while True:
            section, now = self._config.coordinator, loop.now()
            try:
                forgotten = await loop.archive.prune(
                    loop.write,
                    keep=section.keep_ended_jobs,
                    ended_before=now - section.keep_ended_seconds,
                    now=now,
                )
            except GpushareError as error:
                log.warning("old finished jobs were not forgotten: %s", error)
            else:
                if forgotten:
                    log.info("forgotten jobs=%d", forgotten)
            await self._prune_history(now)
            await asyncio.sleep(PRUNE_SECONDS)

    async def _prune_history(self, now: float) -> None:
        keep = KeepHistory(minutes_days=0, hours_days=self._config.history.keep_hours_days)
        try:
            await self._parts.history.prune(keep, milliseconds(now))
        except GpushareError as error:
            log.warning("old hours of the history were not dropped: %s", error)

    async def _enrolled(self, node: NodeName, realms: tuple[str, ...]) -> None:
        assert self._loop is not None, "no node joins before the coordinator serves"
        await self._loop.send(NodeEnrolled(node, realms))

    def _beat(self, nodes: int) -> float:
        section = self._config.nodes
        return max(section.beat_seconds, nodes / section.beats_per_second)

    def _status(self, loop: PoolLoop) -> str:
        state = loop.state
        if loop.standby is not None:
            return f"stands by, {loop.standby.leader or 'nobody'} leads"
        connected = sum(member.connected for member in state.members.values())
        waiting = state.queued_count
        phase = "" if state.settled else f", {phase_of(state)}"
        return (
            f"{connected} of {len(state.members)} nodes, {waiting} jobs queued, "
            f"{len(state.jobs) - waiting} under way{phase}"
        )


def enrolled_in(trust: PoolTrust, ahead_seconds: float) -> list[Member]:
    """Return the nodes that have a certificate of the pool's authority."""
    return [
        Member(member.node, member.enrolled_at - ahead_seconds, tuple(sorted({member.node, *member.realms})))
        for member in trust.members().values()
    ]


def _in_brackets(host: str) -> str:
    return f"[{host}]" if ":" in host else host


async def _no_docker(_: Exchange) -> None:
    raise NotFound(
        "this is the coordinator of a pool; it has no containers",
        hint="DOCKER_HOST is to name a node's socket: unix:///run/gpushared/gpushared.sock",
    )


async def _ask_status(channel: grpc.aio.Channel) -> None:
    await pool_pb2_grpc.PoolAdminStub(channel).Status(pool_pb2.PoolStatusRequest())


class AdminIdentities(Identities):
    """Identify callers; trust root, trusted groups, and the daemon's own user, who owns its files anyway."""

    async def account(self, key: int | str) -> Caller:
        caller = await super().account(key)
        return replace(caller, trusted=True) if caller.uid == os.geteuid() else caller

    async def caller(self, peer: Peer) -> Caller:
        caller = await super().caller(peer)
        return replace(caller, trusted=True) if peer.uid == os.geteuid() else caller


class JobOrigins:
    """Find jobs for links in the newest state. ``view`` returns a job as users see it."""

    def __init__(self, state: Callable[[], PoolState], view: Callable[[Job], jobs_pb2.Job]) -> None:
        self._state = state
        self._view = view

    def origin_of(self, job_id: JobId) -> NodeName:
        job = known_job(self._state(), job_id)
        return HERE if job is None else job.spec.origin

    def update_of(self, job_id: JobId) -> link_pb2.JobUpdate | None:
        job = known_job(self._state(), job_id)
        if job is None:
            return None
        view = self._view(job).SerializeToString()
        return link_pb2.JobUpdate(job=view, over=isinstance(job.state, Ended))


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
        principals={name: user.principals for name, user in config.users.items() if name != EVERYBODY},
        common_realms=_common_realms(config),
    )


def _common_realms(config: CoordinatorConfig) -> frozenset[str]:
    everybody = config.users.get(EVERYBODY)
    principals = everybody.principals if everybody else ()
    return frozenset(principal.partition("@")[2] for principal in principals)
