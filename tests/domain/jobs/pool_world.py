"""A pool to try rules on: the real machine, and nodes that say what a test lets them say."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any, TypeVar

from gpushared.domain.jobs import coordinator_events as m
from gpushared.domain.jobs.cluster_snapshot import ClusterSnapshot
from gpushared.domain.jobs.coordinator import handle, restore
from gpushared.domain.jobs.coordinator_rules import PoolRules
from gpushared.domain.jobs.coordinator_state import PoolState, PoolStep
from gpushared.domain.jobs.job import (
    AttemptState,
    Ended,
    Ending,
    EndKind,
    Job,
    JobSpec,
    JobState,
    NodeName,
    Owner,
    Part,
)
from gpushared.domain.jobs.member import HeartbeatReport, Holding, Inventory
from gpushared.domain.jobs.protocol import Order, Report
from gpushared.domain.model.gpu import MIB, Gpu, GpuId
from gpushared.domain.model.lease import AttemptKey, Grant, JobId, LeaseId
from gpushared.domain.model.request import Isolation, Request

START = 1_000_000.0
GIB = 1024 * MIB
ADA = Owner("ada@lab", "ada")
BOB = Owner("bob@lab", "bob")
ROOT = Owner("root@lab", "root", admin=True)
HALF = Request(compute_permille=500, memory_permille=500)
WHOLE = Request(compute_permille=1000, memory_permille=1000, isolation=Isolation.EXCLUSIVE)
RULES = PoolRules(plan_seconds=0.0)
J = JobId("j1")

StateT = TypeVar("StateT", bound=JobState)


def exited(code: int) -> Ending:
    return Ending(EndKind.EXITED, exit_code=code)


def gpus_of(node: str, count: int, name: str = "H100") -> tuple[Gpu, ...]:
    return tuple(Gpu(GpuId(f"{node}-{at}"), at, name, 80 * GIB, 80 * GIB) for at in range(count))


def held(node: str, at: int, *, permille: int = 1000, owner: str = "eve") -> Holding:
    """What a local user holds on a GPU of a node."""
    grant = Grant(GpuId(f"{node}-{at}"), 80 * GIB * permille // 1000, permille)
    return Holding(LeaseId(f"l-{at}"), (grant,), owner, owner, exclusive=permille == 1000)


class Pool:
    """``step`` is what the last event led to; ``now`` goes on by ``wait`` only."""

    def __init__(self, *nodes: str, rules: PoolRules = RULES, gpus: int = 1) -> None:
        self.now = START
        self.snapshot = ClusterSnapshot()
        self.state: PoolState = restore(rules, epoch=1, now=self.now)
        self.step = PoolStep(self.state)
        for node in nodes:
            self.do(m.NodeEnrolled(NodeName(node)))
            self.register(node, gpus=gpus)

    def do(self, event: m.PoolEvent) -> PoolStep:
        self.step = handle(self.state, event, self.now, self.snapshot)
        self.state = self.step.state
        return self.step

    def wait(self, seconds: float = 0.0) -> PoolStep:
        self.now += seconds
        return self.do(m.PoolTick())

    def begin_anew(self, *, from_copy: bool = False, epoch: int = 2, ahead_seconds: float = 0.0) -> None:
        """Restart with what was written."""
        jobs = (*self.state.jobs.values(), *self.state.ended.values())
        members = tuple(self.state.members.values())
        self.state = restore(
            self.state.rules,
            epoch=epoch,
            jobs=jobs,
            members=members,
            now=self.now,
            ahead_seconds=ahead_seconds,
            from_copy=from_copy,
        )

    def ask_all(self) -> None:
        """Begin anew with what may be an old copy of the store: the nodes are asked what they have."""
        self.begin_anew(from_copy=True, epoch=self.state.epoch + 1)
        for node in sorted(self.state.members):
            self.register(node)

    # --- nodes -----------------------------------------------------------------------------------------

    def register(
        self,
        node: str,
        *reports: Report,
        gpus: int = 1,
        model: str = "H100",
        seen_epoch: int = 0,
        seen_revision: int = 0,
        free: HeartbeatReport | None = None,
    ) -> PoolStep:
        name = NodeName(node)
        inventory = Inventory(gpus_of(node, gpus, model), address=f"{node}.lab")
        event = m.NodeRegistered(
            name, inventory, free or HeartbeatReport(), reports, seen_epoch, seen_revision
        )
        return self.do(event)

    def says(
        self,
        node: str,
        state: AttemptState,
        job: JobId = J,
        *,
        attempt: int | None = None,
        ending: Ending | None = None,
        revision: int | None = None,
    ) -> PoolStep:
        report = self.report(node, state, job, attempt=attempt, ending=ending, revision=revision)
        return self.do(m.AttemptReported(NodeName(node), report))

    def report(
        self,
        node: str,
        state: AttemptState,
        job: JobId = J,
        *,
        attempt: int | None = None,
        ending: Ending | None = None,
        revision: int | None = None,
        spec: JobSpec | None = None,
    ) -> Report:
        known = self.state.jobs.get(job)
        number = attempt or (known.attempts if known else 1)
        part = self.part(node, job) if revision is None else None
        newer = part.revision + 1 if part is not None else revision or 1
        request = spec.request if spec is not None else None
        return Report(AttemptKey(job, number), state, newer, LeaseId("l-7"), ending, spec, request)

    def part(self, node: str, job: JobId = J) -> Part | None:
        known = self.state.jobs.get(job)
        parts: Iterable[Part] = known.parts if known is not None else ()
        return next((part for part in parts if part.node == node), None)

    # --- users -----------------------------------------------------------------------------------------

    def submit(
        self, job: str = J, request: Request = HALF, owner: Owner = ADA, *, old: bool = False, **spec: Any
    ) -> PoolStep:
        held, priority, past = spec.pop("held", False), spec.pop("priority", 0), spec.pop("past", ())
        kept = spec.pop("kept_seconds", 0.0)
        asked = JobSpec(request, owner, **{"image": "x", **spec})
        return self.do(m.JobSubmitted(JobId(job), asked, held, priority, old, past, kept))

    def running(self, job: str = J, **spec: Any) -> str:
        """A job that runs; where."""
        self.submit(job, **spec)
        (part,) = self.job(job).parts
        self.says(part.node, AttemptState.RUNNING, JobId(job))
        return part.node

    # --- what came of it -------------------------------------------------------------------------------

    def job(self, job: str = J) -> Job:
        return self.state.find(JobId(job))

    def is_now(self, kind: type[StateT], job: str = J) -> StateT:
        """The job's state, which must be of this kind."""
        state = self.job(job).state
        assert isinstance(state, kind), f"{job} is {state}, story: {self.told(job)}"
        return state

    def ended(self, job: str = J) -> Any:
        return self.is_now(Ended, job).outcome

    def told(self, job: str = J) -> list[str]:
        return [entry.text for entry in self.job(job).story]

    def orders(self, kind: type[Order] | None = None) -> list[tuple[str, Order]]:
        """What the last event had said to whom."""
        sends = [one for one in self.step.instructions if isinstance(one, m.Send)]
        return [(one.node, one.order) for one in sends if kind is None or isinstance(one.order, kind)]

    def where(self, job: str = J) -> list[str]:
        return [part.node for part in self.job(job).parts]

    def heartbeat(self, node: str, **changes: Any) -> PoolStep:
        member = self.state.members[NodeName(node)]
        return self.do(m.NodeHeartbeat(NodeName(node), free=replace(member.free, **changes)))
