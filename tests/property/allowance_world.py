"""A pool with a limit: the real rules of a coordinator and of its nodes, and a network that loses and delays.

Messages of one stream keep their order, as they do in gRPC; a stream may break anywhere, which loses the rest
of both directions. Nodes and coordinator may start again with what they have on disk.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from gpushared.domain.jobs import coordinator
from gpushared.domain.jobs import coordinator_events as pool
from gpushared.domain.jobs.coordinator_rules import PoolRules
from gpushared.domain.jobs.job import (
    AttemptState,
    Ending,
    EndKind,
    Job,
    JobSpec,
    NodeName,
    Owner,
    Placing,
)
from gpushared.domain.jobs.member import HeartbeatReport, Inventory, Member, SentAllowance
from gpushared.domain.jobs.protocol import Report
from gpushared.domain.leases.events import AllowanceKnown, ReleaseAsked, RequestSubmitted
from gpushared.domain.leases.granting import decisions
from gpushared.domain.leases.node_machine import handle
from gpushared.domain.leases.node_state import NodeState
from gpushared.domain.model.errors import GpushareError
from gpushared.domain.model.lease import AttemptKey, JobId
from gpushared.domain.model.request import Caller, Request
from gpushared.domain.scheduling.allowance import Allowance
from gpushared.domain.scheduling.gpu_amounts import permille_of
from gpushared.domain.scheduling.projects import Policy, Project, Quota
from gpushared.pool.member.node_ports import free_of
from tests.domain.jobs.pool_world import gpus_of

PROJECT, POOL = "vision", "lab"
ADA = Caller(1000, 1000, "ada")
OWNER = Owner("ada@lab", "ada")
GPUS = 4
START = 1_000_000.0


def part(permille: int) -> Request:
    return Request(memory_permille=permille, compute_permille=permille)


def rules(limit: int) -> PoolRules:
    project = Project(PROJECT, users=frozenset({"ada"}), quota=Quota(limit=limit))
    policy = Policy(projects={PROJECT: project})
    return PoolRules(policy=policy, plan_seconds=0.0, common_realms=frozenset({"lab"}))


@dataclass
class Node:
    """``up`` and ``down`` are under way; ``told`` is its file."""

    name: NodeName
    state: NodeState
    up: deque[HeartbeatReport] = field(default_factory=deque)
    down: deque[SentAllowance] = field(default_factory=deque)
    told: Allowance | None = None
    linked: bool = False

    @property
    def holds(self) -> int:
        return sum(permille_of(lease.grants, self.state.gpus) for lease in self.state.holders())

    @property
    def waits(self) -> int:
        return len(self.state.waiting())

    def free(self) -> HeartbeatReport:
        found = {one.lease: one for one in decisions(self.state, START)}
        return free_of(self.state, POOL, found)


class World:
    """Every method is one thing that may happen; ``held`` is what all together hold, in truth."""

    def __init__(self, limit: int, nodes: int) -> None:
        self.now = START
        self.rules = rules(limit)
        self.limit = limit
        self.state = coordinator.restore(self.rules, epoch=1, now=START)
        self.nodes = [_node(f"n{number}") for number in range(nodes)]
        self._jobs = 0
        for node in self.nodes:
            self._do(pool.NodeEnrolled(node.name, (node.name, "lab")))
        for node in self.nodes:
            self.link(node)
        self.settle()

    @property
    def held(self) -> int:
        return sum(node.holds for node in self.nodes) + sum(map(_size, self._placed()))

    def settle(self) -> None:
        """All that is under way arrives, until nothing is said any more."""
        while any(node.up or node.down for node in self.nodes):
            for node in self.nodes:
                self.hear_down(node)
                self.hear_up(node)

    # --- users -----------------------------------------------------------------------------------------

    def ask(self, node: Node, permille: int) -> None:
        """Somebody asks the node itself, which gives without asking anybody."""
        self._on(node, RequestSubmitted(part(permille), ADA))

    def give_back(self, node: Node) -> None:
        if holders := node.state.holders():
            self._on(node, ReleaseAsked(holders[0].id, ADA))

    def give_up(self, node: Node) -> None:
        if waiting := node.state.waiting():
            self._on(node, ReleaseAsked(waiting[-1].id, ADA))

    def submit(self, permille: int) -> None:
        self._jobs += 1
        spec = JobSpec(part(permille), OWNER, image="busybox", body="{}")
        self._do(pool.JobSubmitted(JobId(f"j{self._jobs}"), spec))

    def end_job(self) -> None:
        if placed := self._placed():
            job = placed[0]
            assert isinstance(job.state, Placing)
            (only,) = job.parts
            ending = Ending(EndKind.EXITED, exit_code=0)
            key = AttemptKey(job.id, job.state.attempt)
            self._do(pool.AttemptReported(only.node, Report(key, AttemptState.ENDED, 9, ending=ending)))

    # --- the network -----------------------------------------------------------------------------------

    def link(self, node: Node) -> None:
        """A new stream: what was under way in the one before is lost."""
        self.cut(node)
        node.linked = True
        self._do(pool.NodeRegistered(node.name, Inventory(tuple(node.state.gpus.values())), node.free()))

    def cut(self, node: Node) -> None:
        node.up.clear()
        node.down.clear()
        if node.linked:
            node.linked = False
            self._do(pool.NodeDisconnected(node.name))

    def hear_up(self, node: Node) -> None:
        if node.up:
            self._do(pool.NodeHeartbeat(node.name, free=node.up.popleft()))

    def hear_down(self, node: Node, *, again: bool = False) -> None:
        """The node writes down what it is told before it goes by it. ``again``: it comes twice."""
        if not node.down:
            return
        told = node.down[0] if again else node.down.popleft()
        users = {name.partition("@")[0]: ones for name, ones in told.now.users.items()}
        allowance = Allowance(POOL, told.revision, told.now.shares, users)
        if node.told is None or node.told.revision < told.revision:
            node.told = allowance
        self._on(node, AllowanceKnown(allowance))

    # --- restarts --------------------------------------------------------------------------------------

    def restart_node(self, node: Node) -> None:
        self.cut(node)
        node.state = replace(node.state, allowance=node.told)

    def restart_pool(self) -> None:
        for node in self.nodes:
            node.up.clear()
            node.down.clear()
            node.linked = False
        jobs = (*self.state.jobs.values(), *self.state.ended.values())
        members: list[Member] = list(self.state.members.values())
        epoch = self.state.epoch + 1
        self.state = coordinator.restore(self.rules, epoch=epoch, jobs=jobs, members=members, now=self.now)

    def pause(self) -> None:
        self.now += 1.0
        self._do(pool.PoolTick())

    # --- how it works ----------------------------------------------------------------------------------

    def _placed(self) -> list[Job]:
        return [job for job in self.state.jobs.values() if isinstance(job.state, Placing)]

    def _do(self, event: pool.PoolEvent) -> None:
        step = coordinator.handle(self.state, event, self.now)
        self.state = step.state
        by_name: Mapping[NodeName, Node] = {node.name: node for node in self.nodes}
        for instruction in step.instructions:
            if isinstance(instruction, pool.TellAllowance) and by_name[instruction.node].linked:
                told = self.state.members[instruction.node].told
                assert told is not None, "that is what it is told of"
                by_name[instruction.node].down.append(told)

    def _on(self, node: Node, event: RequestSubmitted | ReleaseAsked | AllowanceKnown) -> None:
        before = node.free()
        try:
            node.state = handle(node.state, event, START).state
        except GpushareError:
            return
        if node.linked and node.free() != before:
            node.up.append(node.free())


def _node(name: str) -> Node:
    gpus = {gpu.id: gpu for gpu in gpus_of(name, GPUS)}
    return Node(NodeName(name), NodeState(gpus=gpus))


def _size(job: Job) -> int:
    return job.spec.request.compute_permille or 0
