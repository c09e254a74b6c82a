"""Wire the daemon's parts, and run the daemon from its start to its end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path

import grpc

from gpushared.api.v1 import node_pb2, node_pb2_grpc
from gpushared.config.kinds import HOUR_SECONDS
from gpushared.config.model import Config
from gpushared.daemon.clocks import keep, keep_always
from gpushared.daemon.process import until_one_ends
from gpushared.daemon.systemd import Notifier, feed_watchdog, is_socket_activated, passed_socket
from gpushared.daemon.troubles import Troubles
from gpushared.domain.leases.instructions import DropEdits
from gpushared.domain.leases.node_state import ENDED_KEPT_IN_MEMORY, NodeState
from gpushared.domain.model.errors import ConfigError, GpushareError, JournalUnavailable
from gpushared.domain.model.lease import ContainerId
from gpushared.gate.containers.passwd import PasswdFiles
from gpushared.gate.docker_gate import Gate
from gpushared.gate.mounts.held_mounts import HeldMounts
from gpushared.gpus.nvml import NvmlGpus
from gpushared.gpus.simulated import SimulatedGpus
from gpushared.guard.fences import GuardProcess
from gpushared.net.audit_service import AuditApi
from gpushared.net.call_audit import CallAudit
from gpushared.net.call_checks import CallAuthenticator, check_identity
from gpushared.net.front import Front, listen
from gpushared.net.history_service import HistoryApi, Rights
from gpushared.net.http_client import EngineSocket
from gpushared.net.http_server import Routes
from gpushared.net.identity import Identities, SubordinateIds
from gpushared.net.limits import Shares
from gpushared.net.revisions import Revisions
from gpushared.net.unary_json import JsonApi, Unary
from gpushared.node.heartbeat import Heartbeat, QuotaPromises
from gpushared.node.jobs.job_host import JobHost
from gpushared.node.parts import UP, Parts
from gpushared.node.pool.membership_service import Memberships, load_enrolment, open_enrolment
from gpushared.node.pool.pool_answers import HistoryAnswers, ListingAnswers
from gpushared.node.pool_services import JobServices, PoolServices
from gpushared.node.runtime.client_presence_checks import ClientPresence
from gpushared.node.runtime.configured import limits_of, notify_routes, policy_of, restored_state, rules_of
from gpushared.node.runtime.container_reconciler import ContainerReconciler, UserLimitKeeper
from gpushared.node.runtime.container_verifier import Verifier, gate_name
from gpushared.node.runtime.executor import Executor
from gpushared.node.runtime.history_recorder import HistoryRecorder
from gpushared.node.runtime.lease_notifier import LeaseNotifier
from gpushared.node.runtime.loop import Loop
from gpushared.node.runtime.sampler import Sampler
from gpushared.node.runtime.weekly_digest import WeeklyDigest
from gpushared.node.services import grpc_services
from gpushared.node.services.examination import Examination
from gpushared.node.services.jobs_of_node import NodeJobs
from gpushared.node.services.lease_service import LeaseService
from gpushared.node.services.metrics_service import NodeMetrics
from gpushared.node.services.node_service import Api
from gpushared.node.services.page_streams import NodeLogs, SampleRevisions, node_pace
from gpushared.node.services.policy_service import PolicyApi
from gpushared.node.services.simulation import Simulation
from gpushared.notify.outbox import NotificationOutbox
from gpushared.notify.payload import Origin
from gpushared.pool.member.node_ports import Answerer
from gpushared.ports import ContainerFacts
from gpushared.storage.audit.audit_log import AuditLog
from gpushared.storage.notification_file import SqliteNotifications
from gpushared.web.browser_server import take_over
from gpushared.web.browser_site import BrowserSite, SiteFacts
from gpushared.web.listeners import BrowserListeners, UserLookups, caller_of_account
from gpushared.web.logins import Logins
from gpushared.web.stream import EventStreams
from gpushared.web.web_service import WebApi

log = logging.getLogger(__name__)

FIRST_LOOK_SECONDS = 12.0
"""The start waits this long for GPUs, settings and engine before the daemon serves without them."""
CLOSE_SECONDS = 10.0
"""The end of the daemon waits this long for creates that are under way."""
SOCKET_NAME = "gpushared.sock"
ENGINES_OWN = ("/run/docker.sock", "/run/containerd")
"""Engines listen at these paths too. A user who reaches them is as good as root."""
PINS_NAME = "pins"
USERS_FILES_NAME = "passwd"
INNER_FOLDER = "inner"
INNER_SOCKET = "grpc.sock"
GUARD_DIRECTORY = "guard"
NOTIFICATIONS_NAME = "notifications.db"
WEB_SESSIONS_NAME = "web-sessions.json"


class Daemon:
    """Build one node's daemon from its parts, and run it until a stop."""

    def __init__(
        self,
        config: Config,
        parts: Parts,
        notifier: Notifier,
        reread: Callable[[], Config] | None = None,
    ) -> None:
        """Take ``reread``, which returns the configuration that a start would find now."""
        self._config = config
        self._reread = reread or (lambda: self._config)
        self._parts = parts
        self._notifier = notifier
        self._stop = asyncio.Event()
        self._troubles = Troubles()
        self._revisions = Revisions()
        self._troubles.on_change = self._revisions.state_changed
        self._quota_promises = QuotaPromises(self._troubles)
        self._enrolment = open_enrolment(config, self._troubles)
        subordinates = SubordinateIds(_path(config.gate.subordinate_ids))
        self._identities = Identities(config.gate.trusted_groups, subordinates)
        self._shares = Shares(limits_of(config))
        self._runtime_dir = Path(config.node.runtime_dir)
        self._audit = AuditLog(parts.audit, self._troubles, config.audit)
        engine = EngineSocket(config.engine.socket)
        self._passwd = PasswdFiles(engine, Path(config.node.state_dir) / USERS_FILES_NAME)
        self._held_mounts = HeldMounts(
            engine,
            lambda: policy_of(self._config),
            owner=str(self._runtime_dir),
            ledger=Path(config.node.state_dir) / PINS_NAME,
            barred=[config.node.runtime_dir, config.node.state_dir],
            also_swept=self._passwd.sweep,
        )
        self._user_limits = UserLimitKeeper(
            gate_name(config.node.state_dir),
            Path(config.node.state_dir),
            lambda: policy_of(self._config).user_bounds,
            lambda: self._reconciler.facts,
        )
        parts.wall.put_into(self._user_limits.cgroups.home)
        self._gate: Gate | None = None
        self._browsers: BrowserListeners | None = None
        self._nvml = parts.gpus if isinstance(parts.gpus, NvmlGpus) else None

    def stop(self) -> None:
        """End serving; containers and their resources stay."""
        self._stop.set()

    async def run(self) -> None:
        """Run the daemon from the journal to the last connection. Raises ConfigError if it cannot begin."""
        async with AsyncExitStack() as stack:
            stack.push_async_callback(self._close_parts)
            # The listener comes first: if another daemon serves, nothing of it may be touched, least of all
            # its MPS daemons.
            listener = stack.enter_context(self._listener())
            loop = Loop(await self._load_state(), self._parts.journal, self._parts.clock, self._troubles)
            self._loop = loop
            await keep(self._parts.clock, self._troubles)
            await stack.enter_async_context(loop.running())
            await self._run_parts(loop, stack, listener)

    async def _load_state(self) -> NodeState:
        snapshot = await self._parts.journal.load()
        ended = await self._parts.journal.ended(ENDED_KEPT_IN_MEMORY)
        log.info("journal loaded leases=%d", len(snapshot.leases))
        return restored_state(self._config, self._parts.clock, snapshot, ended)

    async def _run_parts(self, loop: Loop, stack: AsyncExitStack, listener: socket.socket) -> None:
        self._make_observers(loop)
        self._make_notifier(loop, stack)
        executor = Executor(
            loop,
            self._parts.sharing,
            self._parts.engine,
            self._parts.checkpoints,
            self._reconciler,
            self._sampler,
        )
        self._lease_service = self._make_lease_service(loop, executor)
        self._make_verifier(loop, stack)
        stack.push_async_callback(self._recorder.close)
        self._job_host = self._make_job_host(loop, executor)
        watchdog = asyncio.create_task(feed_watchdog(self._notifier))
        stack.callback(watchdog.cancel)
        stack.push_async_callback(executor.close)
        loop.perform = executor.perform
        loop.after_recovery = self._reconciler.ask_survey
        stack.callback(self._client_presence.processes.close)
        await self._heartbeat.take_back()  # a lease whose process has ended would hold its GPUs for nobody
        await self._first_look(loop, executor)
        await self._serve(loop, stack, listener)

    def _make_observers(self, loop: Loop) -> None:
        """Make the parts that report clients, containers and GPUs to the loop."""
        self._client_presence = ClientPresence(loop.now())
        self._heartbeat = Heartbeat(
            loop,
            self._parts.clock,
            self._client_presence,
            self._quota_promises,
            self._notifier,
            lambda: self._config,
            simulated=self._parts.gpus.simulated,
        )
        self._reconciler = ContainerReconciler(
            loop,
            self._parts.engine,
            self._parts.checkpoints,
            self._troubles,
            simulated=self._parts.gpus.simulated,
        )
        self._sampler = Sampler(
            loop,
            self._parts.gpus,
            self._parts.sharing,
            self._troubles,
            self._config.gpus.sample_seconds,
            self._config.gpus.exclusive_process,
        )
        self._recorder = HistoryRecorder(
            loop,
            self._sampler,
            self._parts.journal,
            self._parts.history,
            self._troubles,
            self._node_name(),
            lambda: self._config.history,
        )
        self._metrics = NodeMetrics(
            loop,
            self._sampler,
            self._reconciler,
            self._troubles,
            self._audit,
            self._nvml,
            lambda: self._config,
        )

    def _make_notifier(self, loop: Loop, stack: AsyncExitStack) -> None:
        def day(at: float) -> float:
            return loop.state.day(at)

        self._outbox = NotificationOutbox(
            SqliteNotifications(Path(self._config.node.state_dir) / NOTIFICATIONS_NAME),
            self._troubles,
            lambda: notify_routes(self._config),
            self._parts.clock,
            Origin(self._node_name(), lambda: self._parts.gpus.simulated, day),
        )
        self._outbox.joining = self._user_limits.joining
        stack.push_async_callback(self._outbox.close)
        self._digest = WeeklyDigest(
            loop,
            self._outbox,
            self._parts.history,
            lambda: notify_routes(self._config),
            self._recorder.flush,
        )
        self._lease_notifier = LeaseNotifier(
            loop, self._outbox, lambda: self._config.notify.ends_soon_seconds
        )

    def _make_job_host(self, loop: Loop, executor: Executor) -> JobHost:
        return JobHost(
            self._config,
            self._node_name(),
            loop,
            self._parts.engine,
            executor,
            self._reconciler,
            GuardProcess(
                self._runtime_dir / GUARD_DIRECTORY,
                self._config.engine.socket,
                as_unit=is_socket_activated(),
            ),
            self._troubles,
        )

    def _make_verifier(self, loop: Loop, stack: AsyncExitStack) -> None:
        config = self._config
        engine = str(Path(config.engine.socket.removeprefix("unix://")).resolve())
        verifier = Verifier(
            loop,
            self._parts.engine,
            self._troubles,
            self._audit.take_finding,
            gate=gate_name(config.node.state_dir),
            barred=(str(self._runtime_dir), config.node.state_dir, engine, *ENGINES_OWN),
            leases_directory=str(self._runtime_dir / "leases"),
            passwd_directory=str(Path(config.node.state_dir) / USERS_FILES_NAME),
            simulated=self._parts.gpus.simulated,
        )

        def changed(change: ContainerFacts | ContainerId) -> None:
            verifier.changed(change)
            self._lease_service.container_changed(change)

        self._reconciler.on_change = changed

        def reached() -> None:
            verifier.reached()
            self._user_limits.changed()

        self._reconciler.on_reached = reached
        stack.push_async_callback(verifier.close)

    async def _first_look(self, loop: Loop, executor: Executor) -> None:
        """Look at GPUs, containers' settings and containers before anything is granted, if they answer."""
        try:
            async with asyncio.timeout(FIRST_LOOK_SECONDS):
                await self._sampler.sample_and_report()
                await self._parts.wall.trouble()  # tried once, before the first lease needs it
        except TimeoutError:
            self._troubles.raised("gpus", "the GPUs do not answer")
        # The settings are in place before systemd lets the engine start, which restarts some containers
        # at once.
        executor.remake_all()
        await self._hold_mounts()
        await self._user_limits.restore()
        if loop.state.gpus:
            await executor.settle(FIRST_LOOK_SECONDS)
        if is_socket_activated():
            # At boot systemd starts the engine only after us, while its socket is open already and does not
            # answer. Calls to our own socket wait in it until we serve.
            self._notifier.ready("waiting for the Docker engine")
        try:
            async with asyncio.timeout(FIRST_LOOK_SECONDS):
                await self._reconciler.connect()
                await self._clean_up(loop, executor)
        except JournalUnavailable as error:
            log.warning("containers are looked at again once the journal can be written: %s", error)
        except (GpushareError, TimeoutError) as error:
            self._reconciler.lost(str(error) or "the Docker engine does not answer")
        if loop.state.gpus:
            await self._sampler.sample_and_report()

    async def _hold_mounts(self) -> None:
        """Make the held mounts again that a reboot ended.

        A container without its mounts does not start.
        """
        try:
            async with asyncio.timeout(FIRST_LOOK_SECONDS):
                self._report_mounts(await self._held_mounts.restore())
        except (GpushareError, TimeoutError) as error:
            self._report_mounts(str(error) or "the mounts of containers could not be made again in time")

    def _report_mounts(self, text: str) -> None:
        if text:
            self._troubles.raised("pins", text)
        else:
            self._troubles.cleared("pins")

    async def _clean_up(self, loop: Loop, executor: Executor) -> None:
        """Remove the remains of a run that was cut off, but nothing that a container may still use."""
        containers = await self._parts.engine.containers()
        up = {facts.device_name for facts in containers if facts.status in UP}
        live = up | {lease.device_name for lease in loop.state.leases.values()}
        await self._parts.sharing.sweep(live)
        for lease in loop.state.ended.values():
            if lease.device_name not in live:
                executor.perform(DropEdits(lease.id, lease.device_name))

    async def _serve(self, loop: Loop, stack: AsyncExitStack, listener: socket.socket) -> None:
        await load_enrolment(self._enrolment, self._troubles)
        self._api = self._make_api(loop)
        self._set_defaults()
        audit, gate = self._audit, self._make_gate()
        self._gate = gate
        stack.push_async_callback(_end_creates, gate)
        inner = self._make_inner_folder() / INNER_SOCKET
        call_audit, audit_api = CallAudit(audit.take), AuditApi(audit, simulated=self._parts.gpus.simulated)
        json = JsonApi(self._calls() | audit_api.calls(), call_audit, lambda: self._revisions)
        routes = Routes(
            json.answer,
            gate.handle,
            refused=gate.refused,
            shares=self._shares,
            metrics=self._metrics.page,
        )
        await self._job_host.serve(routes, stack)
        jobs = await self._open_jobs(loop, stack)
        json.add(jobs.calls())
        json.add(PolicyApi(gate).calls() | self._pool.calls() | self._make_history_api().calls())
        json.add(self._pool.with_pool(json.calls))
        site, browsers = self._make_page(json, gate, jobs, stack)
        front = Front(
            inner, self._identities, replace(routes, browser=lambda exchange: take_over(exchange, site))
        )
        authenticator = CallAuthenticator(
            self._identities, front.secret, front.origins, call_audit, self._shares
        )
        await stack.enter_async_context(
            grpc_services.serving(json.calls, self._api, jobs, authenticator, str(inner))
        )
        await stack.enter_async_context(front.serving(listener))
        await check_identity(listener.getsockname(), _ask_own_uid)
        await self._run_until_stop(loop, browsers)

    def _make_lease_service(self, loop: Loop, executor: Executor) -> LeaseService:
        return LeaseService(
            loop,
            executor,
            self._reconciler,
            self._parts.engine,
            self._parts.journal,
            self._client_presence,
        )

    def _make_inner_folder(self) -> Path:
        """Make the folder of the gRPC server's socket, which only this daemon may enter."""
        folder = self._runtime_dir / INNER_FOLDER
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.chmod(0o700)
        return folder

    def _make_page(
        self, json: JsonApi, gate: Gate, jobs: NodeJobs, stack: AsyncExitStack
    ) -> tuple[BrowserSite, BrowserListeners]:
        """Make the page's parts, and add the page's own calls to the others."""
        streams = self._make_streams(json, jobs)
        stack.push_async_callback(streams.close)
        site = self._make_site(json, gate, streams)
        users = UserLookups(self._identities.account, self._identities.account)
        self._browsers = browsers = BrowserListeners(lambda: self._config.web, site, users, self._troubles)
        json.add(WebApi(site.logins, site.base_path, browsers.url).calls())
        return site, browsers

    def _make_streams(self, json: JsonApi, jobs: NodeJobs) -> EventStreams:
        self._loop.on_change = self._job_services.on_change = self._revisions.state_changed
        self._sampler.observers.append(SampleRevisions(self._revisions).observe)
        return EventStreams(
            json,
            self._revisions,
            node_pace(lambda: jobs.pool is not None),
            NodeLogs(self._api, jobs, self._job_host.loopback_gate).follow,
        )

    def _make_site(self, json: JsonApi, gate: Gate, streams: EventStreams) -> BrowserSite:
        state_dir = self._config.node.state_dir
        return BrowserSite(
            json.answer,
            Logins(
                Path(state_dir) / WEB_SESSIONS_NAME,
                lambda: self._config.web.session_hours * HOUR_SECONDS,
            ),
            partial(caller_of_account, self._identities.account),
            lambda: SiteFacts(self._node_name(), self._pool_name(), self._parts.gpus.simulated),
            lambda: self._config.web.base_path,
            identity=f"{self._node_name()}\n{state_dir}",
            shares=self._shares,
            stream=streams.serve,
            audit=self._audit.take,
            refused=gate.refused,
        )

    def _make_gate(self) -> Gate:
        config = self._config
        return Gate(
            config.engine.socket,
            self._lease_service,
            policy_of(config),
            self._metrics.take_audit,
            name=gate_name(config.node.state_dir),
            pins=self._held_mounts,
            walls=self._user_limits.cgroups,
            passwd=self._passwd,
        )

    async def _open_jobs(self, loop: Loop, stack: AsyncExitStack) -> NodeJobs:
        """Open the jobs only when containers can be made, because waiting jobs begin at once."""
        services = self._job_services = JobServices(
            self._parts.jobs,
            self._parts.clock,
            self._troubles,
            self._parts.history,
            self._enrolment.asserter,
        )
        opened = services.open(
            lambda: self._config,
            loop,
            self._api,
            self._job_host,
            node_name=self._node_name(),
            socket=str(self._runtime_dir / SOCKET_NAME),
        )
        jobs = await stack.enter_async_context(opened)
        self._pool = PoolServices(
            lambda: self._config,
            self._enrolment,
            loop,
            self._job_host,
            services,
            self._api,
            self._troubles,
            self._audit.take,
            runtime_dir=self._runtime_dir,
            simulated=self._parts.gpus.simulated,
            answerers=self._answerers(),
        )
        return jobs

    def _answerers(self) -> Mapping[str, Answerer]:
        history = HistoryAnswers(self._parts.history, self._recorder.flush, self._pool_name, self._realm)
        listings = ListingAnswers(self._api.list_leases, self._api.list_gpus, self._pool_name, self._realm)
        return {**history.answerers(), **listings.answerers()}

    def _pool_name(self) -> str:
        membership = self._enrolment.membership
        return "" if membership is None else membership.pool

    def _realm(self) -> str:
        return self._config.pool.realm or self._node_name()

    def _make_api(self, loop: Loop) -> Api:
        return Api(
            loop=loop,
            journal=self._parts.journal,
            sampler=self._sampler,
            reconciler=self._reconciler,
            client_presence=self._client_presence,
            troubles=self._troubles,
            node_name=self._node_name(),
            simulated=self._parts.gpus.simulated,
            examination=self._make_examination(loop),
            memberships=Memberships(self._enrolment, lambda: self._config.pool, self._node_name()),
        )

    def _make_history_api(self) -> HistoryApi:
        rights = Rights(lambda: self._config.privacy.others)
        simulated = self._parts.gpus.simulated
        return HistoryApi(
            self._parts.history,
            self._flush_history,
            rights,
            simulated=lambda: simulated,
            recent=self._recorder,
        )

    async def _flush_history(self) -> None:
        await self._recorder.flush()
        await self._job_services.recorder.flush()

    def _node_name(self) -> str:
        return self._config.node.name or socket.gethostname()

    def _make_examination(self, loop: Loop) -> Examination:
        return Examination(
            loop,
            self._sampler,
            self._troubles,
            driver=self._nvml,
            wall=self._parts.wall,
            modes=self._parts.modes,
            mounts_trouble=lambda: self._held_mounts.trouble,
            users_trouble=lambda: self._user_limits.trouble,
            socket=self._runtime_dir / SOCKET_NAME,
            config=lambda: self._config,
            reread=self._reread,
            pool=lambda: self._pool.view(self._realm()),
        )

    def _calls(self) -> dict[str, Unary]:
        calls = self._api.calls()
        if isinstance(self._parts.gpus, SimulatedGpus):
            calls |= Simulation(self._parts.gpus, self._sampler).calls()
        return calls

    def _listener(self) -> socket.socket:
        return passed_socket() or listen(self._runtime_dir / SOCKET_NAME, self._config.node.socket_mode)

    async def _run_until_stop(self, loop: Loop, browsers: BrowserListeners) -> None:
        """Look, follow and tick, and report to systemd, until the stop."""
        self._notifier.ready(self._heartbeat.status())
        log.info("serving %s", self._heartbeat.status())
        self._client_presence.opened(loop.now())
        await until_one_ends(
            self._notifier,
            self._sampler.run(),
            self._reconciler.run(),
            self._heartbeat.run(),
            self._heartbeat.follow_clients(),
            keep_always(self._parts.clock, self._troubles),
            self._job_host.run(),
            self._enrolment.keep_renewed(),
            self._held_mounts.keep(self._report_mounts),
            self._user_limits.run(),
            self._pool.run(),
            self._audit.run(),
            self._outbox.run(),
            self._lease_notifier.run(),
            self._digest.run(),
            self._recorder.run(),
            self._job_services.recorder.run(),
            self._metrics.run(),
            browsers.run(),
            loop.ended(),
            self._stop.wait(),
        )

    # --- configuration that may change at run time ---------------------------------------------------------

    def reload(self, config: Config) -> None:
        """Apply the settings that can change at run time.

        These are rules, presets, the gate's policy and trusted groups.
        """
        self._config = config
        self._audit.config = config.audit
        self._audit.take_reload()
        if self._gate is None:
            return  # the daemon is still starting, and will read the new configuration here
        self._loop.take_rules(rules_of(config))
        self._identities.trusted_groups = frozenset(config.gate.trusted_groups)
        self._identities.subordinates.path = _path(config.gate.subordinate_ids)
        self._identities.forget()
        self._gate.policy = policy_of(config)
        self._user_limits.changed()
        self._shares.limits = limits_of(config)
        self._job_host.reload(config)
        self._job_services.reload(config)
        self._pool.link.reload()
        self._metrics.reload()
        if self._browsers is not None:
            self._browsers.reload()
        self._outbox.reload()
        self._set_defaults()
        self._revisions.state_changed()
        self._heartbeat.send_status_again()  # this comes after the status of the reload
        log.info("configuration reloaded")

    def not_reloaded(self, error: GpushareError) -> None:
        """Note that a reload failed: the old configuration stays."""
        self._audit.take_reload(error)

    def _set_defaults(self) -> None:
        """Set the defaults for requests that do not give a value, and the presets that requests name."""
        self._lease_service.max_waits = dict(self._config.gate.max_wait)
        presets = {name: preset.spec for name, preset in self._config.presets.items()}
        self._api.presets = self._lease_service.presets = presets
        self._api.preset_texts = {name: preset.description for name, preset in self._config.presets.items()}

    async def _close_parts(self) -> None:
        await self._parts.sharing.close(keep_running=True)
        await self._parts.checkpoints.close()
        await self._parts.engine.close()
        await self._parts.gpus.close()
        await self._parts.jobs.close()
        await self._audit.close()
        await self._parts.history.close()
        await self._parts.journal.close()
        await keep(self._parts.clock, self._troubles)


def _path(text: str) -> Path | None:
    return Path(text) if text else None


async def _end_creates(gate: Gate) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(CLOSE_SECONDS):
            await gate.close()


async def _ask_own_uid(channel: grpc.aio.Channel) -> None:
    status = await node_pb2_grpc.NodeStub(channel).Status(node_pb2.NodeStatusRequest())
    if status.caller_uid != os.getuid():
        raise ConfigError("gRPC reports the wrong caller", hint="please report this with grpcio's version")
