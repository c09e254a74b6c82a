"""Any path: what the gate takes it for is what the engine serves."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushared.gate.api.endpoints import match_route
from gpushared.gate.api.routes import parse_target
from gpushared.gate.docker_gate import Gate
from tests.gate.fuzz.rig import Rig, fuzzed
from tests.gate.lease_services import FakeLeaseService
from tests.gate.serving import ROOT, Connections, Reply, ServedSocket, ask, request, serving_gate

NAME = "fuzzed-nobody"
"""Nothing is called so: whatever is asked of it changes nothing."""
WORDS = [
    NAME,
    NAME,
    "containers",
    "containers",
    "images",
    "networks",
    "volumes",
    "exec",
    "json",
    "json",
    "info",
    "version",
    "_ping",
    "start",
    "create",
    "history",
    "logs",
    "top",
    "events",
    "v1.41",
    "v1.40",
    "v1.99",
    "v1",
    "",
    ".",
    "..",
    "%2e%2e",
    "%2f",
    f"{NAME}%2Fjson",
    f"{NAME}%252Fjson",
    f"{NAME}%00",
    f"{NAME}%0a",
    f"{NAME}%20",
    f"{NAME};a=b",
    f"{NAME}:json",
    f"{NAME}@sha256:0",
    f"{NAME}%3Fall=1",
    f"{NAME}%23x",
    "JSON",
    "%6ason",
    "json%2e",
    "js%C3%B6n",
    "js%c3on",
]
TAILS = ["", "", "", "/", "?all=1", "?all=%31&all=0", "?", "#x", "?a=1;b=2", "//"]
FORMS = ["/", "/", "/", "/", "/v1.41/", "//", "/./", "http://docker/", "http:///", "docker/", "/v1.41/v1.40/"]
NO_PAGE = b"page not found"
UNDECIDED = {301, 400, 405}
"""The engine's own: it sends the client elsewhere, cannot read the path, or knows it by another method."""


@st.composite
def targets(draw: st.DrawFn) -> str:
    words = draw(st.lists(st.sampled_from(WORDS), min_size=1, max_size=4))
    return draw(st.sampled_from(FORMS)) + "/".join(words) + draw(st.sampled_from(TAILS))


class GateAndEngine(Rig):
    """The engine's own socket and a gate before it."""

    def __init__(self, engine: str) -> None:
        super().__init__()
        self._engine = engine

    async def open(self) -> None:
        serving = serving_gate(Gate(self._engine, FakeLeaseService()), ROOT)
        self._gate = await self.stack.enter_async_context(serving)
        self._direct = ServedSocket(Path(self._engine), Connections())

    def both(self, method: str, target: str) -> tuple[Reply, Reply]:
        """What the gate answers, and what the engine itself does."""

        async def ask_both() -> tuple[Reply, Reply]:
            raw = request(method, target, b"", "Connection: close")
            return await ask(self._gate, raw), await ask(self._direct, raw)

        return self.runner.run(ask_both())


@pytest.fixture(scope="module")
def gate_and_engine(docker_engine: str) -> Iterator[GateAndEngine]:
    with GateAndEngine(docker_engine) as gate_and_engine:
        yield gate_and_engine


@fuzzed(150)
@given(method=st.sampled_from(["GET", "GET", "POST", "DELETE"]), target=targets())
def test_a_path_is_the_same_endpoint_for_the_gate_and_for_the_engine(
    gate_and_engine: GateAndEngine, method: str, target: str
) -> None:
    if "events" in target or (method == "POST" and NAME not in target):
        return  # it would never end, or make something
    ours, theirs = gate_and_engine.both(method, target)
    if is_refused_by_us(ours):
        return
    parsed = parse_target(target.encode())
    assert match_route(method, parsed.path) is not None
    assert NO_PAGE not in ours.body, f"{parsed} is no endpoint of the engine"
    if theirs.status not in UNDECIDED and NO_PAGE not in theirs.body:
        assert ours.status == theirs.status
        assert words(ours) == words(theirs)


def is_refused_by_us(reply: Reply) -> bool:
    return "api-version" not in reply.headers and reply.status != 200


def words(reply: Reply) -> object:
    """What is said, without what changes from one look at the machine to the next."""
    if reply.status == 200:
        found = json.loads(reply.body) if reply.body.startswith((b"{", b"[")) else reply.body
        return sorted(found) if isinstance(found, dict) else type(found)
    return reply.body


def test_the_gate_and_the_engine_are_both_asked(gate_and_engine: GateAndEngine) -> None:
    for target in ("/info", "/v1.41/info", f"/containers/{NAME}/json"):
        ours, theirs = gate_and_engine.both("GET", target)
        assert not is_refused_by_us(ours) or ours.status == 404
        assert (ours.status, words(ours)) == (theirs.status, words(theirs))
