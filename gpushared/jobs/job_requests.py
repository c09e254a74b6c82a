"""Turn a SubmitRequest into the jobs that it asks for, and check each job on its own."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from gpushared.api.v1 import jobs_pb2
from gpushared.domain.jobs.job import HERE, After, JobSpec, NodeName, Owner, Pull
from gpushared.domain.jobs.job_commands import MAX_NODES
from gpushared.domain.jobs.submit_limits import (
    LONGEST_STOP_AFTER_SECONDS,
    MAX_RETRIES,
    SHORTEST_STOP_AFTER_SECONDS,
    check_bounds,
    read_array,
)
from gpushared.domain.model.errors import RequestError
from gpushared.domain.model.lease import JobId
from gpushared.domain.model.request import Request
from gpushared.domain.model.request_spec import RequestSpec
from gpushared.domain.model.units import shown
from gpushared.jobs.job_ids import id_for, id_in_array, new_request_id
from gpushared.jobs.lease_requests import check_request_id, read_lease_request

MAX_BODY_BYTES = 96 * 1024
"""The create body takes at most this much: with the rest of the job it must fit in one record of the
store."""
MAX_ARRAY_BYTES = 128 * 1024 * 1024
"""The create bodies of an array together take at most this much, as each of its jobs is kept with its own."""
MAX_NAME = 128
MAX_IMAGE = 1024
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
"""Docker allows the same names for containers."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """Hold the jobs that one request asks for. ``array`` is None for a single job."""

    jobs: tuple[tuple[JobId, JobSpec], ...]
    array: JobId | None
    held: bool
    priority: int


def read_submit(
    message: jobs_pb2.SubmitRequest,
    owner: Owner,
    after: tuple[After, ...],
    presets: Mapping[str, RequestSpec],
    *,
    origin: NodeName = HERE,
    is_known: Callable[[JobId], bool] = lambda _: False,
) -> Wanted:
    """``after``: what ``message.after`` names. ``is_known`` tells whether the owner has a job of that id.

    Raises RequestError, NotFound.
    """
    request = read_lease_request(message.lease, presets)
    numbers, limit = read_array(message.array)
    if numbers and message.interactive:
        raise RequestError("an interactive job cannot be an array", hint="leave --array out")
    spec = _spec(message, request, owner, after, origin)
    if not numbers:
        job = id_for(owner.principal, spec.request_id, is_known)
        return Wanted(((job, spec),), None, message.lease.held, request.priority)
    _check_array_bytes(len(numbers), len(spec.body))
    base = id_for(owner.principal, spec.request_id, lambda array: is_known(id_in_array(array, numbers[0])))
    spec = replace(spec, array=base, array_limit=limit)
    jobs = tuple(
        (
            id_in_array(base, number),
            replace(spec, name=_name_in_array(spec.name, number), index=number),
        )
        for number in numbers
    )
    return Wanted(jobs, base, message.lease.held, request.priority)


def _check_array_bytes(jobs: int, body_bytes: int) -> None:
    if jobs * body_bytes > MAX_ARRAY_BYTES:
        raise RequestError(
            f"an array of {jobs} jobs would take {jobs * body_bytes >> 20} MiB to keep, more than "
            f"{MAX_ARRAY_BYTES >> 20}",
            hint="are there large values among the variables? Mount a file instead, or divide the array",
        )


def _name_in_array(name: str, number: int) -> str:
    return f"{name}-{number}" if name else ""


def _spec(
    message: jobs_pb2.SubmitRequest,
    request: Request,
    owner: Owner,
    after: tuple[After, ...],
    origin: NodeName,
) -> JobSpec:
    request_id = message.request_id or message.lease.request_id
    check_request_id(request_id)
    request_id = request_id or new_request_id()
    image = _image(message)
    body, remove = ("", message.remove) if message.interactive else _body(message)
    return JobSpec(
        request=request,
        owner=owner,
        image=image,
        body=body,
        platform=_short(message.platform, "platform"),
        name=_name(message.name),
        pull=_pull(message.pull),
        interactive=message.interactive,
        immediate=message.lease.immediate,
        target=NodeName(_short(message.node, "node")),
        nodes=check_bounds(message.nodes or 1, 1, MAX_NODES, "nodes"),
        span=message.span,
        retries=_retries(message),
        requeue=message.requeue if message.HasField("requeue") else True,
        stop_after_seconds=_stop_after(message),
        after=after,
        origin=origin,
        request_id=request_id,
        remove=remove,
    )


def _image(message: jobs_pb2.SubmitRequest) -> str:
    if not message.image and not message.interactive:
        raise RequestError("no image was named", hint="say which image the container is to be made of")
    if len(message.image) > MAX_IMAGE or not message.image.isprintable():
        raise RequestError(f"{shown(message.image)} is not an image")
    return message.image


def _body(message: jobs_pb2.SubmitRequest) -> tuple[str, bool]:
    """The create body as it is kept, and whether the container is to be removed. Raises RequestError."""
    body = _object(message.create_body, "the create body")
    if (said := body.get("Image")) != message.image:
        raise RequestError(
            f"the create body is of the image {shown(str(said))}, and the job of {shown(message.image)}"
        )
    host = body.get("HostConfig")
    host = {} if host is None else host
    if not isinstance(host, dict):
        raise RequestError("the create body's HostConfig is not an object")
    _refuse_restarts(host)
    remove = bool(host.pop("AutoRemove", False)) or message.remove
    text = json.dumps({**body, "HostConfig": host}, separators=(",", ":"))
    if len(text) > MAX_BODY_BYTES:
        raise RequestError(
            f"the container's description has {len(text)} bytes, more than {MAX_BODY_BYTES}",
            hint="is there a large file among the variables? Mount it instead",
        )
    return text, remove


def _object(data: bytes, what: str) -> dict[str, Any]:
    try:
        content = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise RequestError(f"{what} is not JSON") from error
    if not isinstance(content, dict):
        raise RequestError(f"{what} is not a JSON object")
    return content


def _refuse_restarts(host: dict[str, Any]) -> None:
    policy = host.get("RestartPolicy") or {}
    name = str((policy.get("Name") if isinstance(policy, dict) else policy) or "")
    if name not in {"", "no"}:
        raise RequestError(
            f"a job's container is not restarted by docker (--restart {shown(name)})",
            hint="use --retries N: the job is run again when it fails; services belong to `gpushare run -d`",
        )


def _name(text: str) -> str:
    if text and (len(text) > MAX_NAME or _NAME.fullmatch(text) is None):
        raise RequestError(
            f"{shown(text)} cannot be a container's name", hint="use letters, digits and . _ -"
        )
    return text


def _short(text: str, what: str) -> str:
    if len(text) > MAX_NAME or not text.isprintable():
        raise RequestError(f"{shown(text)} is not a {what}")
    return text


def _pull(text: str) -> Pull:
    try:
        return Pull(text or Pull.MISSING)
    except ValueError:
        raise RequestError(
            f"{shown(text)} does not say when to pull the image", hint="missing, always or never"
        ) from None


def _retries(message: jobs_pb2.SubmitRequest) -> int:
    if message.retries and message.interactive:
        raise RequestError("an interactive job is not run again by itself", hint="leave --retries out")
    return check_bounds(message.retries, 0, MAX_RETRIES, "retries")


def _stop_after(message: jobs_pb2.SubmitRequest) -> int | None:
    if not message.stop_after_seconds:
        return None
    if message.interactive:
        raise RequestError(
            "an interactive job's container is started by its owner, and not once a guard watches over it",
            hint="leave the seconds without the pool's word out",
        )
    return check_bounds(
        message.stop_after_seconds,
        SHORTEST_STOP_AFTER_SECONDS,
        LONGEST_STOP_AFTER_SECONDS,
        "seconds without the pool's word",
    )
