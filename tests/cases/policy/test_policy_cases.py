"""Runs the cases of who goes next in this folder; README.md explains their keys."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from gpushared.domain.model.gpu import MIB, Gpu, GpuId
from gpushared.domain.model.lease import Grant, Idleness, Lease, LeaseId, Queued, Reserved
from gpushared.domain.model.request import Isolation, LeaseClass, Request
from gpushared.domain.model.units import format_share, parse_duration
from gpushared.domain.scheduling.host_capacity import HostCapacity
from gpushared.domain.scheduling.pass_records import (
    NEVER,
    PendingRequest,
    Plan,
    Preemption,
    PreemptionMode,
    RunningLease,
)
from gpushared.domain.scheduling.placement.free_capacity import free_capacities
from gpushared.domain.scheduling.plan import plan
from gpushared.domain.scheduling.projects import DEFAULT_CLASSES, GivesWay, Policy, Project, Quota
from gpushared.domain.scheduling.use_over_time import Interval, Usage
from tests.cases.reading import cases_in

HERE = Path(__file__).parent
NOW = 1_800_000_000.0
SIZE = 81_920 * MIB
KEYS = {
    "name", "hosts", "projects", "classes", "lossless", "used", "held", "asks", "turns", "gets", "says", "then",
    "again",
}  # fmt: skip


@dataclass
class World:
    """What a case starts with."""

    gpus: dict[str, list[Gpu]]
    policy: Policy
    usage: Usage
    holders: list[RunningLease]
    waiting: list[PendingRequest]
    turns: dict[str, float]

    def plan(self, under_way: tuple[Preemption, ...] = ()) -> Plan:
        capacities = free_capacities(
            [gpu for gpus in self.gpus.values() for gpu in gpus], [one.lease for one in self.holders], {}
        )
        places = HostCapacity(
            {host: {gpu.id: capacities[gpu.id] for gpu in gpus} for host, gpus in self.gpus.items()}
        )
        return plan(
            self.waiting,
            self.holders,
            places,
            self.usage,
            self.policy,
            NOW,
            under_way=under_way,
            turns=self.turns,
        )


@pytest.mark.parametrize("case", cases_in(HERE))
def test_case(case: dict[str, Any]) -> None:
    """One pass decides as the case says."""
    assert case.keys() <= KEYS
    world = _world(case)
    made = world.plan()
    assert [_got(one, made) for one in world.waiting] == case["gets"]
    if "says" in case:
        assert made.verdicts[world.waiting[-1].lease.id].text == case["says"]
    if "again" in case:
        assert made.look_again_at == NOW + parse_duration(case["again"])
    if "then" in case:
        ended, *gets = case["then"]
        leaving = {victim.lease for one in made.preemptions for victim in one.victims} | set(
            ended.split()[:-1]
        )
        if ended.endswith("still there"):
            world.holders = [replace(one, leaving=one.lease.id in leaving) for one in world.holders]
        else:
            world.holders = [one for one in world.holders if one.lease.id not in leaving]
        world.waiting = [one for one in world.waiting if one.lease.id not in made.grants]
        later = world.plan(made.preemptions)
        assert [_got(one, later) for one in world.waiting] == gets


def test_every_case_has_a_name_of_its_own() -> None:
    """No case hides behind another's sentence, and there are as many as the rules deserve."""
    names = [param.values[0]["name"] for param in cases_in(HERE)]
    assert len(set(names)) == len(names) >= 40


def _got(one: PendingRequest, made: Plan) -> str:
    lease = one.lease.id
    if lease in made.grants:
        text = "on " + ",".join(grant.gpu for grant in made.grants[lease])
        if one.lease.request.max_compute_permille is not None:
            text += f" with {format_share(made.grants[lease][0].compute_permille)}"
        return f"{text} behind {','.join(made.behind[lease])}" if lease in made.behind else text
    found = next((preemption for preemption in made.preemptions if preemption.winner == lease), None)
    if found is not None:
        return "from " + ",".join(sorted(victim.lease for victim in found.victims))
    return str(made.verdicts[lease].reason)


def _world(case: Mapping[str, Any]) -> World:
    gpus: dict[str, list[Gpu]] = {}
    for at, text in enumerate(case["hosts"]):
        count, _, model = text.partition(" ")
        first = sum(len(known) for known in gpus.values())
        gpus[f"host{at}"] = [
            Gpu(GpuId(str(first + n)), first + n, model or "H100", SIZE, SIZE) for n in range(int(count))
        ]
    policy = Policy(
        projects=_projects(case.get("projects", ())),
        classes=_classes(case.get("classes", ())),
        lossless_only=case.get("lossless", False),
    )
    used = [text.split() for text in case.get("used", ())]
    usage = Usage(policy.half_life_seconds).record(
        Interval(project, round(float(hours) * 1000), NOW - 3600, NOW) for project, hours in used
    )
    held = [_holder(at, text, policy) for at, text in enumerate(case.get("held", ()))]
    asks = [_candidate(at, text, policy) for at, text in enumerate(case["asks"])]
    turns = {text.split()[0]: NOW - parse_duration(text.split()[1]) for text in case.get("turns", ())}
    return World(gpus, policy, usage, held, asks, turns)


def _projects(texts: list[str]) -> dict[str, Project]:
    found: dict[str, Project] = {}
    for text in texts:
        name, *words = text.split()
        said = dict(word.split("=") for word in words)
        project = found.get(name, Project(name))
        quota = Quota(
            _permille(said.get("guaranteed", "0")),
            _permille(said["limit"]) if "limit" in said else None,
            _permille(said.get("fixed", "0")),
        )
        if "on" in said:
            found[name] = replace(project, models={**project.models, said["on"]: quota})
        else:
            found[name] = replace(project, quota=quota, weight=float(said.get("weight", "1")))
    return found


def _classes(texts: list[str]) -> dict[LeaseClass, Any]:
    found = dict(DEFAULT_CLASSES)
    for text in texts:
        name, what = text.split()
        rules = found[LeaseClass(name)]
        if what.startswith("long="):
            long_run_seconds = None if what == "long=never" else float(parse_duration(what[5:]))
            found[LeaseClass(name)] = replace(rules, long_run_seconds=long_run_seconds)
        elif what.startswith("least="):
            found[LeaseClass(name)] = replace(rules, min_run_seconds=float(parse_duration(what[6:])))
        else:
            found[LeaseClass(name)] = replace(rules, gives_way=GivesWay(what))
    return found


def _permille(text: str) -> int:
    return round(float(text) * 1000)


def _lease(name: str, at: int, words: list[str], said: Mapping[str, str]) -> Lease:
    _, lease_class, size, *_ = words
    size, _, most = size.partition("..")
    count, _, share = size.rpartition("x")
    permille = _permille(share)
    whole = permille == 1000
    most_permille = _permille(most) if most and not whole else None
    request = Request(
        gpu_count=int(count or 1),
        compute_permille=permille,
        memory_permille=permille,
        max_gpu_count=int(most) if most and whole else None,
        max_compute_permille=most_permille,
        max_memory_permille=most_permille,
        isolation=Isolation.EXCLUSIVE if whole else Isolation.SHARED,
        lease_class=LeaseClass(lease_class),
        time_limit_seconds=int(parse_duration(said["time"])) if "time" in said else None,
        models=(said["model"],) if "model" in said else (),
    )
    lease = LeaseId(name)
    return Lease(lease, at, request, 1000, words[0], NOW, Queued(NOW), lease)


def _said(words: list[str]) -> dict[str, str]:
    pairs = (word.partition("=") for word in words[3:])
    return {key: value for key, _, value in pairs}


def _holder(at: int, text: str, policy: Policy) -> RunningLease:
    words = text.split()
    said = _said(words)
    lease = _lease(f"h{at}", at, words, said)
    request = lease.request
    share = request.compute_permille or 0
    grants = tuple(Grant(GpuId(gpu), SIZE * share // 1000, share) for gpu in said["on"].split(","))
    started = NOW - parse_duration(said.get("for", "2h"))
    limit = request.time_limit_seconds
    lease = replace(
        lease, state=Reserved(grants, started, started), expires_at=None if limit is None else started + limit
    )
    lease = replace(lease, idleness=Idleness(is_preemptible="lowered" in said))
    lease = replace(lease, created_at=started - (parse_duration(said["waited"]) if "waited" in said else 0))
    steps = {"pause": PreemptionMode.PAUSE, "saves": PreemptionMode.NOTIFY}
    return RunningLease(
        lease,
        words[0],
        int(said.get("priority", policy.classes[request.lease_class].priority)),
        started,
        saved_at=NOW - parse_duration(said["saved"]) if "saved" in said else None,
        step=next((step for word, step in steps.items() if word in said), PreemptionMode.REQUEUE),
        leaving="leaving" in said,
        begun_anew=int(said.get("anew", "0")),
        behind=tuple(LeaseId(name) for name in said.get("behind", "").split(",") if name),
    )


def _candidate(at: int, text: str, policy: Policy) -> PendingRequest:
    words = text.split()
    said = _said(words)
    lease = _lease(f"a{at}", 100 + at, words, said)
    return PendingRequest(
        lease,
        words[0],
        int(said.get("priority", policy.classes[lease.request.lease_class].priority)),
        NOW - parse_duration(said.get("waited", "1m")),
        is_held="held" in said,
        begin_at=NOW + parse_duration(said["begin"]) if "begin" in said else None,
        after=tuple(LeaseId(name) for name in said.get("after", "").split(",") if name),
        served=float(parse_duration(said["served"]) if "served" in said else 0),
        yields="yields" in said,
    )


def test_a_pass_that_waits_for_nothing_but_events_says_so() -> None:
    """With nobody waiting, no time is named at which to look again."""
    assert _world({"hosts": ["1"], "asks": []}).plan().look_again_at == NEVER
