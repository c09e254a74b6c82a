"""The daemon's own API beside the gate: others' jobs, figures without end, and what the audit holds."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

from tests.bed import parts
from tests.node.grpc_client import ask
from tests.redteam.attack import Attack, How, Response, Threat, calls, encoded, plain_body
from tests.redteam.attacked_machine import ATTACKER, VICTIM, AttackedMachine

LEAK, LEASES, AVAILABILITY = Threat.LEAK, Threat.LEASES, Threat.AVAILABILITY
NO_JOB = "there is no job"
T = TypeVar("T")
FLOOD = 90


def packed(body: object) -> str:
    return base64.b64encode(json.dumps(body).encode()).decode()


@contextmanager
def roots_job(machine: AttackedMachine) -> Iterator[str]:
    """A job of root's that waits, with a secret among its variables."""
    secret = machine.canary("the environment of root's job")
    asked = {
        "image": parts.BUSYBOX_IMAGE,
        "create_body": packed(plain_body(Env=[f"SECRET={secret}"])),
        "lease": {"gpu": "0.1", "held": True},
        "name": "roots-job",
    }
    job = str(machine.daemon.call("Jobs/Submit", asked)["job_ids"][0])
    try:
        yield job
        assert machine.daemon.call("Jobs/Get", {"job_id": job})["state"] == "held"
    finally:
        machine.daemon.call("Jobs/Cancel", {"job_id": job})


def called(machine: AttackedMachine, call: str, /, **fields: object) -> Response:
    return machine.ask("POST", f"/gpushare.v1.{call}", json.dumps(fields).encode())


def touches_job(verb: str, **more: object) -> How:
    """A call about root's job by its id, by the beginning of that, and by its container's name."""

    def how(machine: AttackedMachine) -> Response:
        with roots_job(machine) as job:
            told = [
                called(machine, f"Jobs/{verb}", job_id=one, **more) for one in (job, job[:5], "roots-job")
            ]
        return max(told, key=lambda one: not one.is_refusal)

    return how


def streams_job(verb: str) -> How:
    """The calls that answer with a stream are gRPC's alone."""

    def how(machine: AttackedMachine) -> Response:
        with roots_job(machine) as job:
            (answer,) = ask(machine.daemon.socket, [(f"Jobs/{verb}", {"job_id": job})], uid=ATTACKER)
        return Response(403, f"{answer['message']}") if "code" in answer else Response(200, str(answer))

    return how


def after_roots_job(machine: AttackedMachine) -> Response:
    """Whoever may wait for a job learns when it ends, and how."""
    with roots_job(machine) as job:
        return submitted(machine, after=[{"job_id": job}])


def submitted(machine: AttackedMachine, **fields: object) -> Response:
    asked = {
        "image": parts.BUSYBOX_IMAGE,
        "create_body": packed(plain_body()),
        "lease": {"gpu": "0.1", "held": True},
        **fields,
    }
    return called(machine, "Jobs/Submit", **asked)


def submits(**fields: object) -> How:
    return lambda machine: submitted(machine, **fields)


def listed_by_its_array(machine: AttackedMachine) -> Response:
    with roots_job(machine) as job:
        told = called(machine, "Jobs/List", array_id=job, ended=True)
    return told if json.loads(told.message)["jobs"] == [] else Response(0, told.message)


def by_the_request_id_of_another(machine: AttackedMachine) -> Response:
    """Asked again with the same id a lease is the same one, but only to whom it belongs."""
    asked = {"gpu": "0.1", "request_id": "the-same"}
    lease = machine.daemon.call("Leases/Request", asked, uid=VICTIM)["id"]
    told = called(machine, "Leases/Request", **asked)
    machine.daemon.call("Leases/Release", {"lease_id": lease}, uid=VICTIM)
    return told if json.loads(told.message)["id"] != lease else Response(0, "it got the victim's lease")


def metrics_of_others(machine: AttackedMachine) -> Response:
    """The page has figures of all GPUs, and leases, users and images of the caller alone."""
    lease = machine.daemon.call("Leases/Request", {"gpu": "0.1"}, uid=VICTIM)
    told = machine.ask("GET", "/metrics")
    machine.daemon.call("Leases/Release", {"lease_id": lease["id"]}, uid=VICTIM)
    labels = (f'"{lease["id"]}"', f'"{lease["owner"]}"')
    return Response(0, told.message) if any(one in told.message for one in labels) else told


def without_settings(machine: AttackedMachine) -> Response:
    told = called(machine, "Node/Doctor")
    return told if json.loads(told.message)["settings"] == [] else Response(0, told.message)


def files_by_the_policys_answer(machine: AttackedMachine) -> Response:
    """What stands in a directory that the caller may not look into."""
    told = []
    for name in ("file", "none"):
        body = packed(plain_body(HostConfig={"Binds": [f"{machine.victims_home}/{name}:/x"]}))
        told.append(called(machine, "Policy/Explain", create_body=body).message.replace(name, "NAME"))
    return Response(200) if told[0] == told[1] else Response(0, str(told))


HOLDS_MEMORY = """
import os, sys, grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
path, uid = sys.argv[1], int(sys.argv[2])
os.setgroups([])
os.setresgid(uid, uid, uid)
os.setresuid(uid, uid, uid)
with grpc.insecure_channel(f"unix:{path}") as channel:
    asked = health_pb2.HealthCheckRequest(service="x" * 3_900_000)
    streams = [health_pb2_grpc.HealthStub(channel).Watch(asked, timeout=20) for _ in range(8)]
    for stream in streams:
        try:
            next(stream)
        except grpc.RpcError as error:
            sys.exit(error.details())
"""


def streams_that_hold_memory(machine: AttackedMachine) -> Response:
    """Of gRPC's own services: what is asked stays in memory as long as the stream is open."""
    words = [sys.executable, "-c", HOLDS_MEMORY, str(machine.daemon.socket), str(ATTACKER)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    return Response(429 if done.returncode else 200, done.stderr.strip())


# --- the audit -----------------------------------------------------------------------------------------


def own_lines(machine: AttackedMachine) -> list[Mapping[str, str]]:
    lines: list[Mapping[str, str]] = json.loads(called(machine, "Audit/List", limit=1000).message)["lines"]
    return lines


TOLD_SECONDS = 90.0
"""Of many refusals in a row one a second stands for itself; the others are told together."""


def until_told(act: Callable[[], T], is_told: Callable[[], object]) -> T:
    """What it was answered with the last time, when it was told or was tried for long enough."""
    deadline = time.monotonic() + TOLD_SECONDS
    while True:
        answer = act()
        patience = time.monotonic() + 5.0
        while not is_told() and time.monotonic() < patience:
            time.sleep(0.2)
        if is_told() or time.monotonic() > deadline:
            return answer


def told_by_the_audit(machine: AttackedMachine) -> Response:
    """A look at what is another's and at what is not there read alike; so must one's own lines of them."""
    for target in ("containers/{box}/json", "volumes/{volume}", "exec/{exec}/json", "networks/{network}"):
        machine.ask("GET", machine.fill(f"/{target}"))
    found = [line for line in own_lines(machine) if line["method"] == "GET" and line["code"] == "not_found"]
    return Response(200) if not found else Response(0, str(found))


def line_with_escapes(machine: AttackedMachine) -> Response:
    """Whoever reads the audit at a terminal is told what was asked, and their terminal nothing."""
    machine.ask("GET", "/containers/%0a%1b%5b2J%1b]0;x%07/json")
    machine.ask(
        "POST", "/containers/create?" + encoded(name="\n\x1b[2Jroot"), machine.fill_body(plain_body())
    )
    called(machine, "Jobs/Cancel", job_id="\n\x1b[2J\u202eroot")
    called(machine, "Audit/List", user="\n\x1b[2J")
    shown = machine.daemon.gpushare_says("audit", "-o", "wide") + machine.daemon.text()
    stored = "".join(str(value) for line in own_lines(machine) for value in line.values())
    return Response(200) if not {"\x1b", "\u202e"} & {*shown, *stored} else Response(0, shown)


def program_with_escapes(machine: AttackedMachine) -> Response:
    """A program whose name would clear the screen of whoever looks."""
    path = f"{machine.home}/x\n\x1b[2Jsystemd"
    copied, _, _ = machine.attacker.command("cp", str(parts.DOCKER.resolve()), path)
    assert not copied

    def programs_told() -> list[str]:
        lines = [line for line in own_lines(machine) if "by-a-strange-program" in line["endpoint"]]
        return [line["executable"] for line in lines]

    words = (path, "-H", f"unix://{machine.daemon.socket}", "rmi", "by-a-strange-program")
    until_told(lambda: machine.attacker.command(*words), programs_told)
    programs = programs_told()
    return Response(200) if programs and all(map(str.isprintable, programs)) else Response(0, str(programs))


def audit_flooded(machine: AttackedMachine) -> Response:
    """A flood is told as one; what others do stands for itself."""
    for _ in range(FLOOD):
        machine.ask("DELETE", "/images/mine")
    machine.ask("DELETE", "/images/mine")
    machine.daemon.docker("rmi", "alices-image", uid=VICTIM)
    lines = machine.daemon.call("Audit/List", {"limit": 1000})["lines"]
    flood = [line for line in lines if line["uid"] == str(ATTACKER) and "/images/mine" in line["endpoint"]]
    others = [line for line in lines if line["uid"] == str(VICTIM) and "alices-image" in line["endpoint"]]
    return (
        Response(200)
        if len(flood) < FLOOD and others
        else Response(0, f"{len(flood)} and {len(others)} lines")
    )


def refused_in_a_stream(machine: AttackedMachine) -> Response:
    """Over gRPC, in a call that answers with a stream, a refusal leaves a line as everywhere."""
    asked = {"gpu": "0.1", "project": "alices"}
    machine.daemon.call("Projects/Set", {"name": "alices", "users": {"names": [str(VICTIM)]}})

    def act() -> dict[str, Any]:
        (answer,) = ask(machine.daemon.socket, [("Leases/Acquire", asked)], uid=ATTACKER)
        return answer

    def is_told() -> bool:
        return any(line["endpoint"] == "Leases/Acquire" for line in own_lines(machine))

    try:
        answer = until_told(act, is_told)
    finally:
        machine.daemon.call("Projects/Set", {"name": "alices", "unset": True})
    if not is_told():
        return Response(0, "the audit does not tell of the stream")
    return Response(403, answer["message"]) if "code" in answer else Response(0, str(answer))


ATTACKS = [
    Attack("job-of-another-read", LEAK, touches_job("Get"), refused=NO_JOB),
    Attack("job-of-another-waited-for", LEAK, touches_job("Wait"), refused=NO_JOB),
    Attack("job-of-another-explained", LEAK, touches_job("Explain"), refused=NO_JOB),
    Attack("job-of-another-cancelled", LEASES, touches_job("Cancel"), refused=NO_JOB),
    Attack("job-of-another-let-go", LEASES, touches_job("Hold", held=False), refused=NO_JOB),
    Attack("job-of-another-reached", Threat.CONTAINERS, touches_job("Door"), refused=NO_JOB),
    Attack("job-of-another-read-by-its-output", LEAK, streams_job("Logs"), refused=NO_JOB),
    Attack("job-of-another-watched", LEAK, streams_job("Watch"), refused=NO_JOB),
    Attack("job-after-anothers", LEAK, after_roots_job, refused=NO_JOB),
    Attack("jobs-of-all-listed", LEAK, calls("Jobs/List", all=True), refused="only administrators"),
    Attack("jobs-listed-by-anothers-array", LEAK, listed_by_its_array, harmless="one's own only"),
    Attack(
        "jobs-listed-by-a-token-of-ones-own",
        LEAK,
        calls("Jobs/List", page_token="\n\x1b[2J%"),
        refused="is none of ours",
    ),
    Attack(
        "jobs-of-an-array-without-end",
        AVAILABILITY,
        submits(array="0-999999999"),
        refused="are no numbers of an array",
    ),
    Attack(
        "jobs-of-an-array-too-many",
        AVAILABILITY,
        submits(array="0-999999"),
        refused="at most 10000 jobs",
    ),
    Attack(
        "jobs-of-an-array-that-fills-the-disk",
        AVAILABILITY,
        submits(array="0-9999", create_body=packed(plain_body(Env=["X=" + "x" * 90_000]))),
        refused="MiB to keep",
    ),
    Attack(
        "jobs-in-a-batch-without-end",
        AVAILABILITY,
        calls("Jobs/SubmitBatch", jobs=[{}] * 1000),
        refused="at once are too many",
    ),
    Attack("job-named-by-escapes", Threat.SHARED, submits(name="\x1b[2J"), refused="'?[2J'"),
    Attack("job-without-an-account", Threat.IDENTITY, submits(), refused="no such account"),
    Attack(
        "lease-by-the-request-id-of-another",
        LEASES,
        by_the_request_id_of_another,
        harmless="ids of requests are each user's own",
    ),
    Attack(
        "lease-from-a-day-on-that-no-calendar-has",
        AVAILABILITY,
        calls("Leases/Request", gpu="1", begin_at=1e12),
        refused="is no time",
    ),
    Attack(
        "lease-from-a-day-on-in-a-thousand-years",
        AVAILABILITY,
        calls("Leases/Request", gpu="1", begin_at=3.3e10),
        harmless="a forecast looks only as far back as counts",
    ),
    Attack(
        "leases-of-all-time-listed",
        AVAILABILITY,
        calls("Leases/List", ended=True, limit=-1),
        harmless="a page has a bound",
    ),
    Attack(
        "streams-that-hold-memory",
        AVAILABILITY,
        streams_that_hold_memory,
        refused="the bodies of your requests hold",
    ),
    Attack("metrics-of-others", LEAK, metrics_of_others, harmless="it has the caller's own leases only"),
    Attack("settings-by-the-doctor", LEAK, without_settings, harmless="they are for the trusted"),
    Attack(
        "policy-of-another-asked-for", LEAK, calls("Policy/Explain", user="root"), refused="for yourself only"
    ),
    Attack(
        "files-by-the-policys-answer",
        Threat.FILES,
        files_by_the_policys_answer,
        harmless="the answer is the same whether they are there",
    ),
    Attack("audit-of-others-read", LEAK, calls("Audit/List", user="root"), refused="your own lines only"),
    Attack(
        "audit-that-tells-what-is-there",
        LEAK,
        told_by_the_audit,
        harmless="a look at another's shows no line to whom it was denied",
    ),
    Attack(
        "audit-page-without-end",
        AVAILABILITY,
        calls("Audit/List", limit=1_000_000_000),
        refused="is not possible",
    ),
    Attack("audit-lines-with-escapes", Threat.SHARED, line_with_escapes, harmless="lines are printable"),
    Attack(
        "audit-program-with-escapes",
        Threat.SHARED,
        program_with_escapes,
        harmless="programs' names are printable",
    ),
    Attack(
        "audit-flooded", Threat.SHARED, audit_flooded, harmless="a flood is folded, and others' lines are not"
    ),
    Attack(
        "audit-got-round-by-a-stream",
        Threat.SHARED,
        refused_in_a_stream,
        refused="is not in project",
    ),
]
