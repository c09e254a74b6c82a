"""What one user takes from all others: by many containers, by updates, by what the engine starts again."""

from __future__ import annotations

import json
import time

from tests.redteam.attack import Attack, Response, Threat, creates, plain_body
from tests.redteam.attacked_machine import ATTACKER, MEMORY_OF_A_USER, PIDS_OF_A_USER, AttackedMachine

AVAILABILITY = Threat.AVAILABILITY
TOGETHER = "more than all containers of a user may have here"
PATIENCE_SECONDS = 30.0
CONTAINERS = 4
STILL_LOOKS = 8
FORKS = "for i in $(seq 1000); do sleep 600 & done; wait"
"""The shell ends where it may start nothing more; what it started runs on."""
FILLS = "dd if=/dev/zero of=/dev/shm/x bs=1M count=100; sleep 600"


def started(machine: AttackedMachine, script: str, **host: object) -> str:
    body = plain_body(
        Cmd=["sh", "-c", f"({script}); sleep 600"],
        HostConfig={"NetworkMode": "none", "Init": True, "ShmSize": 1 << 30, **host},
    )
    own = machine.made(body)
    machine.ask("POST", f"/containers/{own}/start")
    return own


def used(machine: AttackedMachine, own: list[str], figure: str) -> int:
    """By the kernel's count for each of the containers, wherever they are."""
    total = 0
    for one in own:
        pid = machine.as_engine("GET", f"/containers/{one}/json")["State"]["Pid"]
        total += machine.figure_of(pid, figure) if pid else 0
    return total


def most_of(machine: AttackedMachine, own: list[str], figure: str, enough: int) -> int:
    """The most that was seen, until it is more than a user may have or nothing more comes."""
    most, deadline, still = 0, time.monotonic() + PATIENCE_SECONDS, 0
    while most < enough and still < STILL_LOOKS and time.monotonic() < deadline:
        now = used(machine, own, figure)
        still = 0 if now > most else still + 1
        most = max(most, now)
        time.sleep(0.2)
    return most


def many_that_fork(machine: AttackedMachine) -> Response:
    """Each of them has its own bound, whose sum is far above what a user may have."""
    own = [started(machine, FORKS) for _ in range(CONTAINERS)]
    most = most_of(machine, own, "pids", PIDS_OF_A_USER + 1)
    return Response(200) if PIDS_OF_A_USER // 2 < most <= PIDS_OF_A_USER else Response(0, f"{most} processes")


def many_that_fill(machine: AttackedMachine) -> Response:
    own = [started(machine, FILLS) for _ in range(CONTAINERS)]
    most = most_of(machine, own, "memory", MEMORY_OF_A_USER + 1)
    return Response(200) if MEMORY_OF_A_USER // 4 < most <= MEMORY_OF_A_USER else Response(0, f"{most} bytes")


def one_more_where_nothing_is_left(machine: AttackedMachine) -> Response:
    first = started(machine, FORKS.replace("1000", str(PIDS_OF_A_USER - 5)))
    most_of(machine, [first], "pids", PIDS_OF_A_USER - 4)
    own = machine.made(plain_body())
    return machine.ask("POST", f"/containers/{own}/start")


def raised_by_an_update(machine: AttackedMachine) -> Response:
    own = started(machine, "true")
    return machine.ask("POST", f"/containers/{own}/update", json.dumps({"Memory": 1 << 40}).encode())


def cpus_by_an_update(machine: AttackedMachine) -> Response:
    own = started(machine, "true")
    return machine.ask("POST", f"/containers/{own}/update", json.dumps({"NanoCpus": 64 * 10**9}).encode())


def cpus_by_a_shorter_period(machine: AttackedMachine) -> Response:
    """The engine keeps the quota: of a period a hundredth as long it is a hundred times the CPUs."""
    own = started(machine, "true", CpuQuota=100_000, CpuPeriod=100_000)
    return machine.ask("POST", f"/containers/{own}/update", json.dumps({"CpuPeriod": 1000}).encode())


def out_of_the_limits_by_a_restart(machine: AttackedMachine) -> Response:
    """What the engine starts again by itself, past everybody, is where it was."""
    body = plain_body(
        Cmd=["sh", "-c", "sleep 1"],
        HostConfig={"NetworkMode": "none", "RestartPolicy": {"Name": "always"}},
    )
    own = machine.made(body)
    machine.ask("POST", f"/containers/{own}/start")
    deadline = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline:
        found = machine.as_engine("GET", f"/containers/{own}/json")
        place = machine.cgroup_of(found["State"]["Pid"]) if found["RestartCount"] else ""
        if place:
            return Response(200) if machine.is_attackers_place(place) else Response(0, place)
        time.sleep(0.1)
    return Response(0, "it was not started again")


def out_of_the_limits_by_a_lease(machine: AttackedMachine) -> Response:
    """A container with a GPU is bounded with all others of its user."""
    lease = str(machine.daemon.request("0.1", uid=ATTACKER)["id"])
    body = plain_body(Cmd=["sleep", "600"], Labels={"gpushare.lease": lease})
    own = machine.made(body)
    machine.ask("POST", f"/containers/{own}/start")
    place = machine.cgroup_of(machine.as_engine("GET", f"/containers/{own}/json")["State"]["Pid"])
    return Response(200) if machine.is_attackers_place(place) else Response(0, place)


ATTACKS = [
    Attack(
        "all-processes-by-many-containers",
        AVAILABILITY,
        many_that_fork,
        harmless="the kernel counts the processes of all containers of a user together",
    ),
    Attack(
        "all-memory-by-many-containers",
        AVAILABILITY,
        many_that_fill,
        harmless="the kernel counts the memory of all containers of a user together",
    ),
    Attack(
        "one-more-container-where-nothing-is-left",
        AVAILABILITY,
        one_more_where_nothing_is_left,
        refused="processes that a user may have here",
    ),
    Attack(
        "more-memory-than-a-user-may-have",
        AVAILABILITY,
        creates({"Memory": 1 << 40}),
        refused=TOGETHER,
    ),
    Attack("more-memory-by-an-update", AVAILABILITY, raised_by_an_update, refused=TOGETHER),
    Attack(
        "more-cpus-by-an-update",
        AVAILABILITY,
        cpus_by_an_update,
        refused="more CPUs than all containers of a user may have here",
    ),
    Attack(
        "more-cpus-by-a-shorter-period",
        AVAILABILITY,
        cpus_by_a_shorter_period,
        refused="by its quota and period together",
    ),
    Attack(
        "out-of-ones-limits-by-a-restart-policy",
        AVAILABILITY,
        out_of_the_limits_by_a_restart,
        harmless="what the engine starts again is bounded as before",
    ),
    Attack(
        "out-of-ones-limits-by-a-lease",
        AVAILABILITY,
        out_of_the_limits_by_a_lease,
        harmless="a container with a lease is bounded with its user's others",
    ),
]
