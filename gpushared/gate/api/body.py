"""Request bodies: parsed once, strictly, and written anew from what was judged.

The engine's own parser is lenient (https://pkg.go.dev/encoding/json#Unmarshal): it takes a key in any case,
lets a later duplicate win or merge, and reads HostConfig fields at the top level too. What is refused here
is what the engine might read differently from us.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from gpushared.domain.model.errors import RequestError
from gpushared.gate.api.field_kinds import fit
from gpushared.gate.api.fields import CONFIG, CREATE_TABLE, HOST_CONFIG

BODY_BYTES = 1024 * 1024
MAX_VALUES = 10_000
"""Everybody waits while a body is parsed: this many values take 5 ms, ten times as many 150 ms."""
MAX_DEPTH = 32
CPUSET = "Cpuset"
"""Engine 20.10 reads this field at the top level, though no description of the API has it."""
OWN_NETWORKS = frozenset({"", "default", "bridge", "none"})
"""Everybody may use these networks of the engine."""
HOST_NETWORK = "host"
"""This network is the machine's own."""
CPU_PERIOD_US = 100_000
"""The engine takes this period if a body names none."""

Json = Any
"""A decoded JSON value; whoever reads one checks its type."""
Body = dict[str, Json]


def parse_object(raw: bytes) -> Body:
    """Return the JSON object in ``raw``. Raises ``RequestError`` for anything that leaves room for doubt."""
    if len(raw) > BODY_BYTES:
        raise RequestError(f"the body is longer than {BODY_BYTES} bytes")
    if raw.count(b",") + raw.count(b"[") + raw.count(b"{") > MAX_VALUES:
        raise RequestError(f"the body has more than {MAX_VALUES} values")
    try:
        text = raw.decode("utf-8")
        value = json.loads(text, object_pairs_hook=_object, parse_constant=_no_constant)
        # Refuses half surrogates and numbers that overflow: the engine would read them as something else.
        json.dumps(value, allow_nan=False, ensure_ascii=False).encode("utf-8")
    except RecursionError:
        raise _too_deep() from None
    except ValueError as error:  # JSONDecodeError, UnicodeError and overlong numbers are ValueErrors
        raise RequestError(f"the body is not the JSON that it should be: {error}") from None
    if not isinstance(value, dict):
        raise RequestError("the body is not a JSON object")
    _check_depth(value, MAX_DEPTH)
    return value


def serialise(body: Mapping[str, Json]) -> bytes:
    """Return the bytes for the engine."""
    return json.dumps(body, allow_nan=False, separators=(",", ":")).encode()


def check_create(body: Body, dropped: list[str] | None = None) -> Body:
    """Return the create body without the fields on no table, whose names go to ``dropped``.

    Raises if the engine would see a field that the gate does not, or see it elsewhere, or take its value for
    another: ``PermissionRefused`` for an unknown field if there is no ``dropped``, else ``RequestError``.
    """
    check_keys(body, CONFIG | HOST_CONFIG | {"HostConfig", "NetworkingConfig", CPUSET}, "")
    misplaced = sorted(HOST_CONFIG & body.keys())
    if misplaced:
        raise RequestError(f"{misplaced[0]} stands at the top level", hint="it belongs under HostConfig")
    if body.get(CPUSET):
        raise RequestError(f"{CPUSET} stands at the top level", hint="write CpusetCpus under HostConfig")
    return fit(body, CREATE_TABLE, dropped=dropped)


def check_keys(body: Body, known: frozenset[str], where: str) -> None:
    """Refuse keys that the engine would take for one of ``known`` though they are spelled otherwise."""
    folded = {name.casefold(): name for name in known}
    for key in body:
        meant = folded.get(key.casefold(), key)
        if meant != key:
            raise RequestError(f"{where}{key} is not a field", hint=f"it is spelled {where}{meant}")


def section(body: Body, name: str) -> Body:
    """Return an object inside the body, empty if absent or null; raises ``RequestError`` for other types."""
    value = body.get(name)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise RequestError(f"{name} is not an object")
    return value


def objects(body: Body, name: str) -> list[Body]:
    """Return a list of objects inside the body; raises ``RequestError`` for another type."""
    value = body.get(name) or []
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise RequestError(f"{name} is not a list of objects")
    return value


def strings(body: Body, name: str) -> list[str]:
    """Return a list of strings inside the body; raises ``RequestError`` for another type."""
    value = body.get(name) or []
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise RequestError(f"{name} is not a list of strings")
    return value


def text(body: Body, name: str) -> str:
    """Return a string inside the body, empty if absent or null; raises ``RequestError`` for other types."""
    value = body.get(name)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise RequestError(f"{name} is not a string")
    return value


def _object(pairs: Iterable[tuple[str, Json]]) -> Body:
    result: Body = {}
    for key, value in pairs:
        if key in result:
            raise RequestError(f"the key {key!r} stands twice in one object")
        result[key] = value
    return result


def _no_constant(name: str) -> None:
    raise RequestError(f"{name} is no JSON number")


def _too_deep() -> RequestError:
    return RequestError(f"the body is nested deeper than {MAX_DEPTH} levels")


def _check_depth(value: Json, left: int) -> None:
    if left == 0:
        raise _too_deep()
    children = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    for child in children:
        if isinstance(child, dict | list):
            _check_depth(child, left - 1)
