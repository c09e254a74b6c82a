"""Serve the gate: claims, leases for containers without one, starts and restarts."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import Any

from gpushared.daemon.tasks import TaskSet
from gpushared.domain.leases import events as m
from gpushared.domain.leases.offers import offer
from gpushared.domain.leases.stop_order import AskedEnd
from gpushared.domain.leases.terms import without_ended
from gpushared.domain.model.elastic import as_held
from gpushared.domain.model.errors import (
    EngineUnavailable,
    GpushareError,
    JournalUnavailable,
    NoRoom,
    NotFound,
    StateConflict,
    TimedOut,
)
from gpushared.domain.model.lease import (
    ContainerId,
    Draining,
    Ended,
    Finished,
    Lease,
    LeaseId,
    Queued,
    Requeued,
    Resuming,
    Stopped,
    Suspended,
    Suspending,
    state_name,
)
from gpushared.domain.model.request import Caller, Request
from gpushared.domain.model.request_spec import RequestSpec, read_request
from gpushared.domain.scheduling.projects import project_of
from gpushared.gate.containers.gpu_request import LABEL_MAX_WAIT, gpu_request_of
from gpushared.gate.containers.inject import binds_late
from gpushared.gate.containers.lease_port import Claim
from gpushared.jobs.job_requests import MAX_IMAGE, is_container_name
from gpushared.node.jobs.job_containers import environment_of, labels_of, launcher_defaults
from gpushared.node.runtime.client_presence_checks import ClientPresence
from gpushared.node.runtime.container_reconciler import ContainerReconciler
from gpushared.node.runtime.executor import Executor
from gpushared.node.runtime.loop import Loop
from gpushared.node.services.queue_patience import QueuePatience, no_room, patience_of
from gpushared.node.services.views import outcome
from gpushared.ports import LABEL_JOB, ContainerFacts, ContainerStatus, Edits, Engine, EngineFacts, Journal

LOOK_AGAIN_SECONDS = 5.0
EDITS_SECONDS = 30.0
DRAIN_SECONDS = 60.0
WRITE_AGAIN_SECONDS = 1.0


class LeaseService:
    """Implement the ``LeasePort`` of the gate over the loop and its parts."""

    def __init__(
        self,
        loop: Loop,
        executor: Executor,
        reconciler: ContainerReconciler,
        engine: Engine,
        journal: Journal,
        client_presence: ClientPresence,
    ) -> None:
        self.presets: Mapping[str, RequestSpec] = {}
        self.max_waits: Mapping[str, int] = {}
        """The seconds that requests without a limit of their own wait in the queue, by user or project."""
        self._loop = loop
        self._executor = executor
        self._reconciler = reconciler
        self._engine = engine
        self._journal = journal
        self._client_presence = client_presence
        self._background_tasks = TaskSet()
        self._to_drop: set[LeaseId] = set()
        """Leases whose claim is over, but not yet written as over."""
        self._starts: dict[asyncio.Timeout, ContainerId] = {}
        """The waits of starts that are for a new lease of their container."""

    def engine_facts(self) -> EngineFacts:
        if self._reconciler.facts is None:
            raise EngineUnavailable(
                "the Docker engine has not answered yet", hint="`gpushare gpus` says what is wrong"
            )
        return self._reconciler.facts

    async def gpu_count(self) -> int:
        return sum(gpu.parent is None and not gpu.split for gpu in self._loop.state.gpus.values())

    # --- claims ----------------------------------------------------------------------------------------

    async def claim(self, lease_id: LeaseId, caller: Caller) -> Claim:
        lease = self._loop.state.leases.get(lease_id)
        if lease is not None and lease.owner_uid != caller.uid:
            raise NotFound(f"there is no lease {lease_id}", hint="`gpushare ps` lists yours")
        if lease_id in self._to_drop:
            await self._loop.send(m.ClaimDropped(lease_id))
            self._to_drop.discard(lease_id)
        asking = asyncio.ensure_future(self._loop.send(m.ClaimAsked(lease_id, caller)))
        try:
            claimed = _present(await asyncio.shield(asking))
        except asyncio.CancelledError:
            self._in_background(self._unclaim_after(asking, lease_id))
            raise
        try:
            edits = await self._edits(lease_id)
        except (GpushareError, asyncio.CancelledError):
            self._in_background(self.unclaim(lease_id))
            raise
        restarts = claimed.request.restart_on_fault
        return self._with_job(Claim(lease_id, claimed.device_name, edits, claimed.grants, restarts), claimed)

    def _with_job(self, claim: Claim, lease: Lease) -> Claim:
        attempt = self._loop.state.attempt_of(lease)
        if attempt is None:
            return claim
        return replace(
            claim,
            labels=labels_of(attempt),
            env=environment_of(attempt),
            env_defaults=launcher_defaults(attempt),
        )

    def in_gang(self, lease_id: LeaseId, caller: Caller) -> bool:
        lease = self._loop.state.leases.get(lease_id)
        return lease is not None and lease.owner_uid == caller.uid and self._is_of_gang(lease)

    def has_gang(self, container: ContainerId) -> bool:
        lease = self._loop.state.of_container(container)
        return lease is not None and self._is_of_gang(lease)

    def _is_of_gang(self, lease: Lease) -> bool:
        attempt = self._loop.state.attempt_of(lease)
        return attempt is not None and attempt.facts is not None

    async def _edits(self, lease: LeaseId) -> Edits:
        try:
            async with asyncio.timeout(EDITS_SECONDS):
                return await self._executor.edits_of(lease)
        except TimeoutError:
            raise TimedOut(
                f"the settings of lease {lease} were not in place in {EDITS_SECONDS:.0f} s",
                hint="`gpushare gpus` says what is wrong",
            ) from None

    async def _unclaim_after(self, asking: asyncio.Future[Lease | None], lease: LeaseId) -> None:
        """Give a claim back, but only if this caller got it: otherwise the claim is another caller's."""
        await asking
        await self.unclaim(lease)

    async def unclaim(self, lease: LeaseId) -> None:
        await self._insist(m.ClaimDropped(lease))

    async def created(
        self, lease: LeaseId, container: ContainerId, name: str, image: str, *, stays: bool
    ) -> None:
        try:
            await self._loop.send(m.ContainerCreated(lease, container, name, image, stays))
        except JournalUnavailable:
            # The gate takes the container away again, so nothing claims the lease any more.
            await self._insist(m.ClaimDropped(lease))
            raise

    async def _insist(self, event: m.ClaimDropped | m.ReleaseAsked) -> None:
        """Send the event; if the journal is away, send it again until it is written."""
        try:
            await self._loop.send(event)
        except JournalUnavailable:
            if isinstance(event, m.ClaimDropped):
                self._to_drop.add(event.lease)
            self._in_background(self._until_written(event))

    async def _until_written(self, event: m.ClaimDropped | m.ReleaseAsked) -> None:
        while True:
            await asyncio.sleep(WRITE_AGAIN_SECONDS)
            if isinstance(event, m.ClaimDropped) and event.lease not in self._to_drop:
                return  # the next claim came first, and must not be dropped
            with contextlib.suppress(JournalUnavailable):
                await self._loop.send(event)
                self._to_drop.discard(event.lease)
                return

    # --- leases that the gate asks for -----------------------------------------------------------------

    async def acquire(self, gpu_request: RequestSpec, caller: Caller, name: str, image: str) -> Claim:
        request = read_request(gpu_request, self.presets)
        patience = self._patience(gpu_request.max_wait, caller, self._project(request, caller))
        submitted = m.RequestSubmitted(
            request,
            caller,
            holder=caller.process,
            container_name=name if is_container_name(name) else "",  # the engine refuses a bad name
            image=image[:MAX_IMAGE],
        )
        return await self._acquire(submitted, patience)

    async def _acquire(self, submitted: m.RequestSubmitted, patience: QueuePatience) -> Claim:
        request, caller = submitted.request, submitted.caller
        try:
            lease = _present(await self._loop.send(replace(submitted, immediate=not patience.waits)))
        except NoRoom as error:
            # The request is offered and not queued: a request in the queue, even for a moment, makes others
            # give way.
            waiting = offer(self._loop.state, request, caller, self._loop.now()).waiting
            raise no_room(patience, waiting, self._loop.state, self._loop.now()) from error
        try:
            await self._wait_until_granted(lease, patience)
            return await self.claim(lease.id, caller)
        except (GpushareError, asyncio.CancelledError):
            self._in_background(self.release(lease.id))
            raise

    async def _wait_until_granted(self, lease: Lease, patience: QueuePatience) -> None:
        with self._client_presence.waiting(lease.id, self._loop.now()):
            while isinstance((lease := self._loop.state.find(lease.id)).state, Queued):
                await self._wait_for_room(lease, patience)
        if isinstance(lease.state, Ended):
            raise StateConflict(f"lease {lease.id} ended while it waited", hint="ask again")

    async def _wait_for_room(self, lease: Lease, patience: QueuePatience) -> None:
        """Return when there may be room for the request. Raises LimitReached after the caller's patience."""
        now = self._loop.now()
        if now >= patience.until:
            raise no_room(patience, self._loop.waiting_of(lease), self._loop.state, now)
        await self._loop.changed(min(LOOK_AGAIN_SECONDS, patience.until - now))

    def _patience(self, label: str, caller: Caller, project: str) -> QueuePatience:
        """Return the patience for the caller, who is not always the owner of the new lease."""
        return patience_of(label, (caller.name, project), self.max_waits, self._loop.now())

    def _project(self, request: Request, owner: Caller) -> str:
        return project_of(owner.name, request.project, self._loop.state.policy)

    async def release(self, lease_id: LeaseId) -> None:
        root = Caller(0, 0, "the daemon", trusted=True)
        lease = self._loop.state.leases.get(lease_id)
        if lease is not None and lease.attempt is not None:
            await self.unclaim(lease_id)
        elif lease is not None and lease.container is None:
            await self._insist(m.ReleaseAsked(lease_id, root))

    # --- starts ----------------------------------------------------------------------------------------

    async def before_start(self, container: ContainerId, caller: Caller) -> None:
        at = self._loop.now()
        facts = await self._engine.inspect(container)
        if facts is None or not facts.device_name:
            return
        await self._reconciler.note_end(facts, at)
        lease = await self._on_its_gpus(container, caller)
        if lease is not None:
            await self._loop.send(m.StartAsked(lease.id))
        else:
            await self._lease_again(facts, caller)

    def container_changed(self, change: ContainerFacts | ContainerId) -> None:
        """End the starts that wait for a lease for a container that is gone."""
        for wait in [wait for wait, container in self._starts.items() if container == change]:
            del self._starts[wait]
            wait.reschedule(0.0)

    @asynccontextmanager
    async def _while_it_exists(self, container: ContainerFacts) -> AsyncIterator[None]:
        """Raise NotFound, in the engine's words, if the container is removed while the block waits."""
        try:
            async with asyncio.timeout(None) as wait:
                self._starts[wait] = container.id
                yield
        except TimeoutError:
            raise NotFound(f"No such container: {container.name}") from None
        finally:
            self._starts.pop(wait, None)

    async def start_failed(self, container: ContainerId) -> None:
        await self._reconciler.inspect(container)

    async def before_restart(self, container: ContainerId, caller: Caller) -> None:
        lease = await self._on_its_gpus(container, caller)
        if lease is not None:
            await self._loop.send(m.RestartAsked(lease.id, self._loop.state.rules.stop_grace_seconds))
        else:
            await self.before_start(container, caller)

    async def after_restart(self, container: ContainerId) -> None:
        lease = self._loop.state.of_container(container)
        if lease is not None:
            await self._loop.send(m.RestartDone(lease.id))

    def before_unpause(self, container: ContainerId) -> None:
        lease = self._loop.state.of_container(container)
        if lease is not None:
            _check_not_suspended(lease)

    def ending(self, container: ContainerId, end: AskedEnd) -> AbstractAsyncContextManager[None]:
        return self._executor.mps_detach.around(container, end)

    def last_words(self, container: str) -> Callable[[], str] | None:
        for lease in self._loop.state.leases.values():
            if lease.container is not None and _is_named(lease, container):
                return partial(self._why_ended, lease.id)
        return None

    def _why_ended(self, lease_id: LeaseId) -> str:
        state = self._loop.state
        lease = state.leases.get(lease_id) or state.ended.get(lease_id)
        if lease is None or not isinstance(lease.state, Draining | Ended):
            return ""
        if isinstance(lease.state.outcome, Finished | Stopped):
            return ""
        end = outcome(lease.state.outcome, state.gpus)
        return f"gpushare: {lease_id} {end.kind}: {end.text}\n  hint: its story: gpushare why {lease_id}"

    async def lease_env(self, container: ContainerId) -> Mapping[str, str]:
        lease = self._loop.state.of_container(container)
        return {} if lease is None else (await self._edits(lease.id)).env

    async def _after_draining(self, container: ContainerId) -> Lease | None:
        """Return the container's live lease, after an earlier one is over."""
        try:
            async with asyncio.timeout(DRAIN_SECONDS):
                while (lease := self._loop.state.of_container(container)) is not None:
                    if not isinstance(lease.state, Draining):
                        return lease
                    await self._loop.changed(LOOK_AGAIN_SECONDS)
        except TimeoutError:
            raise StateConflict(
                "the container's last lease has not ended yet: its GPU memory is not back",
                hint="`gpushare ps` shows it",
            ) from None
        return None

    async def _on_its_gpus(self, container: ContainerId, caller: Caller) -> Lease | None:
        """Return the container's live lease; wait for one that gave way, but refuse a suspended one."""
        lease = await self._after_draining(container)
        if lease is None:
            return None
        _check_not_suspended(lease)
        if isinstance(lease.state, Requeued):
            facts = await self._engine.inspect(container)
            label = facts.labels.get(LABEL_MAX_WAIT, "") if facts else ""
            patience = self._patience(label, caller, lease.payer)
            while isinstance(lease.state, Requeued):
                await self._wait_for_room(lease, patience)
                lease = self._loop.state.find(lease.id)
        return lease

    async def _lease_again(self, facts: ContainerFacts, caller: Caller) -> None:
        _check_not_given_up(facts)
        request, owner = await self._request_again(facts, caller)
        label = facts.labels.get(LABEL_MAX_WAIT, "")
        patience = self._patience(label, caller, self._project(request, owner))
        submitted = m.RequestSubmitted(
            request,
            owner,
            device_name=facts.device_name,
            holder=owner.process,
            container_name=facts.name,
            image=facts.image,
        )
        async with self._while_it_exists(facts):
            claim = await self._acquire(submitted, patience)
        await self.created(claim.lease, facts.id, facts.name, facts.image, stays=False)

    async def _request_again(self, facts: ContainerFacts, caller: Caller) -> tuple[Request, Caller]:
        """Return the request for a container that starts again: its previous lease's, else its labels'.

        The lease is for the container's owner, even if another user starts the container. Raises
        StateConflict if neither a previous lease nor a label is known.
        """
        previous = await self._previous(facts.device_name)
        if previous is None:
            gpu_request = gpu_request_of(facts.labels)
            if gpu_request is None:
                raise StateConflict(
                    f"nothing is known of the lease that {facts.name} had",
                    hint="create the container anew with `gpushare run`",
                )
            request = read_request(gpu_request, self.presets)
            uid = caller.uid if facts.owner_uid is None else facts.owner_uid
            return request, caller if uid == caller.uid else Caller(uid, uid, str(uid))
        owner = Caller(previous.owner_uid, previous.owner_uid, previous.owner_name)
        return without_ended(self._with_created_grants(previous), self._loop.state.leases), owner

    async def _previous(self, device_name: str) -> Lease | None:
        lease = LeaseId(device_name)
        return self._loop.state.ended.get(lease) or await self._journal.lease(lease)

    def _with_created_grants(self, previous: Lease) -> Request:
        """Return the request for exactly the same parts of the same GPUs if settings are fixed at create."""
        grants = previous.state.grants if isinstance(previous.state, Ended) else previous.grants
        grants = previous.created_grants or grants
        if binds_late(self.engine_facts()) or not grants:
            return previous.request
        return as_held(previous.request, grants)

    def _in_background(self, work: Coroutine[Any, Any, None]) -> None:
        """Run the work as a task of its own: a caller that is being cancelled cannot await it."""
        self._background_tasks.start(_ignoring_errors(work))


def _is_named(lease: Lease, name: str) -> bool:
    return lease.container_name == name or (bool(name) and str(lease.container).startswith(name))


async def _ignoring_errors(work: Coroutine[Any, Any, None]) -> None:
    try:
        await work
    except GpushareError:
        return  # the lease ends by its own deadline


def _present(lease: Lease | None) -> Lease:
    assert lease is not None, "events about one lease answer with it"
    return lease


def _check_not_suspended(lease: Lease) -> None:
    if isinstance(lease.state, Suspending | Suspended | Resuming):
        raise StateConflict(
            f"lease {lease.id} is {state_name(lease.state)}: its processes are frozen, and go on later",
            hint=f"`gpushare resume {lease.id}` brings it back",
        )


def _check_not_given_up(facts: ContainerFacts) -> None:
    """Raise StateConflict for a job's container that never ran: its attempt is over without it.

    The daemon's own start may come that late, after a freeze for example, when the job may run elsewhere.
    """
    job = facts.labels.get(LABEL_JOB)
    if job and facts.status is ContainerStatus.CREATED:
        raise StateConflict(
            f"{facts.name} was made for an attempt of job {job} that is over",
            hint=f"`gpushare why {job}` tells what became of the job",
        )
