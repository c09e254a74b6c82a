"""Runs the scheduling cases of this folder; README.md explains their keys."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from gpushared.domain.leases import events as m
from gpushared.domain.leases.explain import waiting
from gpushared.domain.leases.granting import decisions
from gpushared.domain.leases.node_machine import handle
from gpushared.domain.leases.node_rules import Rules
from gpushared.domain.leases.node_state import NodeState, Step
from gpushared.domain.model.errors import GpushareError
from gpushared.domain.model.gpu import MIB, Gpu, GpuId, MigInstance
from gpushared.domain.model.host import HostSize
from gpushared.domain.model.lease import ContainerId, Ended, LeaseId
from gpushared.domain.model.request import Caller, Request
from gpushared.domain.model.request_spec import RequestSpec, read_request
from gpushared.domain.model.units import format_share, parse_duration, parse_memory
from gpushared.domain.scheduling.placement.policies import PolicyName, Together
from tests.cases.reading import cases_in

HERE = Path(__file__).parent
ROOT = Caller(0, 0, "root", trusted=True)
KEYS = {
    *(
        "name",
        "host",
        "policy",
        "together",
        "gpus",
        "held",
        "asks",
        "gets",
        "says",
        "hints",
        "then",
        "finally",
    ),
}


@dataclass
class World:
    """A node and what was asked of it."""

    state: NodeState = field(default_factory=NodeState)
    now: float = 1_800_000_000.0
    held: list[LeaseId] = field(default_factory=list)
    asked: list[LeaseId | GpushareError] = field(default_factory=list)

    def send(self, event: m.Event) -> Step:
        step = handle(self.state, event, self.now)
        self.state = step.state
        return step

    def ask(self, text: str) -> LeaseId:
        request, owner = _request(text, self.held)
        step = self.send(m.RequestSubmitted(request, Caller(1000, 1000, owner)))
        assert step.lease is not None
        return step.lease.id

    def hold(self, text: str) -> None:
        lease = self.ask(text)
        assert self.state.leases[lease].grants, f"the case's own lease {text!r} does not fit"
        box = ContainerId(f"box-of-{lease}")
        self.send(m.ContainerCreated(lease, box, "box", "image"))
        self.send(m.ContainerSeen(box, m.Condition.RUNNING))
        self.held.append(lease)

    def sample(self, troubles: dict[GpuId, str], stray: dict[GpuId, int]) -> None:
        readable = frozenset(self.state.gpus) - troubles.keys()
        self.send(m.GpusSampled(self.now, frozenset(), stray, readable, troubles))

    def happen(self, text: str) -> None:
        match text.split():
            case ["held", number, "ends"]:
                self.end(self.held[int(number)])
            case ["ask", number, "ends"]:
                lease = self.asked[int(number)]
                assert isinstance(lease, str)
                self.end(lease)
            case ["ask", number, "is", "gone"]:
                lease = self.asked[int(number)]
                assert isinstance(lease, str)
                assert isinstance(self.state.find(lease).state, Ended)
            case [time, "pass"]:
                self.now += parse_duration(time)
                self.send(m.Tick())
            case _:
                self.happen_to_gpus(text)

    def happen_to_gpus(self, text: str) -> None:
        match text.split():
            case ["gpu", number, "breaks"]:
                self.sample({GpuId(f"GPU-{number}"): "is lost"}, dict(self.state.stray_bytes))
            case ["gpu", _, "heals"]:
                self.sample({}, dict(self.state.stray_bytes))
            case ["gpu", number, "is", "removed"]:
                left = [gpu for gpu in self.state.gpus.values() if gpu.id != f"GPU-{number}"]
                self.send(m.GpusSurveyed(tuple(left)))
            case ["gpu", number, "is", "drained" | "undrained" as what]:
                self.drain(GpuId(f"GPU-{number}"), "new fan" if what == "drained" else None)
            case ["gpu", number, "tells", "of", "xid", xid]:
                gpu, readable = GpuId(f"GPU-{number}"), frozenset(self.state.gpus)
                told = {gpu: (int(xid),)}
                self.send(m.GpusSampled(self.now, frozenset(), {}, readable, xids=told))
            case ["gpu", _, "is", "left", "alone"]:
                self.sample({}, {})
            case ["instance", label, "is", "made" | "destroyed" as what]:
                self.change_instance(label, made=what == "made")
            case _:
                raise ValueError(f"no such happening: {text}")

    def drain(self, gpu: GpuId, reason: str | None) -> None:
        self.send(m.GpuDrainAsked(gpu, ROOT, reason))

    def change_instance(self, label: str, *, made: bool) -> None:
        index, _, place = label.partition(":")
        others = [gpu for gpu in self.state.gpus.values() if gpu.label != label]
        new = [_instance(int(index), int(place), "10g")] if made else []
        self.send(m.GpusSurveyed((*others, *new)))

    def end(self, lease: LeaseId) -> None:
        self.send(m.StopAsked(lease, ROOT, 0))
        container = self.state.find(lease).container
        if container is not None:
            self.send(m.ContainerSeen(container, m.Condition.EXITED, exit_code=0))
            self.sample({}, dict(self.state.stray_bytes))
        assert isinstance(self.state.find(lease).state, Ended)

    def got(self, asked: LeaseId | GpushareError, expected: str) -> str:
        """What became of an ask, in as much detail as the case expects."""
        if isinstance(asked, GpushareError):
            return asked.message[: len(expected)]
        lease = self.state.find(asked)
        if lease.grants:
            return self.grants_in_words(asked, detailed="with" in expected)
        if isinstance(lease.state, Ended):
            return "over"
        return next(str(one.reason) for one in decisions(self.state, self.now) if one.lease == asked)

    def grants_in_words(self, lease: LeaseId, *, detailed: bool) -> str:
        grants = self.state.leases[lease].grants
        words = "on " + ",".join(sorted(grant.gpu.removeprefix("GPU-") for grant in grants))
        if detailed:
            words += f" with {grants[0].memory_bytes // MIB}m {format_share(grants[0].compute_permille)}"
        return words

    def sentence(self) -> str:
        decided = decisions(self.state, self.now)
        return waiting(decided[0], self.state, len(decided), self.now).text


@pytest.mark.parametrize("case", cases_in(HERE))
def test_case(case: dict[str, Any]) -> None:
    """The node grants, queues and refuses as the case says."""
    assert case.keys() <= KEYS
    world = _world(case)
    for text in case["asks"]:
        try:
            world.asked.append(world.ask(text))
        except GpushareError as error:
            world.asked.append(error)
    assert [world.got(*pair) for pair in zip(world.asked, case["gets"], strict=True)] == case["gets"]
    if "says" in case:
        assert world.sentence() == case["says"]
    if "hints" in case:
        assert [e.hint for e in world.asked if isinstance(e, GpushareError)][-1] == case["hints"]
    for text in case.get("then", ()):
        world.happen(text)
    later = case.get("finally", case["gets"])
    assert [world.got(*pair) for pair in zip(world.asked, later, strict=True)] == later


def test_every_case_has_a_name_of_its_own() -> None:
    """No case hides behind another's sentence, and there are as many as the rules deserve."""
    names = [param.values[0]["name"] for param in cases_in(HERE)]
    assert len(set(names)) == len(names) >= 40


def _world(case: dict[str, Any]) -> World:
    together = Together(case.get("together", "off"))
    world = World(_node(case.get("host", ""), PolicyName(case.get("policy", "pack")), together))
    gpus, troubles, stray, drains = [], {}, {}, {}
    for index, text in enumerate(case["gpus"]):
        size, _, rest = text.partition(" ")
        gpu = GpuId(f"GPU-{index}")
        leasable = parse_memory(size)
        key, _, value = rest.partition("=")
        split = key == "mig"
        exclusive = key == "exclusive_process"
        made = Gpu(gpu, index, "H100", leasable, 0 if split else leasable, split=split)
        made = replace(made, name=value if key == "name" else made.name)
        made = replace(made, link_group=int(value) if key == "link" else None)
        gpus.append(replace(made, exclusive_process=exclusive))
        if split:
            sizes = [each for each in value.split(",") if each]
            gpus += [_instance(index, place, each) for place, each in enumerate(sizes)]
        if key == "trouble":
            troubles[gpu] = value
        elif key == "stray":
            stray[gpu] = parse_memory(value)
        elif key == "drained":
            drains[gpu] = value
    world.send(m.GpusSurveyed(tuple(gpus)))
    for text in case.get("held", ()):
        world.hold(text)
    world.sample(troubles, stray)
    for gpu, reason in drains.items():
        world.drain(gpu, reason)
    return world


def _node(host: str, policy: PolicyName, together: Together) -> NodeState:
    """``host``: ``8 cpus 64g``, and ``uncounted`` where the configuration says so."""
    words = host.split()
    rules = Rules(placement=policy, together=together, counts_host="uncounted" not in words)
    size = HostSize(int(words[0]) * 1000, parse_memory(words[2])) if words else HostSize()
    return NodeState(rules=rules, host=size)


COMPUTE_SLICES = {"10g": 1, "20g": 2, "40g": 3, "80g": 7}
"""Of seven, as on an A100."""


def _instance(index: int, place: int, size: str) -> Gpu:
    """An instance of a GPU of 80 GiB; its profile is called by its size."""
    leasable = parse_memory(size)
    slices = leasable // parse_memory("10g")
    mig = MigInstance(place, size, slices * 1000 // 8, COMPUTE_SLICES[size] * 1000 // 7)
    return Gpu(
        GpuId(f"GPU-{index}:{place}"),
        index,
        "H100",
        leasable,
        leasable,
        parent=GpuId(f"GPU-{index}"),
        mig=mig,
    )


def _request(text: str, held: list[LeaseId]) -> tuple[Request, str]:
    said = {"gpu": "", "by": "user", "on": "", "cpus": "", "host": ""}
    names = {"memory": "gpu_memory", "compute": "gpu_compute", "model": "models", "away": "away_from"}
    for word in text.split():
        key, _, value = word.rpartition("=")
        said[names.get(key, key) or "gpu"] = value
    owner, where = said.pop("by"), said.pop("on")
    if cpus := said.pop("cpus"):
        said["host_cpu_milli"] = str(round(float(cpus) * 1000))
    if memory := said.pop("host"):
        said["host_memory_bytes"] = str(parse_memory(memory))
    for key in ("near", "away_from"):
        if said.get(key, "").isdigit():
            said[key] = held[int(said[key])]
    request = read_request(RequestSpec(**said), {})
    gpus = tuple(GpuId(f"GPU-{index}") for index in where.split(",") if index)
    return replace(request, gpus=gpus), owner
