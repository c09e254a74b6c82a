"""Serve each call of the API in one place, drains included: gRPC and unary JSON are only two ways to reach it."""

from __future__ import annotations

import math
from collections.abc import Mapping

import gpushared
from gpushared.api.v1 import gpus_pb2, leases_pb2, node_pb2, projects_pb2
from gpushared.daemon.troubles import Troubles
from gpushared.domain.leases import events as m
from gpushared.domain.leases.events import GpuDrainAsked
from gpushared.domain.leases.node_state import NodeState
from gpushared.domain.leases.offers import offer
from gpushared.domain.leases.prospects import when_others_need_it
from gpushared.domain.model.errors import NotFound, RequestError
from gpushared.domain.model.gpu import GpuId, check_any
from gpushared.domain.model.lease import Ended, Lease, LeaseId, state_name
from gpushared.domain.model.request import Caller, Request
from gpushared.domain.model.request_spec import RequestSpec, read_size
from gpushared.domain.model.units import parse_duration, shown
from gpushared.jobs.job_requests import read_container, read_lease_request
from gpushared.net.unary_json import Unary
from gpushared.node.pool.membership_service import Memberships
from gpushared.node.runtime.client_presence_checks import ClientPresence
from gpushared.node.runtime.container_reconciler import ContainerReconciler
from gpushared.node.runtime.loop import Loop
from gpushared.node.runtime.sampler import Sampler
from gpushared.node.services import views
from gpushared.node.services.examination import Examination
from gpushared.node.services.lease_views import list_leases, resize_effects
from gpushared.node.services.project_views import ProjectService
from gpushared.node.services.views import Views
from gpushared.ports import Journal

MAX_WAIT_SECONDS = 60.0
SHORTEST_CONTAINER_ID = 4
ALL = "all"


class Api:
    """Answer all calls of the daemon, apart from the Docker endpoint."""

    def __init__(
        self,
        *,
        loop: Loop,
        journal: Journal,
        sampler: Sampler,
        reconciler: ContainerReconciler,
        client_presence: ClientPresence,
        troubles: Troubles,
        node_name: str,
        simulated: bool,
        examination: Examination,
        memberships: Memberships,
    ) -> None:
        self.presets: Mapping[str, RequestSpec] = {}
        self.preset_texts: Mapping[str, str] = {}
        self._loop = loop
        self._journal = journal
        self._sampler = sampler
        self._reconciler = reconciler
        self._client_presence = client_presence
        self._troubles = troubles
        self._node_name = node_name
        self._simulated = simulated
        self._examination = examination
        self._started_at = loop.now()
        self.views = views.Views(loop, simulated=simulated)
        self.drains = Drains(loop, sampler, self.views)
        self.projects = ProjectService(loop, simulated=simulated)
        self.memberships = memberships

    def calls(self) -> dict[str, Unary]:
        """Return all unary calls by their full names."""
        return {
            "gpushare.v1.Leases/Request": Unary(leases_pb2.LeaseRequest, self.request),
            "gpushare.v1.Leases/Wait": Unary(leases_pb2.WaitRequest, self.wait),
            "gpushare.v1.Leases/Release": Unary(leases_pb2.LeaseRef, self.release),
            "gpushare.v1.Leases/Stop": Unary(leases_pb2.StopRequest, self.stop),
            "gpushare.v1.Leases/Resize": Unary(leases_pb2.ResizeRequest, self.resize),
            "gpushare.v1.Leases/Hold": Unary(leases_pb2.HoldRequest, self.hold),
            "gpushare.v1.Leases/Extend": Unary(leases_pb2.ExtendRequest, self.extend),
            "gpushare.v1.Leases/SetPriority": Unary(leases_pb2.PriorityRequest, self.set_priority),
            "gpushare.v1.Leases/Pause": Unary(leases_pb2.LeaseRef, self.pause),
            "gpushare.v1.Leases/Resume": Unary(leases_pb2.LeaseRef, self.resume),
            "gpushare.v1.Leases/Preempt": Unary(leases_pb2.LeaseRef, self.preempt),
            "gpushare.v1.Leases/Get": Unary(leases_pb2.LeaseRef, self.get),
            "gpushare.v1.Leases/List": Unary(leases_pb2.ListLeasesRequest, self.list_leases),
            "gpushare.v1.Leases/Explain": Unary(leases_pb2.LeaseRef, self.explain),
            "gpushare.v1.Leases/Offer": Unary(leases_pb2.LeaseRequest, self.offer),
            "gpushare.v1.Gpus/List": Unary(gpus_pb2.ListGpusRequest, self.list_gpus),
            "gpushare.v1.Gpus/Drain": Unary(gpus_pb2.DrainRequest, self.drains.drain),
            "gpushare.v1.Gpus/Undrain": Unary(gpus_pb2.UndrainRequest, self.drains.undrain),
            "gpushare.v1.Projects/List": Unary(projects_pb2.ListProjectsRequest, self.projects.list_projects),
            "gpushare.v1.Projects/Set": Unary(projects_pb2.SetProjectRequest, self.projects.set_project),
            "gpushare.v1.Node/Status": Unary(node_pb2.NodeStatusRequest, self.status),
            "gpushare.v1.Node/Presets": Unary(node_pb2.PresetsRequest, self.list_presets),
            "gpushare.v1.Node/Doctor": Unary(node_pb2.DoctorRequest, self.doctor),
            **self.memberships.calls(),
        }

    # --- leases ----------------------------------------------------------------------------------------

    async def request(self, message: leases_pb2.LeaseRequest, caller: Caller) -> leases_pb2.Lease:
        """Queue or grant a request; return at once."""
        request = self._read(message)
        name, image = read_container(message)
        event = m.RequestSubmitted(
            request,
            caller,
            message.request_id,
            immediate=message.immediate,
            held=message.held,
            holder=caller.process if message.ends_with_caller else None,
            container_name=name,
            image=image,
        )
        lease = await self._loop.send(event)
        assert lease is not None, "a request is answered with its lease"
        if lease.holder is not None:
            self._client_presence.processes.has_ended(lease.holder)  # this watches the process from now on
        self._client_presence.seen(lease.id, self._loop.now())
        return self._view(lease, caller)

    def _read(self, message: leases_pb2.LeaseRequest) -> Request:
        return read_lease_request(message, self.presets)

    async def offer(self, message: leases_pb2.LeaseRequest, caller: Caller) -> leases_pb2.OfferAnswer:
        """Return the result that a request would have now; nothing is booked."""
        request = self._read(message)
        return self.views.offer(request, offer(self._loop.state, request, caller, self._loop.now()))

    async def wait(self, message: leases_pb2.WaitRequest, caller: Caller) -> leases_pb2.Lease:
        """Return when the lease differs from its state in the token."""
        if math.isnan(message.timeout_seconds):
            raise RequestError(
                "the time-out is not a number", hint=f"give 0 to {MAX_WAIT_SECONDS:.0f} seconds"
            )
        lease = await self._find(message.lease_id, caller)
        seconds = min(max(message.timeout_seconds, 0.0), MAX_WAIT_SECONDS)
        until = self._loop.now() + seconds
        with self._client_presence.waiting(lease.id, self._loop.now()):
            while (view := self._view(self._again(lease), caller)).token == message.token:
                remaining_seconds = until - self._loop.now()
                if remaining_seconds <= 0 or not await self._loop.changed(remaining_seconds):
                    break
        self._client_presence.seen(lease.id, self._loop.now())
        return view

    async def release(self, message: leases_pb2.LeaseRef, caller: Caller) -> leases_pb2.Lease:
        lease = await self._find(message.lease_id, caller)
        return await self._send(m.ReleaseAsked(lease.id, caller), lease, caller)

    async def stop(self, message: leases_pb2.StopRequest, caller: Caller) -> leases_pb2.Lease:
        lease = await self._find(message.lease_id, caller)
        usual = self._loop.state.rules.stop_grace_seconds
        grace = message.grace_seconds if message.HasField("grace_seconds") else usual
        if not 0 <= grace <= 3600:  # noqa: PLR2004 - an hour, as the message says
            raise RequestError(f"a grace of {grace} s is not possible", hint="give 0 to 3600 seconds")
        return await self._send(m.StopAsked(lease.id, caller, grace), lease, caller)

    async def resize(self, message: leases_pb2.ResizeRequest, caller: Caller) -> leases_pb2.ResizeAnswer:
        """Give a lease another size on the same GPUs; the answer explains when each part takes effect."""
        lease = await self._find(message.lease_id, caller)
        size = read_size(gpu=message.gpu, gpu_memory=message.gpu_memory, gpu_compute=message.gpu_compute)
        before = self._again(lease)
        after = await self._loop.send(m.ResizeAsked(lease.id, caller, size)) or before
        effects = resize_effects(before, after, self._loop.state, self._reconciler.facts)
        return leases_pb2.ResizeAnswer(lease=self._view(after, caller), effects=effects)

    async def hold(self, message: leases_pb2.HoldRequest, caller: Caller) -> leases_pb2.Lease:
        lease = await self._find(message.lease_id, caller)
        return await self._send(m.HoldAsked(lease.id, caller, message.held), lease, caller)

    async def extend(self, message: leases_pb2.ExtendRequest, caller: Caller) -> leases_pb2.Lease:
        lease = await self._find(message.lease_id, caller)
        event = m.ExtendAsked(lease.id, caller, parse_duration(message.time))
        return await self._send(event, lease, caller)

    async def set_priority(self, message: leases_pb2.PriorityRequest, caller: Caller) -> leases_pb2.Lease:
        lease = await self._find(message.lease_id, caller)
        event = m.PriorityAsked(lease.id, caller, message.priority)
        return await self._send(event, lease, caller)

    async def pause(self, message: leases_pb2.LeaseRef, caller: Caller) -> leases_pb2.Lease:
        lease = await self._find(message.lease_id, caller)
        return await self._send(m.PauseAsked(lease.id, caller), lease, caller)

    async def resume(self, message: leases_pb2.LeaseRef, caller: Caller) -> leases_pb2.Lease:
        lease = await self._find(message.lease_id, caller)
        return await self._send(m.ResumeAsked(lease.id, caller), lease, caller)

    async def preempt(self, message: leases_pb2.LeaseRef, caller: Caller) -> leases_pb2.Lease:
        lease = await self._find(message.lease_id, caller)
        return await self._send(m.PreemptAsked(lease.id, caller), lease, caller)

    async def get(self, message: leases_pb2.LeaseRef, caller: Caller) -> leases_pb2.Lease:
        return self._view(await self._find(message.lease_id, caller), caller)

    async def list_leases(
        self, message: leases_pb2.ListLeasesRequest, caller: Caller
    ) -> leases_pb2.ListLeasesResponse:
        """List live leases in the order of their requests; ``ended`` adds ended ones, the newest first."""
        page = await list_leases(message, self._loop.state, self._journal)
        return leases_pb2.ListLeasesResponse(
            leases=[self._view(lease, caller) for lease in page.leases],
            unmanaged=self.views.strangers(self._sampler.newest),
            simulated=self._simulated,
            more=page.more,
            next_page_token=page.next_token,
        )

    async def explain(self, message: leases_pb2.LeaseRef, caller: Caller) -> leases_pb2.Explanation:
        """Explain why a lease waits, what will become of it, and its story.

        Only the owner and trusted callers get the story.
        """
        lease = await self._find(message.lease_id, caller)
        may_read_story = caller.trusted or caller.uid == lease.owner_uid
        entries = await self._journal.story(lease.id) if may_read_story else ()
        return leases_pb2.Explanation(
            lease=self._view(lease, caller),
            story=self.views.story(entries),
            refusals=self.views.refusals(lease),
            fits_now=self.views.nearest(lease),
            kept=self.views.kept(lease),
            gives_way=when_others_need_it(lease, self._loop.state, self._loop.now()),
        )

    async def _send(self, event: m.Event, lease: Lease, caller: Caller) -> leases_pb2.Lease:
        """Return the view of the lease after the event."""
        return self._view(await self._loop.send(event) or lease, caller)

    def _view(self, lease: Lease, caller: Caller) -> leases_pb2.Lease:
        return self.views.lease(lease, caller, self._sampler.newest)

    def _again(self, lease: Lease) -> Lease:
        """Return the lease as it is now."""
        state = self._loop.state
        return state.leases.get(lease.id) or state.ended.get(lease.id) or lease

    async def _find(self, reference: str, caller: Caller) -> Lease:
        """Find a lease by its id, a container's name or the beginning of a container's id.

        A container's name or id finds only the leases that the caller may see by it. Raises NotFound.
        """
        if not reference:
            raise RequestError("no lease is named", hint="`gpushare ps` and `gpushare queue` list them")
        state = self._loop.state
        lease = state.leases.get(LeaseId(reference)) or state.ended.get(LeaseId(reference))
        if lease is None:
            lease = _by_container(reference, _seen_by(caller, state)) or await self._journal.lease(
                LeaseId(reference)
            )
        if lease is None:
            raise NotFound(
                f"there is no lease {shown(reference)}", hint="`gpushare ps` and `gpushare queue` list them"
            )
        return lease

    # --- GPUs and the node -----------------------------------------------------------------------------

    async def list_gpus(self, _: gpus_pb2.ListGpusRequest, __: Caller) -> gpus_pb2.ListGpusResponse:
        return gpus_pb2.ListGpusResponse(
            gpus=self.views.gpus(self._sampler.newest),
            simulated=self._simulated,
            node=self._node_name,
            troubles=self._troubles.all(),
        )

    async def status(self, _: node_pb2.NodeStatusRequest, caller: Caller) -> node_pb2.NodeStatus:
        return node_pb2.NodeStatus(
            version=gpushared.__version__,
            node=self._node_name,
            simulated=self._simulated,
            engine=self._engine_status(),
            troubles=self._troubles.all(),
            started_at=self.views.day(self._started_at),
            caller_trusted=caller.trusted,
            caller_uid=caller.uid,
        )

    def _engine_status(self) -> node_pb2.EngineStatus:
        facts = self._reconciler.facts
        if facts is None:
            return node_pb2.EngineStatus(trouble=self._troubles.of("engine") or "it has not answered yet")
        return node_pb2.EngineStatus(
            version=facts.version,
            api_version=facts.api_version,
            gpu_mechanism=facts.gpu_mechanism,
            lease_devices=facts.lease_devices,
            cgroup_version=facts.cgroup_version,
            trouble=self._troubles.of("engine"),
        )

    async def list_presets(self, _: node_pb2.PresetsRequest, __: Caller) -> node_pb2.PresetsResponse:
        return node_pb2.PresetsResponse(
            presets=[self._preset(name, ask) for name, ask in sorted(self.presets.items())]
        )

    async def doctor(self, _: node_pb2.DoctorRequest, caller: Caller) -> node_pb2.DoctorReport:
        """Run all checks of the doctor; a trusted caller gets the settings too."""
        return await self._examination.report(caller)

    def _preset(self, name: str, ask: RequestSpec) -> node_pb2.Preset:
        preset = node_pb2.Preset(
            name=name,
            gpu=ask.gpu,
            gpu_memory=ask.gpu_memory,
            gpu_compute=ask.gpu_compute,
            time=ask.time,
            description=self.preset_texts.get(name, ""),
            priority=ask.priority,
            project=ask.project,
            model=ask.models,
        )
        setattr(preset, "class", ask.lease_class)
        return preset


def is_over(view: leases_pb2.Lease) -> bool:
    """Return True if the lease has left the queue, so that no client needs to wait for it any more."""
    return view.state != "queued"


def _seen_by(caller: Caller, state: NodeState) -> list[Lease]:
    """Return the leases whose containers the caller may know: ended ones first, the newest last."""
    leases = (*state.ended.values(), *state.leases.values())
    return [lease for lease in leases if caller.trusted or lease.owner_uid == caller.uid]


def _by_container(reference: str, leases: list[Lease]) -> Lease | None:
    """Find a lease by its container's name, its planned name or the beginning of its id.

    An ended lease counts only if no other lease has the name, and then the newest one: a name may be given
    again once its container is gone. Raises RequestError if several leases match.
    """
    named = [lease for lease in leases if lease.container_name == reference]
    live = [lease for lease in named if not isinstance(lease.state, Ended)]
    if not named and len(reference) >= SHORTEST_CONTAINER_ID:
        live = [lease for lease in leases if (lease.container or "").startswith(reference)]
    if len(live) > 1:
        candidates = ", ".join(
            f"{lease.id} ({state_name(lease.state)}, {lease.owner_name})" for lease in live[:5]
        )
        raise RequestError(f"{shown(reference)} means {len(live)} leases", hint=f"say which: {candidates}")
    return next(reversed(live or named), None)


class Drains:
    """Serve the calls ``Gpus.Drain`` and ``Gpus.Undrain``."""

    def __init__(self, loop: Loop, sampler: Sampler, views: Views) -> None:
        self._loop = loop
        self._sampler = sampler
        self._views = views

    async def drain(self, message: gpus_pb2.DrainRequest, caller: Caller) -> gpus_pb2.DrainAnswer:
        return await self._ask(message.gpu, message.reason, caller)

    async def undrain(self, message: gpus_pb2.UndrainRequest, caller: Caller) -> gpus_pb2.DrainAnswer:
        return await self._ask(message.gpu, None, caller)

    async def _ask(self, name: str, reason: str | None, caller: Caller) -> gpus_pb2.DrainAnswer:
        """Drain or undrain the GPUs one after the other; a refusal does not undo the ones before."""
        gpus = find_gpus(name, self._loop.state)
        for gpu in gpus:
            await self._loop.send(GpuDrainAsked(gpu, caller, reason))
        views = self._views.gpus(self._sampler.newest)
        return gpus_pb2.DrainAnswer(gpus=[view for view in views if view.uuid in gpus])


def find_gpus(name: str, state: NodeState) -> list[GpuId]:
    """Find GPUs by index (with its MIG instances), by ``0:1`` (one instance), by UUID or by ``all``.

    A drained GPU that is not there now is found too. Raises RequestError for an empty name, NotFound, and
    Unavailable while no GPU is known.
    """
    if not name:
        raise RequestError("no GPU is named", hint="give its index, its UUID or `all`")
    gpus = [*state.gpus, *(gpu for gpu in state.drained if gpu not in state.gpus)]
    if name == ALL:
        check_any(gpus)
        return gpus
    by_index = [gpu.id for gpu in state.gpus.values() if name in (str(gpu.index), gpu.label)]
    matches = by_index or [gpu for gpu in gpus if gpu == name]
    if not matches:
        check_any(state.gpus)
        raise NotFound(f"there is no GPU {shown(name)}", hint="`gpushare gpus -o wide` lists them")
    return matches
