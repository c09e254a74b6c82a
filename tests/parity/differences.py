"""Field by field: what `docker inspect` says of two containers, and the differences that are meant to be."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Allowance:
    """Fields that may differ, and why."""

    field: str
    """A pattern of the whole path."""
    reason: str


ALWAYS = (
    Allowance(r"Created", "two containers are made one after the other"),
    Allowance(r"(State|State\.Health\.Log\.\d+)\.(StartedAt|FinishedAt|Start|End)", "the same"),
    Allowance(r"State\.Pid", "two processes"),
    Allowance(r"Config\.Labels\.gpushare\..*", "the gate's record of whose it is and of its lease"),
    Allowance(r"GraphDriver\.Data\..*", "each container has a layer of its own"),
    Allowance(r"NetworkSettings\.(SandboxID|SandboxKey|EndpointID)", "each has a network sandbox of its own"),
    Allowance(
        r"NetworkSettings\.Networks\.[^.]+\.(EndpointID|DNSNames\.\d+)", "each is an endpoint of its own"
    ),
)
ADDRESSES = (
    Allowance(
        r"NetworkSettings\.(Networks\.[^.]+\.)?(IPAddress|MacAddress)",
        "the engine gives each its own address",
    ),
    Allowance(r"NetworkSettings\.Ports\..*\.HostPort", "the engine chooses a free port for each"),
)
"""For containers that run on a network."""
LEASE = (
    Allowance(r"Config\.Env.*", "the lease's variables are the container's"),
    Allowance(r"HostConfig\.DeviceRequests.*", "the request for GPUs was answered by a lease"),
    Allowance(r"HostConfig\.(Devices|Mounts).*", "the lease's device nodes and files are the container's"),
)
"""For containers that asked for a GPU."""


UNORDERED = {
    "Config.Env": "the engine merges it with the image's in an order that changes from time to time",
    "HostConfig.Binds": "the client keeps them as a set",
    "HostConfig.Mounts": "compose keeps them as a set",
    "HostConfig.Ulimits": "the client keeps them as a set",
    "Mounts": "the engine keeps them as a set",
}
"""Lists whose order says nothing, and why; two containers made directly differ in it too."""


def differences(left: object, right: object, allowances: tuple[Allowance, ...] = ALWAYS) -> list[str]:
    """A line for each field that differs without an allowance; ``left`` was made directly."""
    ours, theirs = dict(_flat(left)), dict(_flat(right))
    return [
        f"{path}: {ours.get(path, _ABSENT)!r} directly, {theirs.get(path, _ABSENT)!r} through the gate"
        for path in sorted(ours.keys() | theirs.keys())
        if ours.get(path, _ABSENT) != theirs.get(path, _ABSENT)
        and not any(re.fullmatch(each.field, path) for each in allowances)
    ]


class _Absent:
    def __repr__(self) -> str:
        return "nothing"


_ABSENT = _Absent()


def _flat(value: object, path: str = "") -> Iterator[tuple[str, object]]:
    """Leaves with their paths; an empty object or list is a leaf, which is not the same as none."""
    if isinstance(value, dict) and value:
        for key, child in value.items():
            yield from _flat(child, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list) and value:
        children = sorted(value, key=json.dumps) if path in UNORDERED else value
        for number, child in enumerate(children):
            yield from _flat(child, f"{path}.{number}")
    else:
        yield path, value
