"""List the leases and the GPUs of all nodes as they are now, by asking the nodes.

The answers stay for a moment, so that many callers cost a node one question. A node that does not answer is
shown as it was when it last did, corrected by its later heartbeats, and a sentence says so.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Generic, TypeVar

from google.protobuf.message import DecodeError

from gpushared.api.v1 import gpus_pb2, jobs_pb2, leases_pb2
from gpushared.config.history_settings import Others
from gpushared.domain.jobs.coordinator_state import PoolState
from gpushared.domain.jobs.job import Job, NodeName, Owner, Queued
from gpushared.domain.jobs.liveness import presence
from gpushared.domain.jobs.member import Presence
from gpushared.domain.model.errors import GpushareError
from gpushared.domain.model.units import format_duration
from gpushared.jobs.coordinator_loop import PoolLoop
from gpushared.jobs.job_views import JobViews, has_simulated, nodes_of
from gpushared.pool.coordinator.history_gatherer import LeaseOfNode, LeaseOwners, QuestionPort
from gpushared.pool.link import codec

_Listing = TypeVar("_Listing", leases_pb2.ListLeasesResponse, gpus_pb2.ListGpusResponse)

ANSWER_SECONDS = 3.0
FRESH_SECONDS = 2.0
MAX_BODY_BYTES = 1 << 20
MAX_OF_NODE = 2000
"""Drop an answer with more leases, processes or GPUs, or with more bytes: 2000 leases take less."""
MAX_LEASES = 5000
"""List at most this many leases; ``--user`` finds the others."""
MAX_WAITING = 200
"""List at most this many waiting jobs of the pool, because each is explained."""


@dataclass(slots=True)
class _NodeAnswer(Generic[_Listing]):
    """Hold a node's newest answer under the pool's names, and when it came (``time.monotonic``).

    ``heard_at`` is the time of the newest heartbeat before it, by the coordinator's clock.
    """

    message: _Listing
    at: float
    heard_at: float | None
    is_corrected: bool = False
    """Leases were left out that the node does not hold any more."""

    @property
    def age_seconds(self) -> float:
        return time.monotonic() - self.at

    @property
    def is_old(self) -> bool:
        return self.age_seconds > FRESH_SECONDS + ANSWER_SECONDS


@dataclass(slots=True)
class _Kind(Generic[_Listing]):
    """Hold the nodes' newest answers to questions of one kind."""

    question: str
    message: type[_Listing]
    answers: dict[NodeName, _NodeAnswer[_Listing]] = field(default_factory=dict)
    asked_at: float = -FRESH_SECONDS
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


class NodeListings:
    """Answer ``Leases/List`` and ``Gpus/List`` for the pool."""

    def __init__(
        self, link: QuestionPort, loop: PoolLoop, owners: LeaseOwners, others: Callable[[], Others]
    ) -> None:
        """``others`` says what users see of others; administrators see all."""
        self._link = link
        self._loop = loop
        self._owners = owners
        self._others = others
        self._views = JobViews(lambda: loop.state, loop.now, loop.snapshot)
        self._leases = _Kind(codec.LEASES, leases_pb2.ListLeasesResponse)
        self._gpus = _Kind(codec.GPUS, gpus_pb2.ListGpusResponse)

    # --- leases ------------------------------------------------------------------------------------------

    async def leases(
        self, message: leases_pb2.ListLeasesRequest, owner: Owner
    ) -> leases_pb2.ListLeasesResponse:
        """List the leases of all nodes, and the jobs that wait for one."""
        answer = leases_pb2.ListLeasesResponse(simulated=has_simulated(self._loop.state))
        await self._ask_all(self._leases)
        self._correct_leases()
        for listed in [kept.message for _, kept in sorted(self._leases.answers.items())]:
            for lease in listed.leases:
                if self._is_requested(lease, message, owner):
                    answer.leases.append(lease)
                    self._hide(answer.leases[-1], owner)
            if self._sees_others(owner):
                answer.unmanaged.extend(listed.unmanaged)
            await asyncio.sleep(0)  # the leases of many nodes must not hold up the loop
        queue = await asyncio.to_thread(_queue_of, self._loop.state)
        for lease in self._waiting_jobs(queue, owner):
            if self._is_requested(lease, message, owner):
                self._hide(lease, owner)
                answer.leases.append(lease)
        answer.notices.extend(self._notices(self._leases))
        if len(answer.leases) > MAX_LEASES:
            answer.notices.append(
                f"only {MAX_LEASES} of {len(answer.leases)} leases are shown: choose a --user"
            )
            del answer.leases[MAX_LEASES:]
        return answer

    def _is_requested(
        self, lease: leases_pb2.Lease, message: leases_pb2.ListLeasesRequest, owner: Owner
    ) -> bool:
        """Return True if the caller asked for the lease and may see it."""
        return (
            (lease.owner == owner.person or self._sees_others(owner))
            and message.user in {"", lease.owner}
            and (not message.states or lease.state in message.states)
        )

    def _hide(self, lease: leases_pb2.Lease, owner: Owner) -> None:
        """Hide what only the owner of the lease may see."""
        if lease.owner == owner.person or owner.admin:
            return
        lease.container_id = lease.container_name = lease.image = ""
        if not lease.node:
            lease.id = lease.waiting.text = ""  # the sentence may name other jobs
        lease.job_id, lease.job_pool, lease.job_attempt = "", "", 0
        lease.ClearField("after")

    def _sees_others(self, owner: Owner) -> bool:
        return owner.admin or self._others() is Others.LEASES

    def _waiting_jobs(self, queue: Sequence[Job], owner: Owner) -> Iterator[leases_pb2.Lease]:
        """Yield the jobs in the coordinator's queue that the caller may see, as waiting leases without a node."""
        seen = (
            (position, job)
            for position, job in enumerate(queue, start=1)
            if self._sees_others(owner) or job.spec.owner.person == owner.person
        )
        for position, job in islice(seen, MAX_WAITING):
            yield self._waiting_job(job, position, len(queue))

    def _waiting_job(self, job: Job, position: int, length: int) -> leases_pb2.Lease:
        view: jobs_pb2.Job = self._views.job(job)
        # A job that ran and gave way has waited since then.
        since = job.state.since if isinstance(job.state, Queued) and job.served_seconds else job.submitted_at
        why = self._views.why(job)
        lease = leases_pb2.Lease(
            id=job.id,
            job_id=job.id,
            state="queued",
            owner=job.spec.owner.person,
            asks=view.asks,
            project=view.project,
            image=view.image,
            container_name=view.name,
            created_at=view.submitted_at,
            since=self._views.day(since),
            priority=view.priority,
            held_by=job.held_by,
            waiting=leases_pb2.Waiting(
                position=position,
                queue_length=length,
                reason=why.code if why is not None else "",
                text=view.reason,
            ),
        )
        setattr(lease, "class", getattr(view, "class"))
        return lease

    # --- GPUs --------------------------------------------------------------------------------------------

    async def gpus(self, _: gpus_pb2.ListGpusRequest, __: Owner) -> gpus_pb2.ListGpusResponse:
        """List the GPUs of all nodes; of a node with no answer or only an old one, those of its last heartbeat."""
        await self._ask_all(self._gpus)
        state, now = self._loop.state, self._loop.now()
        answer = gpus_pb2.ListGpusResponse(simulated=has_simulated(state))
        for name in self._outdated(self._gpus):
            del self._gpus.answers[name]
        for node in nodes_of(state, now):
            kept = self._gpus.answers.get(NodeName(node.name))
            if kept is None:
                answer.gpus.extend(_reported(gpu, node) for gpu in node.gpus)
                continue
            answer.gpus.extend(kept.message.gpus)
            answer.troubles.extend(f"{node.name}: {trouble}" for trouble in kept.message.troubles)
        answer.notices.extend(self._notices(self._gpus))
        return answer

    # --- asking ------------------------------------------------------------------------------------------

    async def _ask_all(self, kind: _Kind[_Listing]) -> None:
        """Ask all nodes for their newest answers, unless that was done a moment ago."""
        async with kind.lock:
            if time.monotonic() - kind.asked_at >= FRESH_SECONDS:
                nodes = sorted(self._link.answering(kind.question))
                await asyncio.gather(*(self._ask(kind, node) for node in nodes))
                kind.asked_at = time.monotonic()
        members = self._loop.state.members
        kind.answers = {
            node: answer
            for node, answer in kind.answers.items()
            if (member := members.get(node)) is not None and member.forgotten_at is None
        }

    def _outdated(self, kind: _Kind[_Listing]) -> list[NodeName]:
        """Return the nodes whose answers are old, and that sent a heartbeat since."""
        members = self._loop.state.members
        return [
            node
            for node, answer in kind.answers.items()
            if answer.is_old and members[node].heard_at != answer.heard_at
        ]

    def _correct_leases(self) -> None:
        """Leave out leases of old answers that hold no GPU any more by a later heartbeat.

        Heartbeats do not tell the state of a new lease, so new ones are not added.
        """
        for node in self._outdated(self._leases):
            answer = self._leases.answers[node]
            holders = {str(holding.lease) for holding in self._loop.state.members[node].free.holdings}
            kept = [lease for lease in answer.message.leases if not lease.grants or lease.id in holders]
            if len(kept) < len(answer.message.leases):
                answer.message = leases_pb2.ListLeasesResponse(
                    leases=kept, unmanaged=answer.message.unmanaged
                )
                answer.is_corrected = True

    async def _ask(self, kind: _Kind[_Listing], node: NodeName) -> None:
        try:
            body = await self._link.ask(node, kind.question, b"", ANSWER_SECONDS)
        except GpushareError:
            return  # the node's earlier answer is shown with its age
        answer = await asyncio.to_thread(_parsed, kind.message, body)
        if answer is not None:
            await self._name(answer, node)
            member = self._loop.state.members.get(node)
            heard_at = None if member is None else member.heard_at
            kind.answers[node] = _NodeAnswer(answer, time.monotonic(), heard_at)

    async def _name(self, answer: _Listing, node: NodeName) -> None:
        """Put the pool's names into a node's answer."""
        if isinstance(answer, gpus_pb2.ListGpusResponse):
            for gpu in answer.gpus:
                gpu.node = node
            return
        for process in answer.unmanaged:
            process.node = node
        for lease in answer.leases:
            lease.node = node
            reported = LeaseOfNode(lease.owner, lease.project, lease.job_id, lease.job_attempt)
            named = await self._owners.named(node, reported)
            lease.owner, lease.project = named.owner, named.project
            if named.job is None:
                lease.job_id, lease.job_pool, lease.job_attempt = "", "", 0

    def _notices(self, kind: _Kind[_Listing]) -> Iterator[str]:
        """Yield a sentence for each node whose answer is old or missing."""
        answers, state = kind.answers, self._loop.state
        for name, member in sorted(state.members.items()):
            if member.forgotten_at is not None:
                continue
            kept = answers.get(name)
            if kept is None:
                # The words are the same for GPUs and leases: a page that lists both shows the sentence once.
                yield f"{name} {_why_unknown(state, name, self._loop.now())}: what it has is not shown in full"
            elif kept.is_old:
                age = format_duration(max(1, round(kept.age_seconds)))
                less = ", less the leases that have left its GPUs since" if kept.is_corrected else ""
                yield f"{name} does not answer: shown as it was {age} ago{less}"


def _queue_of(state: PoolState) -> list[Job]:
    """Return the waiting jobs in the order in which a pass looks at them, those that it passes over last.

    The order between projects changes with their use during a pass, so only what orders one project counts.
    """
    policy = state.policy

    def place(job: Job) -> tuple[int, int, int, int]:
        rules = policy.classes[job.spec.request.lease_class]
        if job.id in state.gangs.where:
            return 0, -(rules.priority + job.priority), 0, job.sequence
        passed_over = job.id not in state.waiting.where
        return 1 + passed_over, -(rules.priority + job.priority), rules.order, job.sequence

    return sorted((job for job in state.jobs.values() if isinstance(job.state, Queued)), key=place)


def _why_unknown(state: PoolState, name: NodeName, now: float) -> str:
    if presence(state.members[name], state, now) in {Presence.NEVER, Presence.UNKNOWN, Presence.SUSPECT}:
        return "is not heard of"
    return "does not answer"


def _parsed(kind: type[_Listing], body: bytes) -> _Listing | None:
    """Return a node's answer, None if it is not one or has more than a node has."""
    if len(body) > MAX_BODY_BYTES:
        return None
    try:
        answer = kind.FromString(body)
    except DecodeError:
        return None
    if isinstance(answer, gpus_pb2.ListGpusResponse):
        counts = (len(answer.gpus), len(answer.troubles))
    else:
        counts = (len(answer.leases), len(answer.unmanaged))
    return answer if max(counts) <= MAX_OF_NODE else None


def _reported(gpu: jobs_pb2.PoolGpu, node: jobs_pb2.PoolNode) -> gpus_pb2.Gpu:
    """Return what the heartbeat tells of a GPU."""
    return gpus_pb2.Gpu(
        node=node.name,
        uuid=gpu.id,
        index=gpu.index,
        label=str(gpu.index),
        name=gpu.name,
        mode=node.presence if node.presence != Presence.READY else "",
        memory_total_bytes=gpu.memory_bytes,
        memory_free_bytes=gpu.free_memory_bytes,
        compute_free_permille=gpu.free_compute_permille,
        leases=gpu.leases,
        trouble=gpu.trouble,
    )
