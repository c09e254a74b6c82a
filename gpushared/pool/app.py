"""Wiring: the coordinator's life from start to end."""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import grpc

from gpushared.api.v1 import pool_pb2, pool_pb2_grpc
from gpushared.audit.sqlite import SqliteAudit
from gpushared.config.pool import CoordinatorConfig
from gpushared.domain.jobs.coordinator_events import NodeEnrolled, PoolTick
from gpushared.domain.jobs.job import NodeName
from gpushared.domain.jobs.member import Member
from gpushared.domain.model.errors import (
    ConfigError,
    GpushareError,
    NotFound,
    Unavailable,
)
from gpushared.gate.http import Exchange, Routes, WebReply, WebRequest
from gpushared.pool.admin import phase_of
from gpushared.pool.admin_room import admin_services
from gpushared.pool.audit_room import audit_services
from gpushared.pool.connections import Connections, bounds_here
from gpushared.pool.garbage import keep_aside, no_collection
from gpushared.pool.high_water import HighWater, read_high_water, write_high_water
from gpushared.pool.identities import AdminIdentities
from gpushared.pool.job_views import JobViews
from gpushared.pool.jobs_room import jobs_services
from gpushared.pool.link import LinkService
from gpushared.pool.link_room import link_services
from gpushared.pool.loop import PoolLoop
from gpushared.pool.origins import JobOrigins
from gpushared.pool.parts import Coordinator, Door, Room, Service
from gpushared.pool.restoring import restored
from gpushared.pool.rules import pool_rules_of
from gpushared.pool.selftest import check_identity
from gpushared.pool.servers import Server
from gpushared.pool.sqlite_store import SqliteStore
from gpushared.pool.store import Store
from gpushared.pool.trust.people import people_of
from gpushared.pool.trust.trust import CA_FOLDER, Trust
from gpushared.ports import Clock
from gpushared.serving.audit_log import AuditLog
from gpushared.serving.call_audit import CallAudit
from gpushared.serving.clock import CLOCK_NAME, SteadyClock, keep, keep_always
from gpushared.serving.doors import Doors
from gpushared.serving.front import Front, listen
from gpushared.serving.intake import Intake
from gpushared.serving.jsonapi import JsonApi
from gpushared.serving.process import until_one_ends
from gpushared.serving.systemd import Notifier, feed_watchdog
from gpushared.serving.troubles import Troubles

log = logging.getLogger(__name__)

STORE_NAME = "pool.db"
AUDIT_NAME = "audit.db"
MARK_NAME = "high-water.json"
SOCKET_NAME = "gpushared-pool.sock"
INNER_SOCKET = "inner/grpc.sock"
TICK_SECONDS = 1.0
MARK_SECONDS = 5.0
PRUNE_SECONDS = 300.0
ROOMS: tuple[Room, ...] = (admin_services, audit_services, link_services, jobs_services)


@dataclass(frozen=True, slots=True)
class PoolParts:
    """Hold the parts of the world that a coordinator uses.

    ``now``: the time of day, for certificates and tokens.
    """

    store: Store
    clock: Clock
    audit: SqliteAudit
    now: Callable[[], float] = time.time


def real_pool_parts(config: CoordinatorConfig) -> PoolParts:
    """The parts as configured."""
    folder = Path(config.coordinator.state_dir)
    return PoolParts(
        SqliteStore(folder / STORE_NAME),
        SteadyClock(folder / CLOCK_NAME),
        SqliteAudit(folder / AUDIT_NAME),
    )


class PoolDaemon:
    """A pool's coordinator: built from parts, run until it is told to stop."""

    def __init__(
        self,
        config: CoordinatorConfig,
        parts: PoolParts,
        notifier: Notifier,
        rooms: Sequence[Room] = ROOMS,
    ) -> None:
        self._config = config
        self._people = people_of(config.users)
        self._parts = parts
        self._notifier = notifier
        self._rooms = rooms
        self._stop = asyncio.Event()
        self._troubles = Troubles()
        self._identities = AdminIdentities(config.coordinator.trusted_groups)
        self._runtime_dir = Path(config.coordinator.runtime_dir)
        self._mark_path = Path(config.coordinator.state_dir) / CA_FOLDER / MARK_NAME
        self._loop: PoolLoop | None = None
        self._marked = HighWater()
        self._audit = AuditLog(parts.audit, self._troubles, config.audit)
        self._of_calls = CallAudit(self._audit.take)
        self._json = JsonApi({})
        self._told = ""
        self.users_port = 0
        self.nodes_port = 0

    def stop(self) -> None:
        """End serving; what runs on nodes runs on."""
        self._stop.set()

    def reload(self, config: CoordinatorConfig) -> None:
        """Take over what can change at run time: people, projects, figures. Raises ConfigError."""
        self._people = people_of(config.users)
        self._config = config
        self._identities.trusted_groups = frozenset(config.coordinator.trusted_groups)
        self._identities.forget()
        if self._loop is not None:
            self._loop.take_rules(pool_rules_of(config))
        self._told = ""  # the next tick says again what is served, after what is said about this
        self._audit.config = config.audit
        self._audit.told_of_reload()
        log.info("configuration reloaded")

    def not_reloaded(self, error: GpushareError) -> None:
        """The old configuration stays."""
        self._audit.told_of_reload(error)

    async def run(self) -> None:
        """Run from opening the store to closing the last connection.

        Raise ConfigError if it cannot begin, or Deposed.
        """
        async with AsyncExitStack() as stack:
            stack.push_async_callback(self._parts.store.close)
            stack.push_async_callback(self._audit.close)
            watchdog = asyncio.create_task(feed_watchdog(self._notifier))
            stack.callback(watchdog.cancel)
            await keep(self._parts.clock, self._troubles)
            stack.push_async_callback(keep, self._parts.clock, self._troubles)
            mark = await self._read_mark()
            epoch = await self._parts.store.lead(above=mark.epoch)
            front, doors = self._front()
            trust = self._trust(doors)
            loop = await self._loop_of(trust, epoch, mark)
            stack.push_async_callback(self._mark, loop)
            await stack.enter_async_context(loop.running())
            await stack.enter_async_context(trust.running())
            connections = await self._serve(self._coordinator(loop, trust), front, stack)
            await self._live(loop, connections)

    # --- parts -----------------------------------------------------------------------------------------

    def _trust(self, doors: Doors) -> Trust:
        trust = Trust(
            Path(self._config.coordinator.state_dir),
            self._parts.store,
            epoch=lambda: 0 if self._loop is None else self._loop.epoch,
            people=lambda: self._people,
            now=self._parts.now,
            hosts=(socket.gethostname(),),
            enrolled=self._enrolled,
            doors=doors,
            audit=self._of_calls,
        )
        name = self._config.coordinator.name
        if name and name != trust.pool:
            raise ConfigError(
                f"coordinator.name is {name}, and the authority in the state directory is {trust.pool}'s",
                hint="is it the right state directory? a pool's name is never changed",
            )
        return trust

    async def _read_mark(self) -> HighWater:
        """Return how far the store was, and mark it as doubted if the store is older than that.

        A store that was begun anew after a loss counts its revisions from 1, so an older store may have more
        of them. Its epoch is lower all the same. The doubt is written down before anything raises the epoch.
        """
        mark = read_high_water(self._mark_path)
        if await self._parts.store.epoch() < mark.epoch and not mark.doubted:
            mark = replace(mark, doubted=True)
            await asyncio.to_thread(write_high_water, self._mark_path, mark)
        return mark

    async def _loop_of(self, trust: Trust, epoch: int, mark: HighWater) -> PoolLoop:
        clock = self._parts.clock
        now, ahead = clock.now(), clock.ahead()
        enrolled = [
            Member(one.node, one.enrolled_at - ahead, tuple(sorted({one.node, *one.realms})))
            for one in trust.members().values()
        ]
        with no_collection():
            state = await restored(
                self._parts.store,
                pool_rules_of(self._config),
                epoch=epoch,
                now=now,
                ahead_seconds=ahead,
                enrolled=enrolled,
                mark=mark,
            )
        log.info(
            "store loaded epoch=%d revision=%d jobs=%d nodes=%d",
            *(epoch, state.revision, len(state.jobs), len(state.members)),
        )
        self._loop = PoolLoop(state, self._parts.store, self._parts.clock, self._troubles)
        return self._loop

    def _coordinator(self, loop: PoolLoop, trust: Trust) -> Coordinator:
        views = JobViews(lambda: loop.state, loop.now)
        link = LinkService(
            loop,
            trust.guard,
            JobOrigins(lambda: loop.state, views.job),
            beat=self._beat,
            troubles=self._troubles,
            audit=self._of_calls,
        )
        loop.subscribe(link.perform)
        loop.on_new_epoch(link.renew)
        trust.on_fall(link.drop)
        trust.anchors_changed = lambda: link.tell_trust(trust.guard.trust(renew_now=True))
        return Coordinator(
            config=lambda: self._config,
            loop=loop,
            store=self._parts.store,
            trust=trust,
            link=link,
            troubles=self._troubles,
            audit=self._audit,
            of_calls=self._of_calls,
            nodes_port=lambda: self.nodes_port,
        )

    def _front(self) -> tuple[Front, Doors]:
        """The unix socket's door, and what tells its gRPC calls who is calling."""
        inner = self._runtime_dir / INNER_SOCKET
        routes = Routes(json=self._answer, docker=_no_docker)
        front = Front(inner, self._identities, routes)
        return front, Doors(self._identities, front.secret, shares=routes.shares)

    async def _answer(self, request: WebRequest) -> WebReply:
        return await self._json.answer(request)

    # --- serving ---------------------------------------------------------------------------------------

    async def _serve(self, coordinator: Coordinator, front: Front, stack: AsyncExitStack) -> Connections:
        services = [service for room in self._rooms for service in room(coordinator)]
        section, identity = self._config.coordinator, coordinator.trust.identity
        listener = stack.enter_context(listen(self._runtime_dir / SOCKET_NAME, section.socket_mode))
        callers = coordinator.trust.callers
        bounds = bounds_here()
        intake = Intake(callers.admitted, callers.refuse_unread)
        users = Server(Door.USERS, section.listen, identity.for_users(), intake, bounds.of_port)
        nodes = Server(Door.NODES, section.listen_nodes, identity.for_nodes(), intake, bounds.of_port)
        self.users_port, self.nodes_port = users.port, nodes.port
        connections = Connections({users.port, nodes.port}, bounds)
        callers.met = connections.met
        await self._serve_locally(services, front, listener, stack)
        for server in (users, nodes):
            await stack.enter_async_context(server.serving(services))
        stack.push_async_callback(coordinator.link.close)
        return connections

    async def _serve_locally(
        self, services: Sequence[Service], front: Front, listener: socket.socket, stack: AsyncExitStack
    ) -> None:
        inner = self._runtime_dir / INNER_SOCKET
        inner.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        inner.parent.chmod(0o700)
        calls = {path: call for service in services for path, call in service.calls.items()}
        self._json = JsonApi(calls, self._of_calls)
        server = Server(Door.LOCAL, f"unix:{inner}", None)
        await stack.enter_async_context(server.serving(services))
        await stack.enter_async_context(front.serving(listener))
        await check_identity(listener.getsockname(), _ask_status)

    async def _live(self, loop: PoolLoop, connections: Connections) -> None:
        """Until the stop, or until this coordinator must not go on: Deposed."""
        self._notifier.ready(self._status(loop))
        log.info(
            "serving pool users_port=%d nodes_port=%d: %s",
            self.users_port,
            self.nodes_port,
            self._status(loop),
        )
        await until_one_ends(
            self._notifier,
            self._tick(loop),
            self._keep_mark(loop),
            self._prune(loop),
            connections.run(),
            keep_always(self._parts.clock, self._troubles),
            keep_aside(),
            self._audit.run(),
            loop.ended(),
            self._stop.wait(),
        )

    async def _tick(self, loop: PoolLoop) -> None:
        while True:
            await asyncio.sleep(TICK_SECONDS)
            try:
                await loop.send(PoolTick())
            except GpushareError as error:
                log.debug("tick refused: %s", error)
            status = self._status(loop)
            if status != self._told:
                self._told = status
                self._notifier.status(status)

    async def _keep_mark(self, loop: PoolLoop) -> None:
        while True:
            await self._mark(loop)
            await asyncio.sleep(MARK_SECONDS)

    async def _mark(self, loop: PoolLoop) -> None:
        """Write down how far the store is, in case an old copy of it is put back."""
        mark = HighWater(loop.epoch, loop.revision)
        if mark == self._marked:
            return
        try:
            await asyncio.to_thread(write_high_water, self._mark_path, mark)
        except Unavailable as error:
            self._troubles.raised("mark", str(error))
        else:
            self._marked = mark
            self._troubles.cleared("mark")

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
                log.warning("jobs that are over were not forgotten: %s", error)
            else:
                if forgotten:
                    log.info("forgotten jobs=%d", forgotten)
            await asyncio.sleep(PRUNE_SECONDS)

    async def _enrolled(self, node: NodeName, realms: tuple[str, ...]) -> None:
        assert self._loop is not None, "nobody joins before it serves"
        await self._loop.send(NodeEnrolled(node, realms))

    def _beat(self, nodes: int) -> float:
        section = self._config.nodes
        return max(section.beat_seconds, nodes / section.beats_per_second)

    def _status(self, loop: PoolLoop) -> str:
        state = loop.state
        connected = sum(member.connected for member in state.members.values())
        waiting = state.queued_count
        phase = "" if state.settled else f", {phase_of(state)}"
        return (
            f"{connected} of {len(state.members)} nodes, {waiting} jobs queued, "
            f"{len(state.jobs) - waiting} under way{phase}"
        )


async def _no_docker(_: Exchange) -> None:
    raise NotFound(
        "this is the coordinator of a pool; it has no containers",
        hint="DOCKER_HOST is to name a node's socket: unix:///run/gpushared/gpushared.sock",
    )


async def _ask_status(channel: grpc.aio.Channel) -> None:
    await pool_pb2_grpc.PoolAdminStub(channel).Status(pool_pb2.PoolStatusRequest())
