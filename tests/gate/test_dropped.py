"""What the engine would ignore never gets there, and hinders nobody, at every endpoint.

The engine here keeps the bytes that it is sent (``fuzz/recording``): no real one shows them.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterator
from typing import Any

import pytest

from gpushared.domain.model.request import Caller
from gpushared.gate.api.endpoints import ROUTES
from gpushared.gate.api.fields import NEWEST
from gpushared.gate.api.routes import Payload, Route, RouteAction
from gpushared.ports import DeviceMechanism, EngineFacts
from tests.gate.fuzz import wire
from tests.gate.fuzz.recorded_gates import RecordedGates
from tests.gate.fuzz.recording import EXEC
from tests.gate.lease_services import FakeLeaseService
from tests.gate.serving import ALICE, ROOT, request

NAMES = {"containers": "mine", "exec": EXEC, "networks": "net", "volumes": "vol"}
BODIES: dict[str, dict[str, Any]] = {
    "/auth": {"username": "x", "password": "y"},
    "/containers/create": {"Image": "x", "HostConfig": {"NetworkMode": "none"}},
    "/containers/{name}/update": {"Memory": 1 << 30},
    "/containers/{name}/exec": {"Cmd": ["true"]},
    "/exec/{name}/start": {"Detach": True},
    "/networks/create": {"Name": "n"},
    "/networks/{name}/connect": {"Container": "mine"},
    "/networks/{name}/disconnect": {"Container": "mine"},
    "/volumes/create": {"Name": "v"},
}
"""What endpoints need that read a JSON body."""
NEEDED = {"/images/create": "fromImage=x:1", "/containers/{name}/rename": "name=y"}
JSON = "Content-Type: application/json"
TRUSTED = {RouteAction.TRUSTED, RouteAction.BUILD}
OPTIONS = {"t": 1, "HostConfig": {"Privileged": True}, "Image": "x"}
"""As dockerode sends the options of a call."""
OLD, NEW = "1.41", f"{NEWEST[0]}.{NEWEST[1] + 1}"


@pytest.fixture
def newer(gates: RecordedGates) -> Iterator[None]:
    """The engine speaks a version that is younger than the tables."""
    gates.lease_service.facts = facts(NEW)
    yield
    gates.lease_service.facts = facts(OLD)


def facts(api_version: str) -> EngineFacts:
    return EngineFacts("x", api_version, False, DeviceMechanism.PLAIN, 1)


def path_of(route: Route) -> str:
    kind = route.path.split("/")[1]
    return re.sub(r"{(name|rest)(\.\.\.)?}", NAMES.get(kind, "x"), route.path)


def served(*payloads: Payload) -> list[Any]:
    """Every endpoint that takes such bodies, for each kind of caller that may ask it."""
    return [
        pytest.param(route, method, caller, id=f"{method} {route.path} {caller.name}")
        for route in ROUTES
        if route.payload in payloads and route.action is not RouteAction.REFUSE
        for method in route.methods
        for caller in (ROOT, ALICE)
        if caller.trusted or route.action not in TRUSTED
    ]


def asked(route: Route, method: str, *query: str, **fields: object) -> bytes:
    needed = [NEEDED[route.path]] if route.path in NEEDED else []
    words = "&".join([*needed, *query])
    body = BODIES.get(route.path)
    raw = b"" if body is None else json.dumps({**body, **fields}).encode()
    target = path_of(route) + (f"?{words}" if words else "")
    return request(method, target, raw, "Connection: close", *([JSON] if raw else []))


def status(answers: bytes) -> int:
    return int(answers.split(b" ", 2)[1])


@pytest.mark.parametrize(("route", "method", "caller"), served(Payload.NONE))
def test_a_body_where_none_belongs_is_dropped(
    gates: RecordedGates, route: Route, method: str, caller: Caller
) -> None:
    """What the engine gets, and what the client, is as without it."""
    plain = gates.talk(asked(route, method), caller)
    raw = json.dumps(OPTIONS).encode()
    bodies = [
        (f"Content-Length: {len(raw)}", raw),
        ("Transfer-Encoding: chunked", b"%x\r\n%b\r\n0\r\n\r\n" % (len(raw), raw)),
    ]
    for framing, body in bodies:
        head = asked(route, method).removesuffix(b"\r\n") + f"{framing}\r\n{JSON}\r\n\r\n".encode()
        told = gates.talk(head + body, caller)
        assert status(told.answers) == status(plain.answers), told.answers
        assert told.reached == plain.reached


@pytest.mark.parametrize(
    ("route", "method", "caller"), [one for one in served(Payload.NONE) if one.values[1] in {"POST", "PUT"}]
)
def test_a_form_where_none_belongs_is_refused(
    gates: RecordedGates, route: Route, method: str, caller: Caller
) -> None:
    """The engine would read it as parameters."""
    form = "Content-Length: 3\r\nContent-Type: application/x-www-form-urlencoded; charset=x\r\n\r\nt=1"
    told = gates.talk(asked(route, method).removesuffix(b"\r\n") + form.encode(), caller)
    assert status(told.answers) == 400
    assert b"a form is not read here" in told.answers
    assert told.reached == []


@pytest.mark.parametrize("caller", [ROOT, ALICE], ids=lambda caller: caller.name)
def test_a_body_where_none_belongs_is_read_up_to_a_bound(gates: RecordedGates, caller: Caller) -> None:
    told = gates.talk(request("POST", "/containers/mine/stop", b"x" * (64 * 1024 + 1)), caller)
    assert status(told.answers) == 413
    assert told.reached == []


@pytest.mark.parametrize("caller", [ROOT, ALICE], ids=lambda caller: caller.name)
@pytest.mark.parametrize("body", [b'{"Binds":["/:/host"]}', b"junkjunk", b'{"detachKeys":"a"}'])
def test_a_start_that_brings_options_is_refused(gates: RecordedGates, caller: Caller, body: bytes) -> None:
    """Engines refuse it too: before API 1.24 it was a HostConfig."""
    told = gates.talk(request("POST", "/containers/mine/start", body, JSON), caller)
    assert status(told.answers) == 400
    assert b"this request takes no body" in told.answers
    assert told.reached == []


@pytest.mark.parametrize(("route", "method", "caller"), served(*Payload))
def test_a_parameter_that_the_engine_does_not_read_is_dropped(
    gates: RecordedGates, route: Route, method: str, caller: Caller
) -> None:
    plain = gates.talk(asked(route, method), caller)
    more = ["Image=x", "HostConfig=%7B%22Privileged%22%3Atrue%7D", "Cmd=a", "Cmd=b", "brand=%0a"]
    told = gates.talk(asked(route, method, *more), caller)
    if route.action in TRUSTED:
        assert told.reached[0] != plain.reached[0], "only trusted callers may ask it: all goes on as it is"
        return
    assert status(told.answers) == status(plain.answers), told.answers
    assert told.reached == plain.reached


@pytest.mark.parametrize(("route", "method", "caller"), served(*Payload))
def test_a_parameter_that_a_newer_engine_may_read_is_refused_or_passed_on(
    gates: RecordedGates, newer: None, route: Route, method: str, caller: Caller
) -> None:
    """No option is lost in silence: trusted callers have what the engine has."""
    told = gates.talk(asked(route, method, "Brand=new"), caller)
    if caller.trusted:
        assert any(b"Brand=new" in raw for raw in told.reached)
    else:
        assert status(told.answers) == 403
        assert [line.text for line in told.lines] == ["the parameter Brand is not for you"]


CLOSED = [
    ("GET", "/containers/json?before=x", "before"),
    ("GET", "/containers/json?since=x", "since"),
    ("POST", "/containers/mine/start?checkpoint=x", "checkpoint"),
    ("POST", "/containers/mine/start?checkpoint-dir=x", "checkpoint-dir"),
    ("GET", "/images/json?filter=x", "filter"),
]


@pytest.mark.parametrize(("method", "target", "name"), CLOSED)
def test_a_parameter_that_engines_read_and_confined_callers_may_not_give_is_refused(
    gates: RecordedGates, method: str, target: str, name: str
) -> None:
    told = gates.talk(request(method, target), ALICE)
    assert f"the parameter {name} is not for you".encode() in told.answers
    assert told.reached == []
    assert target.encode() in b"".join(gates.talk(request(method, target), ROOT).reached)


def test_the_table_of_closed_parameters_is_tried_in_full() -> None:
    assert {name for route in ROUTES for name in route.closed} == {name for _, _, name in CLOSED}


WITH_JSON = [one for one in served(Payload.STREAM) if one.values[0].path in BODIES]
READ = {RouteAction.CREATE, RouteAction.UPDATE, RouteAction.EXEC_CREATE}
"""Whose bodies the gate reads for trusted callers as well."""


@pytest.mark.parametrize(("route", "method", "caller"), WITH_JSON)
def test_a_field_that_the_engine_does_not_read_is_dropped(
    gates: RecordedGates, route: Route, method: str, caller: Caller
) -> None:
    plain = gates.talk(asked(route, method), caller)
    more: dict[str, Any] = {"platform": "linux", "Brand": {"HostConfig": {"Privileged": True}}, "_query": [1]}
    if route.action is RouteAction.CREATE:
        more["name"] = "x"  # elsewhere it is another spelling of a field
    told = gates.talk(asked(route, method, **more), caller)
    assert status(told.answers) == status(plain.answers) < 300, told.answers
    if not caller.trusted or route.action in READ:
        assert told.reached == plain.reached


@pytest.mark.parametrize(
    ("route", "method", "caller"),
    [one for one in WITH_JSON if one.values[2] is ALICE or one.values[0].action in READ],
)
def test_a_field_that_a_newer_engine_may_read_is_refused(
    gates: RecordedGates, newer: None, route: Route, method: str, caller: Caller
) -> None:
    told = gates.talk(asked(route, method, Brand="new"), caller)
    assert status(told.answers) == 403
    assert b"Brand is no field that gpushared knows" in told.answers
    assert not any(raw.startswith(b"POST") for raw in told.reached)


@pytest.mark.parametrize("facts_of", [lambda: facts(""), lambda: facts("nightly"), lambda: facts(NEW)])
@pytest.mark.parametrize("caller", [ROOT, ALICE], ids=lambda caller: caller.name)
def test_an_engine_that_does_not_say_its_version_may_know_more(
    gates: RecordedGates, caller: Caller, facts_of: Any
) -> None:
    gates.lease_service.facts = facts_of()
    try:
        told = gates.talk(request("POST", "/containers/create", b'{"Image":"x","Brand":1}'), caller)
    finally:
        gates.lease_service.facts = facts(OLD)
    assert status(told.answers) == 403


MEANT = [
    ("/containers/create", '{"Image":"x","hostconfig":{"Privileged":true}}', "is spelled HostConfig"),
    (
        "/containers/create",
        '{"Image":"x","HostConfig":{"bind\\u017f":["/:/x"]}}',
        "is spelled HostConfig.Binds",
    ),
    ("/containers/create", '{"Image":"x","Privileged":true}', "stands at the top level"),
    ("/containers/create", '{"Image":"x","Cpuset":"0"}', "stands at the top level"),
    ("/containers/create", '{"Image":"x","cpuset":"0"}', "is spelled Cpuset"),
    ("/containers/create", '{"Image":"x","Brand":1,"Brand":2}', "stands twice"),
    ("/containers/create", '{"Image":"x"}{"Brand":1}', "is not the JSON"),
    ("/containers/mine/update", '{"restartpolicy":{"Name":"always"}}', "is spelled RestartPolicy"),
    ("/containers/mine/exec", '{"Cmd":["a"],"privileged":true}', "is spelled Privileged"),
    ("/containers/mine/exec", '{"Cmd":["a"],"DetachKeys":"a","detachKeys":""}', "stands there twice"),
    ("/containers/mine/exec", '{"Cmd":["a"],"detachkeys":""}', "is spelled DetachKeys"),
]


@pytest.mark.parametrize("caller", [ROOT, ALICE], ids=lambda caller: caller.name)
@pytest.mark.parametrize(("path", "body", "words"), MEANT)
def test_what_the_engine_would_read_otherwise_is_refused_and_not_dropped(
    gates: RecordedGates, caller: Caller, path: str, body: str, words: str
) -> None:
    told = gates.talk(request("POST", path, body.encode(), JSON), caller)
    assert status(told.answers) == 400, told.answers
    assert words.encode() in told.answers
    assert not any(raw.startswith(b"POST") for raw in told.reached)


@pytest.mark.parametrize("caller", [ROOT, ALICE], ids=lambda caller: caller.name)
def test_a_clients_own_spelling_is_sent_as_the_engine_describes_it(
    gates: RecordedGates, caller: Caller
) -> None:
    body = b'{"Cmd":["true"],"detachKeys":"ctrl-a"}'
    told = gates.talk(request("POST", "/containers/mine/exec", body, JSON), caller)
    sent = wire.read(next(raw for raw in told.reached if raw.startswith(b"POST")))
    assert json.loads(sent.body) == {"Cmd": ["true"], "DetachKeys": "ctrl-a"}


def test_what_was_dropped_is_named_in_the_log_without_values(
    gates: RecordedGates, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "gpushared.gate")
    body = json.dumps({"Image": "x", **{f"Brand{number}": "secret" for number in range(30)}}).encode()
    gates.talk(request("POST", "/containers/create?Brand=secret", body, JSON), ROOT)
    gates.talk(request("POST", "/containers/mine/stop", b'{"t":"secret"}', JSON), ROOT)
    first = ", ".join(f"Brand{number}" for number in range(20))
    assert [line.getMessage() for line in caplog.records if line.name.startswith("gpushared.gate")] == [
        "the engine does not read Brand of /containers/create",
        f"the engine does not read {first} and 10 more of /containers/create",
        "the engine does not read a body of POST /containers/mine/stop, 14 bytes",
    ]


def test_a_new_lease_service_is_of_an_engine_that_the_tables_know() -> None:
    assert FakeLeaseService().facts.api_version == OLD
