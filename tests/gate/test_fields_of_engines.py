"""The tables against real engines: an engine decodes no field that is on none, so none is lost in silence.

Go's decoder goes on after a value of a wrong kind, and names the first field that had one. So each object is
sent with every word of the engine's own binary that could be a field, all with a value that fits nowhere. At
the end stands a known field with a wrong value: where the engine names another, we miss a field.
"""

from __future__ import annotations

import http.client
import json
import re
import socket
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from gpushared.gate.api import fields as f
from gpushared.gate.api.body import CPUSET
from gpushared.gate.api.field_kinds import Table
from tests.bed import parts
from tests.gate.test_fields import places, wrapped

WORD = re.compile(rb"(?<![A-Za-z0-9_])[A-Za-z][A-Za-z0-9]{1,39}(?![A-Za-z0-9_])")
NOWHERE = 5.5
"""No field of any body is a fraction."""
FIELD = re.compile(r"Go struct field ([\w.]+) of type")
ENDPOINTS: dict[str, tuple[Table, str, str]] = {
    "create": (f.CREATE_TABLE, "/containers/create", "Image"),
    "update": (f.UPDATE_TABLE, "/containers/nobody/update", "Memory"),
    "exec": (f.EXEC_TABLE, "/containers/nobody/exec", "User"),
    "exec-start": (f.EXEC_START_TABLE, "/exec/nobody/start", "Detach"),
    "network": (f.NETWORK_TABLE, "/networks/create", "Name"),
    "connect": (f.CONNECT_TABLE, "/networks/nobody/connect", "Container"),
    "disconnect": (f.CONNECT_TABLE, "/networks/nobody/disconnect", "Container"),
    "volume": (f.VOLUME_CREATE_TABLE, "/volumes/create", "Name"),
    "auth": (f.AUTH_TABLE, "/auth", "username"),
}
"""The last is the known field, which makes every one of these requests fail before it makes anything."""
OBJECTS = [
    pytest.param(name, path, id=".".join((name, *path)))
    for name, (table, _, _) in ENDPOINTS.items()
    for path, field in places(table)
    if (field is None or field.table is not None) and not (name == "disconnect" and path)
]
DOCKERD = {"plain": Path("/usr/sbin/dockerd"), "cdi": parts.CDI_ROOT / "usr/sbin/dockerd"}


@pytest.fixture(
    params=[pytest.param("plain", marks=pytest.mark.docker), pytest.param("cdi", marks=pytest.mark.cdi)]
)
def engine(request: pytest.FixtureRequest) -> tuple[str, str]:
    """An engine's kind and socket."""
    if request.param == "plain":
        engine = str(request.getfixturevalue("docker_engine"))
    else:
        engine = request.getfixturevalue("cdi_engine").socket
    parts.need_file("engine", DOCKERD[request.param])
    return request.param, engine


@cache
def words_of(kind: str) -> dict[str, str]:
    """What could be a field's name, by its folded form."""
    found = WORD.findall(DOCKERD[kind].read_bytes())
    return {word.casefold(): word for word in map(bytes.decode, found)}


def post(engine: str, path: str, body: Any) -> tuple[int, str]:
    connection = http.client.HTTPConnection("docker")
    connection.sock = socket.socket(socket.AF_UNIX)
    connection.sock.settimeout(60)
    connection.sock.connect(engine)
    try:
        connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
        reply = connection.getresponse()
        return reply.status, str(json.loads(reply.read())["message"])
    finally:
        connection.close()


def first_refused(engine: str, endpoint: str, path: tuple[str, ...], inner: dict[str, Any]) -> str:
    """The field that the engine names; ``inner`` stands in the object that ``path`` leads to."""
    table, target, known = ENDPOINTS[endpoint]
    body = {**wrapped(table, path, inner), known: NOWHERE}
    status, message = post(engine, target, body)
    assert status >= 400
    named = FIELD.search(message)
    assert named, message
    return named[1].rpartition(".")[2]


@pytest.mark.parametrize(("endpoint", "path"), OBJECTS)
def test_an_engine_decodes_no_field_that_is_on_no_table(
    engine: tuple[str, str], endpoint: str, path: tuple[str, ...]
) -> None:
    kind, socket_path = engine
    table, _, known = ENDPOINTS[endpoint]
    for name in path:
        field = table[name]
        assert field.table is not None
        table = field.table
    of_ours = {name.casefold() for name in table}
    if (endpoint, path) == ("create", ()):
        of_ours |= {name.casefold() for name in (*f.HOST_TABLE, CPUSET)}
    unknown = {word: NOWHERE for folded, word in words_of(kind).items() if folded not in of_ours}
    assert first_refused(socket_path, endpoint, path, unknown) == known, "add it to its table"


def test_the_search_finds_what_an_engine_decodes(engine: tuple[str, str]) -> None:
    kind, socket_path = engine
    words = words_of(kind)
    assert {name.casefold() for name in ("CgroupParent", "PathOnHost", "EndpointsConfig")} <= set(words)
    for path, name in (
        (("HostConfig",), "CgroupParent"),
        (("HostConfig", "Devices"), "PathOnHost"),
        ((), "User"),
    ):
        inner = {**dict.fromkeys(list(words.values())[:1000], None), name.lower(): NOWHERE}
        assert first_refused(socket_path, "create", path, inner).casefold() == name.casefold()
