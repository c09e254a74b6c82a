"""Runs the cases of this folder through the fleet; README.md explains their keys."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from gpushared.domain.model.gpu import Gpu, GpuId
from gpushared.domain.model.lease import Grant, LeaseId
from gpushared.domain.model.request import Request
from gpushared.domain.model.request_spec import RequestSpec, read_request
from gpushared.domain.model.units import parse_memory
from gpushared.domain.scheduling.placement.fleet import Fleet, NoPlace, Placement
from gpushared.domain.scheduling.placement.hosts import Host
from gpushared.domain.scheduling.placement.policies import PolicyName, Together
from gpushared.domain.scheduling.placement.request_shape import Need
from tests.cases.reading import cases_in

HERE = Path(__file__).parent
KEYS = {"name", "policy", "together", "hosts", "seen", "held", "asks", "gets", "then", "finally"}


@dataclass
class World:
    """A fleet and what it was asked for."""

    fleet: Fleet
    taken: int = 0
    held: list[LeaseId] = field(default_factory=list)

    def ask(self, text: str) -> str:
        request, _ = _read(text, self.held)
        answer = self.fleet.place(request)
        if isinstance(answer, NoPlace):
            return ", ".join(f"{reason} {count}" for reason, count in answer.refusals.items())
        self._take(request, answer)
        return _shown(answer)

    def hold(self, text: str) -> None:
        request, at = _read(text, self.held)
        host, _, places = at.partition("/")
        gpus = [GpuId(f"{host}/{place}") for place in places.split(",") if place]
        grants = []
        for gpu in gpus:
            capacity = self.fleet.capacity(gpu)
            memory, compute = Need.of(request).on(capacity.gpu)
            grants.append(Grant(gpu, capacity.free_bytes if request.wants_whole_gpus else memory, compute))
        self.held.append(self._take(request, Placement(host, tuple(grants))))

    def _take(self, request: Request, placement: Placement) -> LeaseId:
        lease = LeaseId(f"l-{self.taken}")
        self.taken += 1
        self.fleet.take(lease, request, placement)
        return lease


def _host(text: str) -> Host:
    name, _, rest = text.partition(": ")
    size, *words = rest.split()
    said = dict(word.split("=") for word in words)
    count, _, each = size.partition("x")
    memory = parse_memory(each)
    gpus = tuple(
        Gpu(
            GpuId(f"{name}/{at}"),
            at,
            said.get("model", "H100"),
            memory,
            memory,
            trouble="is lost" if said.get("trouble") == str(at) else None,
        )
        for at in range(int(count))
    )
    links = tuple(int(link) for link in said.get("links", "").split(",") if link)
    cpu = int(said["cpu"]) * 1000 if "cpu" in said else None
    return Host(name, gpus, cpu, parse_memory(said["ram"]) if "ram" in said else None, links)


def _read(text: str, held: list[LeaseId]) -> tuple[Request, str]:
    said: dict[str, str] = {}
    for word in text.split():
        key, _, value = word.rpartition("=")
        said[key or "gpu"] = value
    ask = RequestSpec(
        gpu="" if said.get("gpu") == "0" else said.get("gpu", ""),
        gpu_memory=said.get("memory", ""),
        gpu_compute=said.get("compute", ""),
    )
    request = Request(gpu_count=0) if said.get("gpu") == "0" else read_request(ask, {})
    return (
        replace(
            request,
            project=said.get("project", ""),
            gpus=tuple(GpuId(gpu) for gpu in said.get("on", "").split(",") if gpu),
            models=tuple(model for model in said.get("models", "").split(",") if model),
            host_cpu_milli=int(said["cpu"]) * 1000 if "cpu" in said else None,
            host_memory_bytes=parse_memory(said["ram"]) if "ram" in said else None,
            near=tuple(held[int(number)] for number in said.get("near", "").split(",") if number),
            away_from=tuple(held[int(number)] for number in said.get("away", "").split(",") if number),
        ),
        said.get("at", ""),
    )


def _shown(placement: Placement) -> str:
    places = sorted(int(grant.gpu.partition("/")[2]) for grant in placement.grants)
    return placement.host + ("/" + ",".join(map(str, places)) if places else "")


@pytest.mark.parametrize("case", cases_in(HERE))
def test_case(case: dict[str, Any]) -> None:
    assert case.keys() <= KEYS, "README.md has all keys"
    world = World(
        Fleet(
            map(_host, case["hosts"]),
            PolicyName(case.get("policy", "pack")),
            together=Together(case.get("together", "off")),
        )
    )
    for text in case.get("seen", []):
        times, _, what = text.partition(" of ")
        for _ in range(int(times)):
            world.fleet.see(_read(what, [])[0])
    for text in case.get("held", []):
        world.hold(text)
    assert [world.ask(text) for text in case["asks"]] == case["gets"]
    for text in case.get("then", []):
        _, number, verb = text.split()
        assert verb == "ends"
        world.fleet.give(world.held[int(number)])
    if "finally" in case:
        assert world.ask(case["asks"][-1]) == case["finally"]
