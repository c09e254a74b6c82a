"""Parse request bodies once, strictly, and write them anew from the judged values.

The engine's own parser is lenient (https://pkg.go.dev/encoding/json#Unmarshal): it takes a key in any case,
lets a later duplicate win or merge, and reads HostConfig fields at the top level too. This module refuses
every body that the engine might read differently from us.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from gpushared.config.gate_settings import COMMON_DRIVER_CAPABILITIES, DRIVER_CAPABILITIES
from gpushared.domain.model.errors import PermissionRefused, RequestError
from gpushared.domain.model.units import shown
from gpushared.gate.api.field_kinds import fit
from gpushared.gate.api.fields import CREATE_TABLE, HOST_TABLE

BODY_BYTES = 1024 * 1024
MAX_VALUES = 10_000
"""All requests wait while a body is parsed: this many values take 5 ms, ten times as many 150 ms."""
MAX_DEPTH = 32
CPUSET = "Cpuset"
"""Engine 20.10 reads this field at the top level, though no description of the API has it."""
OWN_NETWORKS = frozenset({"", "default", "bridge", "none"})
"""Every caller may use these networks of the engine."""
HOST_NETWORK = "host"
"""This network is the machine's own."""
CPU_PERIOD_US = 100_000
"""The engine takes this period if a body names none."""

Json = Any
"""A decoded JSON value; its reader checks its type."""
Body = dict[str, Json]
LABEL_PORTS: Final = "gpushare.published-ports"
"""This label has the gate's count of the ports at the container's create."""
_PORT: Final = re.compile(r"([0-9]{1,5})(?:-([0-9]{1,5}))?(?:/[a-z]+)?")
CAPABILITIES = "NVIDIA_DRIVER_CAPABILITIES"
ALL_CAPABILITIES = "all"


def parse_object(raw: bytes) -> Body:
    """Return the JSON object in ``raw``. Raises ``RequestError`` for an ambiguous body."""
    if len(raw) > BODY_BYTES:
        raise RequestError(f"the body is longer than {BODY_BYTES} bytes")
    if raw.count(b",") + raw.count(b"[") + raw.count(b"{") > MAX_VALUES:
        raise RequestError(f"the body has more than {MAX_VALUES} values")
    try:
        text = raw.decode("utf-8")
        value = json.loads(text, object_pairs_hook=_object, parse_constant=_no_constant)
        # This refuses half surrogates and numbers that overflow: the engine would read them as other values.
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

    Raises if the engine would see a field that the gate does not see, or see the field elsewhere, or take its
    value for another value: ``PermissionRefused`` for an unknown field if there is no ``dropped``, else
    ``RequestError``.
    """
    check_keys(body, {*CREATE_TABLE, *HOST_TABLE, CPUSET}, "")
    misplaced = sorted(HOST_TABLE.keys() & body.keys())
    if misplaced:
        raise RequestError(f"{misplaced[0]} stands at the top level", hint="it belongs under HostConfig")
    if body.get(CPUSET):
        raise RequestError(f"{CPUSET} stands at the top level", hint="write CpusetCpus under HostConfig")
    return fit(body, CREATE_TABLE, dropped=dropped)


def check_keys(body: Body, names: Iterable[str], where: str) -> None:
    """Raise ``RequestError`` for keys that differ from one of ``names`` in spelling only.

    The engine would take such a key for the name.
    """
    folded = {name.casefold(): name for name in names}
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


def _check_depth(value: Json, levels: int) -> None:
    if levels == 0:
        raise _too_deep()
    children = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    for child in children:
        if isinstance(child, dict | list):
            _check_depth(child, levels - 1)


def count_ports(host: Body, exposed: Iterable[str]) -> int:
    """Count the ports of a HostConfig and the exposed ports; each port of a range counts."""
    bound = section(host, "PortBindings")
    named = sum(_size(port) * max(1, len(bindings or ())) for port, bindings in bound.items())
    if not host.get("PublishAllPorts"):
        return named
    return named + sum(_size(port) for port in {*exposed} - bound.keys())


def recorded_ports(labels: Mapping[str, str]) -> int:
    """Return the number of ports that the gate counted at a container's create; 0 without its label."""
    count = labels.get(LABEL_PORTS, "")
    return int(count) if re.fullmatch("[0-9]{1,9}", count) else 0


def check_ports(name: str, ports: int, labels: Mapping[str, str], most: int) -> None:
    """Raise ``PermissionRefused`` if a container would publish more ports than its create allowed.

    The image may have been replaced after the create. A container from before ports were counted may have as
    many as a user may have.
    """
    allowed_ports = recorded_ports(labels) if LABEL_PORTS in labels else most
    if most and ports > allowed_ports:
        raise PermissionRefused(
            f"the container {name} would publish {ports} ports, and was created for {allowed_ports}",
            hint="create it again",
        )


def _size(port: str) -> int:
    match = _PORT.fullmatch(port)
    if match is None or match[2] is None:
        return 1  # the engine reports a text that is no port
    return max(1, int(match[2]) - int(match[1]) + 1)


def named_capabilities(env: Sequence[str]) -> str | None:
    """Return the value of ``CAPABILITIES``, None if it is not set; the engine takes the last of several.

    A bare name, which unsets the image's value, is an empty value.
    """
    values = [value for name, _, value in (entry.partition("=") for entry in env) if name == CAPABILITIES]
    return values[-1] if values else None


def check_driver_capabilities(env: Sequence[str], allowed: Sequence[str] = DRIVER_CAPABILITIES) -> None:
    """Raise if the user's variables name a capability that is unknown, or that the site does not give.

    NVIDIA's container toolkit reads ``NVIDIA_DRIVER_CAPABILITIES``, and fails a start over an unknown name.
    Raises ``RequestError`` or ``PermissionRefused``.
    """
    for capability in _capabilities(named_capabilities(env) or ""):
        if capability not in {ALL_CAPABILITIES, *COMMON_DRIVER_CAPABILITIES, *DRIVER_CAPABILITIES}:
            raise RequestError(f"NVIDIA's driver has no capability {shown(capability)}", hint=_hint(allowed))
        if capability not in {ALL_CAPABILITIES, *COMMON_DRIVER_CAPABILITIES, *allowed}:
            raise PermissionRefused(
                f"the capability {capability} of NVIDIA's driver is not given here",
                hint=_hint(allowed),
            )


def driver_capabilities(named: str, allowed: Sequence[str] = DRIVER_CAPABILITIES) -> str:
    """Return the variable's value for a container: the named capabilities that the site gives."""
    capabilities = _capabilities(named)
    if ALL_CAPABILITIES in capabilities and set(allowed) >= set(DRIVER_CAPABILITIES):
        return ALL_CAPABILITIES
    available = [*COMMON_DRIVER_CAPABILITIES, *allowed]
    granted = available if ALL_CAPABILITIES in capabilities else [c for c in capabilities if c in available]
    return ",".join(granted or COMMON_DRIVER_CAPABILITIES)


def _hint(allowed: Sequence[str]) -> str:
    names = ", ".join([*COMMON_DRIVER_CAPABILITIES, *allowed])
    return f"name {ALL_CAPABILITIES}, or some of {names}, in {CAPABILITIES}"


def _capabilities(value: str) -> list[str]:
    return list(dict.fromkeys(name for part in value.split(",") if (name := part.strip())))
