"""Turn requests of the API into checked requests of the domain: leases, jobs, and the ids of jobs."""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, replace
from hashlib import sha256
from typing import Any, cast

from gpushared.api.v1 import jobs_pb2, leases_pb2
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
from gpushared.domain.model.notification import MAIL
from gpushared.domain.model.request import Request
from gpushared.domain.model.request_spec import RequestSpec, read_request
from gpushared.domain.model.units import LATEST_SECONDS, shown

MAX_BODY_BYTES = 96 * 1024
"""The create body takes at most this much: with the rest of the job it must fit in one record of the store.
"""
MAX_ARRAY_BYTES = 128 * 1024 * 1024
"""Bound the create bodies of an array together, because each of its jobs is stored with its own body."""
MAX_MAILED_ARRAY = 100
MAX_NAME = 128
MAX_IMAGE = 1024
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
"""Docker allows the same names for containers."""
MAX_REQUEST_ID = 128
_CONTAINER_NAME = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9_.-]{1,254}")
"""Docker allows these names."""
_ON_THE_WIRE = {"lease_class": "class"}
_FIELDS = tuple(each.name for each in fields(RequestSpec) if each.name != "max_wait")
"""Leave out ``max_wait``: the client itself stops waiting after it."""
ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"
"""Use Crockford's base 32 (https://www.crockford.com/base32.html), which nobody misreads."""
BITS = 5
LENGTH = 13
"""The id has 65 bits: nobody finds a request of their own that gives the id of another's job."""
OLDER_LENGTH = 10
"""Ids of the releases up to 0.1, which also gave ids by chance, have this length."""
REQUEST_ID_BYTES = 16


@dataclass(frozen=True, slots=True)
class RequestedJobs:
    """Hold the jobs of one request. ``array`` is None for a single job."""

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
) -> RequestedJobs:
    """Read and check a request. ``after`` are the jobs of ``message.after``.

    ``is_known`` returns True if the owner has a job of that id. Raises RequestError, NotFound.
    """
    request = read_lease_request(message.lease, presets)
    numbers, limit = read_array(message.array)
    if numbers and message.interactive:
        raise RequestError("an interactive job cannot be an array", hint="leave --array out")
    if MAIL in request.notify and len(numbers) > MAX_MAILED_ARRAY:
        raise RequestError(
            f"an array of {len(numbers)} jobs would send {2 * len(numbers)} mails",
            hint=f"name a URL instead; arrays of up to {MAX_MAILED_ARRAY} jobs may send mail",
        )
    spec = _spec(message, request, owner, after, origin)
    if not numbers:
        job = id_for(owner.principal, spec.request_id, is_known)
        return RequestedJobs(((job, spec),), None, message.lease.held, request.priority)
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
    return RequestedJobs(jobs, base, message.lease.held, request.priority)


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
        raise RequestError(f"{shown(message.image)} is not an image", hint="name it as for docker run")
    return message.image


def _body(message: jobs_pb2.SubmitRequest) -> tuple[str, bool]:
    """Return the create body to store, and True if the container must be removed. Raises RequestError."""
    body = _object(message.create_body, "the create body")
    if (image := body.get("Image")) != message.image:
        raise RequestError(
            f"the create body is of the image {shown(str(image))}, and the job of {shown(message.image)}",
            hint="name the same image in both",
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


def _object(data: bytes, name: str) -> dict[str, Any]:
    try:
        content = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise RequestError(f"{name} is not JSON") from error
    if not isinstance(content, dict):
        raise RequestError(f"{name} is not a JSON object")
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


def _short(text: str, kind: str) -> str:
    if len(text) > MAX_NAME or not text.isprintable():
        raise RequestError(
            f"{shown(text)} is not a {kind}", hint=f"use at most {MAX_NAME} printable characters"
        )
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


def read_lease_request(message: leases_pb2.LeaseRequest, presets: Mapping[str, RequestSpec]) -> Request:
    """Read and check a request for a lease. Raises RequestError, NotFound."""
    check_request_id(message.request_id)
    request = read_request(_request_spec(message), presets)
    if message.begin_at:
        request = replace(request, begin_at=_moment(message.begin_at))
    return replace(request, requeue=message.requeue) if message.HasField("requeue") else request


def read_container(message: leases_pb2.LeaseRequest) -> tuple[str, str]:
    """Return the container's future name and its image. Raises RequestError if no engine would take them."""
    name, image = message.container_name, message.image
    if name and not is_container_name(name):
        raise RequestError(
            f"{shown(name)} is no name of a container",
            hint="letters, digits, and behind the first of these also _ . and -",
        )
    if len(image) > MAX_IMAGE or not image.isprintable():
        raise RequestError(f"{shown(image)} is no image", hint="name it as for docker run")
    return name, image


def is_container_name(text: str) -> bool:
    """Return True if an engine takes the name."""
    return _CONTAINER_NAME.fullmatch(text) is not None


def check_request_id(text: str) -> None:
    if len(text) > MAX_REQUEST_ID:
        raise RequestError(
            f"the request id has {len(text)} characters",
            hint=f"use at most {MAX_REQUEST_ID}, a UUID for example",
        )


def _request_spec(message: leases_pb2.LeaseRequest) -> RequestSpec:
    return RequestSpec(**{name: _text(getattr(message, _ON_THE_WIRE.get(name, name))) for name in _FIELDS})


def _text(value: object) -> str:
    """Return a field's value as people type it; an unset field is empty."""
    if isinstance(value, str):
        return value
    return str(value or "") if isinstance(value, int) else ",".join(cast("Iterable[str]", value))


def _moment(seconds: float) -> float:
    if not 0 < seconds < LATEST_SECONDS:
        raise RequestError("the time to begin is no time", hint="give seconds since the epoch")
    return seconds


def new_request_id() -> str:
    """Return a random request id for a request without one, because owner and request determine job ids."""
    return secrets.token_hex(REQUEST_ID_BYTES)


def id_of(principal: str, request_id: str) -> JobId:
    """Return the id of the job of a request, or of its array.

    A repeated request names the same jobs, also if the first one was only partly stored, and through any
    node. Nobody else's request names these jobs.
    """
    return _id(principal, request_id, LENGTH)


def older_id_of(principal: str, request_id: str) -> JobId:
    """Return the id that releases up to 0.1 gave."""
    return _id(principal, request_id, OLDER_LENGTH)


def id_for(principal: str, request_id: str, is_known: Callable[[JobId], bool]) -> JobId:
    """Return the older release's id of a request if a job is known by that id, else the new id."""
    older = older_id_of(principal, request_id)
    return older if is_known(older) else id_of(principal, request_id)


def _id(principal: str, request_id: str, length: int) -> JobId:
    digest = sha256(f"{principal}\0{request_id}".encode()).digest()
    number = int.from_bytes(digest, "big") >> (len(digest) * 8 - length * BITS)
    shifts = range((length - 1) * BITS, -1, -BITS)
    return JobId("".join(ALPHABET[number >> shift & (1 << BITS) - 1] for shift in shifts))


def id_in_array(array: JobId, index: int) -> JobId:
    return JobId(f"{array}_{index}")


def is_own_id(job: JobId, spec: JobSpec) -> bool:
    """Return True if a request of the job's owner gives the job that id.

    An id that an older release gave by chance counts as well: no newer request can get an id of that form.
    """
    base = spec.array or job
    if job != (base if spec.index is None else id_in_array(base, spec.index)):
        return False
    if (spec.array is None) != (spec.index is None):
        return False
    principal, request_id = spec.owner.principal, spec.request_id
    if not request_id:
        return _looks_as(base, OLDER_LENGTH)
    return base in {id_of(principal, request_id), older_id_of(principal, request_id)}


def is_array_id(text: str) -> bool:
    """Return True if the text looks like the id of an array, or of a job in none."""
    return any(_looks_as(text, length) for length in (LENGTH, OLDER_LENGTH))


def is_job_id(text: str) -> bool:
    """Return True if the text looks like the whole id of a job."""
    array, underscore, number = text.partition("_")
    return is_array_id(array) and (not underscore or (number.isascii() and number.isdecimal()))


def _looks_as(text: str, length: int) -> bool:
    return len(text) == length and all(letter in ALPHABET for letter in text)
