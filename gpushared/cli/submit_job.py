"""Do the work of ``gpushare submit``: docker reads its options, and the daemon keeps the result as a job."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from gpushared.api.v1.messages import SubmitAnswer
from gpushared.cli import docker_cli
from gpushared.cli.capture import CreateRequest, capture, check_create_request
from gpushared.cli.docker_args import RUN_ALONE, SUBMIT, RunArguments, refuse_ways_around, split
from gpushared.cli.errors import UsageError, say, wrong_values
from gpushared.cli.references import job_id
from gpushared.cli.start import (
    check_privileges,
    lease_fields,
    may_go_elsewhere,
    names,
    print_warnings,
    with_lease_ids,
)
from gpushared.client import Client
from gpushared.client.jobs import Jobs
from gpushared.client.submit_parameters import fields_of
from gpushared.domain.model.errors import GpushareError, RequestError

_FOR_A_TERMINAL = ("AttachStdin", "AttachStdout", "AttachStderr", "StdinOnce")
MAX_COUNT_DIGITS = 9
NEVER_FITS = "never_fits"


def submit_job(argv: Sequence[str]) -> int:
    """Submit the job, and print only its id, or the array's, to stdout."""
    args = split(argv, SUBMIT)
    if not args.image:
        raise UsageError("no image was named", hint="gpushare submit --gpu 0.25 IMAGE [COMMAND...]")
    _refuse_what_no_job_has(args)
    refuse_ways_around(args)
    fields = _submit_fields(args)
    client = Client()
    check_privileges(client, args)
    fields["lease"] = _with_ids(client, args, fields["lease"])
    create_request = _capture(client, args)
    _refuse_old_paths(create_request)
    if not may_go_elsewhere(client, args):  # else the policy of another node may be the one that judges
        check_create_request(client, create_request)
    print_warnings(args, SUBMIT)
    for note in _notes(args):
        say(note)
    answer = _send(client, args, fields, create_request)
    print(answer.array_id or answer.job_ids[0])
    for note in answer.notes:
        say(note)
    client.retries = None  # what is left to say is not worth a wait
    _warn_if_it_never_fits(Jobs(client), answer.job_ids[0])
    return 0


def _with_ids(client: Client, args: RunArguments, lease: dict[str, Any]) -> dict[str, Any]:
    """Return the request with ids for the things to be near or away from: in a pool the ids of jobs."""
    if not (lease["near"] or lease["away_from"]):
        return lease
    if not may_go_elsewhere(client, args):
        return with_lease_ids(client, lease)
    ids = {name: [_job(client, reference) for reference in lease[name]] for name in ("near", "away_from")}
    return lease | ids


def _job(client: Client, reference: str) -> str:
    """Return a job's id. Raises RequestError for a lease without a job, unknown to the pool."""
    if resolved_id := job_id(client, reference):
        return resolved_id
    raise RequestError(
        f"{reference[:80]!r} is a lease without a job",
        hint="a job of the pool can be near or away from jobs only",
    )


def _warn_if_it_never_fits(jobs: Jobs, job_id: str) -> None:
    """Warn of a job that no node of the pool could ever take: the pool keeps it, as others may join."""
    with suppress(GpushareError):
        explanation = jobs.explain(job_id)
        if explanation.reason_code == NEVER_FITS and not explanation.job.is_over:
            say(
                f"{job_id} waits until a node joins that could take it: {explanation.sentence}",
                explanation.hint,
            )


def _capture(client: Client, args: RunArguments) -> CreateRequest:
    program = docker_cli.find_docker()
    return capture(program, args.docker_without(*RUN_ALONE), docker_cli.api_version_of(client))


def _send(
    client: Client, args: RunArguments, fields: dict[str, Any], create_request: CreateRequest
) -> SubmitAnswer:
    return Jobs(client).submit(
        request_id=os.urandom(16).hex(),
        create_body=_for_nobody_at_a_terminal(create_request.body),
        image=args.image,
        name=create_request.name,
        platform=create_request.platform,
        pull=args.value("pull"),
        remove=args.is_set("rm"),
        **fields,
    )


# --- our own options


def _submit_fields(args: RunArguments) -> dict[str, Any]:
    """Return the values of our options as the arguments of ``Jobs.submit``."""
    options = args.own_options
    # The job removes its container, and only when it is over.
    args_without_rm = args._replace(flags=tuple(flag for flag in args.flags if flag.name != "rm"))
    lease = lease_fields(args_without_rm) | {"after": []}
    requeue = lease.pop("requeue")
    if options.get("node") and options.get("span"):
        raise UsageError(
            "--node and --span exclude each other", hint="--span is for several nodes: leave one of them out"
        )
    return {
        "lease": fields_of(lease),
        "requeue": requeue,
        "pool": bool(options.get("pool")),
        "node": options.get("node", ""),
        "nodes": _nodes(options),
        "span": bool(options.get("span")),
        "retries": _retries(options),
        "stop_after_seconds": _stop_after(options.get("stop-after", "")),
        "after": [(job, False) for job in names(options.get("after", ""))]
        + [(job, True) for job in names(options.get("after-ok", ""))],
        "array": _array(options.get("array", "")),
    }


def _count(options: dict[str, str], name: str) -> int:
    text = options.get(name, "0")
    if not (text.isascii() and text.isdigit() and len(text) <= MAX_COUNT_DIGITS):
        raise UsageError(f"--{name} {text[:40]!r} is not possible", hint="give a whole number, such as 2")
    return int(text)


def _retries(options: dict[str, str]) -> int:
    if "retries" not in options:
        return 0
    from gpushared.domain.jobs.submit_limits import MAX_RETRIES, check_bounds

    with wrong_values("--retries"):
        return check_bounds(_count(options, "retries"), 0, MAX_RETRIES, "retries")


def _nodes(options: dict[str, str]) -> int:
    if "nodes" not in options:
        return 0
    if not (nodes := _count(options, "nodes")):
        raise UsageError("a job needs at least one node", hint="leave out --nodes for one node, anywhere")
    from gpushared.domain.jobs.job_commands import MAX_NODES
    from gpushared.domain.jobs.submit_limits import check_bounds

    with wrong_values("--nodes"):
        return check_bounds(nodes, 1, MAX_NODES, "nodes")


def _array(text: str) -> str:
    if text:
        from gpushared.domain.jobs.submit_limits import read_array

        with wrong_values("--array"):
            read_array(text)
    return text


def _stop_after(text: str) -> int:
    if not text:
        return 0
    from gpushared.domain.jobs import submit_limits as limits
    from gpushared.domain.model.units import parse_duration

    least, most = limits.SHORTEST_STOP_AFTER_SECONDS, limits.LONGEST_STOP_AFTER_SECONDS
    with wrong_values("--stop-after"):
        return limits.check_bounds(parse_duration(text), least, most, "seconds without the pool's word")


# --- docker's options that a job has no use for


def _refuse_what_no_job_has(args: RunArguments) -> None:
    for name, why in (
        ("cidfile", "the container does not exist yet: `gpushare jobs -o wide` shows its name"),
        ("use-api-socket", "a job gets no socket of the engine that runs it"),
    ):
        if args.value(name):
            raise UsageError(f"--{name} makes no sense for a job", hint=why)


def _refuse_old_paths(create_request: CreateRequest) -> None:
    """The docker CLI makes relative paths absolute since 23.0; before, the engine would refuse them."""
    binds = json.loads(create_request.body).get("HostConfig", {}).get("Binds") or []
    for bind in binds:
        if bind.startswith("."):
            raise UsageError(
                f"the path in -v {bind[:80]} is a relative one, which this docker CLI cannot resolve",
                hint='write "$PWD/..." instead, or install docker 23.0 or newer',
            )


def _notes(args: RunArguments) -> list[str]:
    notes = []
    if args.is_set("interactive"):
        notes.append("nobody is at its terminal until `gpushare attach`; what reads its input waits for that")
    if (_count(args.own_options, "nodes") > 1 or args.own_options.get("span")) and not _names_network(args):
        notes.append("its parts on other nodes reach each other with --network host only")
    return notes


def _names_network(args: RunArguments) -> bool:
    return bool(args.value("network") or args.value("net"))


def _for_nobody_at_a_terminal(body: bytes) -> bytes:
    """Return the body as of ``docker run -d``: nobody is attached, and the input stays open after clients."""
    content = json.loads(body)
    return json.dumps(content | dict.fromkeys(_FOR_A_TERMINAL, False), separators=(",", ":")).encode()
