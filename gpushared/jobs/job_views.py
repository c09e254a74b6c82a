"""Show jobs and nodes to users: turn the coordinator's records into messages of the API."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable

from gpushared.api.v1 import jobs_pb2
from gpushared.domain.jobs.attempt_history import span
from gpushared.domain.jobs.cluster_snapshot import ClusterSnapshot
from gpushared.domain.jobs.coordinator_state import PoolState, is_tried_last
from gpushared.domain.jobs.job import (
    HERE,
    OUTCOME_WORDS,
    AttemptState,
    Cancelling,
    Ended,
    Job,
    NodeName,
    Part,
    Placing,
    Queued,
    Running,
    Try,
    exit_code_of,
    outcome_word,
)
from gpushared.domain.jobs.liveness import presence, silent_since
from gpushared.domain.jobs.member import HeartbeatReport, Inventory, Member, Presence
from gpushared.domain.model.gpu import WHOLE_PERMILLE, Gpu, GpuId
from gpushared.domain.model.request_spec import describe
from gpushared.domain.model.units import format_duration
from gpushared.jobs.job_reasons import Why, is_silent, quiet_since, why, why_in_full

OVER = frozenset(OUTCOME_WORDS.values())
"""These words name the states of finished jobs."""

HELD = "held"
"""This word names the state of a held job, and the reason why it waits."""

WhyOf = Callable[[Job], Why | None]


class JobViews:
    """Render jobs from the newest state.

    ``here`` is the node's name for its own jobs. ``better_reason`` returns why a job waits if it knows more
    than the coordinator's rules, else None. ``project_of`` returns the project to which a job counts.
    """

    def __init__(
        self,
        state: Callable[[], PoolState],
        now: Callable[[], float],
        snapshot: ClusterSnapshot | None = None,
        *,
        here: str = "",
        better_reason: WhyOf = lambda _: None,
        project_of: Callable[[Job], str] = lambda job: job.project,
    ) -> None:
        self._state = state
        self._now = now
        self._snapshot = snapshot
        self._here = here
        self._better_reason = better_reason
        self._project_of = project_of

    def job(self, job: Job) -> jobs_pb2.Job:
        """Return the view of one job; the service checks who may see it."""
        view = jobs_pb2.Job(
            id=job.id,
            state=self._state_word(job),
            name=job.spec.name or default_name(job.id),
            image=job.spec.image,
            owner=job.spec.owner.principal,
            project=self._project_of(job),
            asks=_request_text(job),
            submitted_at=self.day(job.asked_at),
            attempt=job.attempts,
            parts=[self._part(part) for part in job.parts],
            array_id=job.spec.array or "",
            pool=not self._here,
            interactive=job.spec.interactive,
            priority=job.priority,
            tries=[self._try(tried) for tried in job.tries],
        )
        setattr(view, "class", job.spec.request.lease_class)
        if job.spec.index is not None:
            view.array_index = job.spec.index
        self._add_times(view, job)
        self._add_reason(view, job)
        view.token = token_of(view)
        return view

    def why(self, job: Job) -> Why | None:
        """Return why the job does not run, or None if it runs or succeeded."""
        return self._better_reason(job) or why(job, self._state(), self._now(), self._snapshot)

    def why_in_full(self, job: Job) -> Why | None:
        """Explain one job alone, which may take longer."""
        return self._better_reason(job) or why_in_full(job, self._state(), self._now(), self._snapshot)

    def story(self, job: Job) -> list[jobs_pb2.JobStoryEntry]:
        """Return the entries of the job's story."""
        return [jobs_pb2.JobStoryEntry(at=self.day(entry.at), text=entry.text) for entry in job.story]

    def day(self, at: float | None) -> float:
        """Return a moment as epoch seconds; 0 for None, as messages have it."""
        return self._state().day(at) if at else 0.0

    def name_of(self, node: NodeName) -> str:
        return self._here if node == HERE else node

    # --- parts of a view --------------------------------------------------------------------------------

    def _state_word(self, job: Job) -> str:
        match job.state:
            case Queued():
                return HELD if job.held_by else "queued"
            case Placing(parts=parts):
                if not any(part.state is AttemptState.WAITING for part in parts):
                    return "placing"
                reason = self._better_reason(job)
                return HELD if reason is not None and reason.code == HELD else "queued"
            case Running(parts=parts):
                if any(is_silent(part, self._state(), self._now()) for part in parts):
                    return "unknown"
                return "paused" if all(part.state is AttemptState.PAUSED for part in parts) else "running"
            case Cancelling():
                return "cancelling"
            case Ended(outcome=outcome):
                return outcome_word(outcome)

    def _part(self, part: Part) -> jobs_pb2.JobPart:
        view = jobs_pb2.JobPart(
            node=self.name_of(part.node),
            state=part.state or "",
            lease_id=part.lease or "",
            rank=part.rank,
            silent_since=self.day(quiet_since(part.node, self._state(), self._now())),
        )
        if part.ending is not None:
            view.reason = part.ending.reason
            if part.ending.exit_code is not None:
                view.exit_code = part.ending.exit_code
        return view

    def _try(self, tried: Try) -> jobs_pb2.JobTry:
        view = jobs_pb2.JobTry(
            attempt=tried.number, started_at=self.day(tried.started_at), ended_at=self.day(tried.ended_at)
        )
        for part in tried.parts:
            part_view = view.parts.add(
                node=self.name_of(part.node),
                state=AttemptState.ENDED,
                lease_id=part.lease or "",
                rank=part.rank,
                reason=part.reason,
            )
            if part.exit_code is not None:
                part_view.exit_code = part.exit_code
        return view

    def _add_times(self, view: jobs_pb2.Job, job: Job) -> None:
        began, over = span(job.parts)
        if isinstance(job.state, Running):
            view.started_at = self.day(began or job.state.since)
        elif isinstance(job.state, Cancelling | Ended):
            view.started_at = self.day(began)
        if isinstance(job.state, Ended):
            view.ended_at = self.day(over or job.state.at)
            if (code := exit_code_of(job.state.outcome)) is not None:
                view.exit_code = code

    def _add_reason(self, view: jobs_pb2.Job, job: Job) -> None:
        reason = self.why(job)
        if reason is not None:
            view.reason, view.hint, view.position = reason.sentence, reason.hint, reason.position


def default_name(job: str) -> str:
    """Return the name of a job's container if the user gave none."""
    return f"job-{job}"


def token_of(view: jobs_pb2.Job) -> str:
    """Return a token that changes whenever the view changes."""
    return hashlib.sha256(view.SerializeToString(deterministic=True)).hexdigest()[:16]


def _request_text(job: Job) -> str:
    text = describe(job.spec.request)
    if job.spec.span:
        return f"{text} over several nodes"
    return text if job.spec.nodes == 1 else f"{job.spec.nodes} nodes x {text}"


def nodes_of(state: PoolState, now: float) -> list[jobs_pb2.PoolNode]:
    """Return all members that are enrolled and not forgotten, by name."""
    members = sorted(state.members.values(), key=lambda member: member.name)
    return [_node(member, state, now) for member in members if member.forgotten_at is None]


def lone_node(
    name: str, inventory: Inventory, free: HeartbeatReport, own: PoolState, *, heard_at: float
) -> jobs_pb2.PoolNode:
    """Return the view of a node in no pool. ``own`` holds its own jobs; ``heard_at`` is the time of day."""
    view = jobs_pb2.PoolNode(
        name=name,
        presence=Presence.READY,
        heard_at=heard_at,
        waiting=free.waiting,
        running=_running(HERE, own),
    )
    _add_inventory(view, inventory, Member(NodeName(name), enrolled_at=0.0, free=free))
    return view


def has_simulated(state: PoolState) -> bool:
    """Return True if a node of the pool has simulated GPUs."""
    inventories = (member.inventory for member in state.members.values())
    return any(inventory is not None and inventory.simulated for inventory in inventories)


def notices_of(state: PoolState, now: float) -> list[str]:
    """Return notices about nodes that refuse jobs although they reported room for them."""
    return [
        _rest_of(state.members[name], rest.until, now)
        for name, rest in sorted(state.resting.items())
        if is_tried_last(name, state, now)
    ]


def _rest_of(member: Member, until: float, now: float) -> str:
    if now < until:
        return (
            f"{member.name} refused {member.refusals} jobs in a row that it was said to have room for; for "
            f"{format_duration(max(1, round(until - now)))} it is tried last"
        )
    return (
        f"{member.name} keeps room for its own queue and refused {member.refusals} jobs in a row; while "
        "others wait there it is tried last"
    )


def _node(member: Member, state: PoolState, now: float) -> jobs_pb2.PoolNode:
    since = silent_since(member, state, now)
    view = jobs_pb2.PoolNode(
        name=member.name,
        presence=presence(member, state, now),
        heard_at=state.day(member.heard_at) if member.heard_at else 0.0,
        silent_since=state.day(since) if since else 0.0,
        drain_reason=member.drain_reason,
        drained_by=member.drained_by,
        waiting=member.free.waiting,
        running=_running(member.name, state),
        enrolled_at=state.day(member.enrolled_at),
    )
    if member.inventory is not None:
        _add_inventory(view, member.inventory, member)
    return view


def _running(node: NodeName, state: PoolState) -> int:
    return sum(isinstance(state.jobs[name].state, Running) for name in state.by_node.get(node) or ())


def _add_inventory(view: jobs_pb2.PoolNode, inventory: Inventory, member: Member) -> None:
    view.version, view.address, view.simulated = inventory.version, inventory.address, inventory.simulated
    view.gpus.extend(_gpus(inventory.gpus, member))


def _gpus(gpus: Iterable[Gpu], member: Member) -> list[jobs_pb2.PoolGpu]:
    """Return the GPUs of a node with the free capacity that the node reported last."""
    troubles = dict(member.free.troubles)
    stray: dict[GpuId, int] = {}
    for gpu, size in member.free.stray_bytes:
        stray[gpu] = stray.get(gpu, 0) + size
    return [_gpu(gpu, member, stray.get(gpu.id, 0), troubles.get(gpu.id, "")) for gpu in gpus]


def _gpu(gpu: Gpu, member: Member, stray_bytes: int, trouble: str) -> jobs_pb2.PoolGpu:
    holdings = [each for each in member.free.holdings if any(grant.gpu == gpu.id for grant in each.grants)]
    grants = [grant for holding in holdings for grant in holding.grants if grant.gpu == gpu.id]
    whole = any(holding.exclusive for holding in holdings)
    free_bytes = gpu.leasable_bytes - stray_bytes - sum(grant.memory_bytes for grant in grants)
    free_permille = WHOLE_PERMILLE - sum(grant.compute_permille for grant in grants)
    return jobs_pb2.PoolGpu(
        id=gpu.id,
        index=gpu.index,
        name=gpu.name,
        memory_bytes=gpu.memory_total_bytes,
        free_memory_bytes=0 if whole else max(0, free_bytes),
        free_compute_permille=0 if whole else max(0, free_permille),
        trouble=gpu.trouble or trouble,
        leases=len(grants),
    )
