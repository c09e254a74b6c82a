"""Turn a LeaseRequest of the API into a checked request of the domain."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import fields, replace
from typing import cast

from gpushared.api.v1 import leases_pb2
from gpushared.domain.model.errors import RequestError
from gpushared.domain.model.request import Request
from gpushared.domain.model.request_spec import RequestSpec, read_request
from gpushared.domain.model.units import LATEST_SECONDS, shown

MAX_REQUEST_ID = 128
MAX_IMAGE = 1024
_NAME = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9_.-]{1,254}")
"""Docker allows these names."""


def read_lease_request(message: leases_pb2.LeaseRequest, presets: Mapping[str, RequestSpec]) -> Request:
    """Read and check a request for a lease. Raises RequestError, NotFound."""
    check_request_id(message.request_id)
    request = read_request(_ask(message), presets)
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
    return _NAME.fullmatch(text) is not None


def check_request_id(text: str) -> None:
    if len(text) > MAX_REQUEST_ID:
        raise RequestError(
            f"the request id has {len(text)} characters",
            hint=f"use at most {MAX_REQUEST_ID}, a UUID for example",
        )


_ON_THE_WIRE = {"lease_class": "class"}
_ASKED = tuple(one.name for one in fields(RequestSpec) if one.name != "max_wait")
"""The client itself waits no longer than ``max_wait``."""


def _ask(message: leases_pb2.LeaseRequest) -> RequestSpec:
    return RequestSpec(**{name: _word(getattr(message, _ON_THE_WIRE.get(name, name))) for name in _ASKED})


def _word(value: object) -> str:
    """Return a field's value as people type it; a field left out is empty."""
    if isinstance(value, str):
        return value
    return str(value or "") if isinstance(value, int) else ",".join(cast("Iterable[str]", value))


def _moment(seconds: float) -> float:
    if not 0 < seconds < LATEST_SECONDS:
        raise RequestError("the time to begin is no time", hint="give seconds since the epoch")
    return seconds
