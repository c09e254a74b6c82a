"""Any bytes on the gate's socket: what the engine gets is one proper request, and the one that was judged."""

from __future__ import annotations

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushared.domain.model.request import Caller
from gpushared.gate.api.routes import parse_target
from gpushared.storage.audit.line import AuditLine
from tests.gate.fuzz import wire
from tests.gate.fuzz.recorded_gates import Outcome, RecordedGates
from tests.gate.fuzz.recording import CONTAINER, MARK
from tests.gate.fuzz.requests import streams
from tests.gate.fuzz.rig import fuzzed
from tests.gate.serving import ALICE, ROOT, request

LOOKS = {"GET", "HEAD"}
OF_THE_CLIENTS_CONNECTION = {b"expect", b"te", b"trailer", b"keep-alive", b"proxy-connection"}


def check(outcome: Outcome, caller: Caller) -> None:
    """The oracle."""
    changes = 0
    for raw in outcome.reached:
        if not raw:
            continue  # the client went away before its request was passed on
        sent = _request_of(raw)
        target = parse_target(sent.target)
        if caller is ROOT or sent.method not in LOOKS:  # look-ups of the gate's own write a blank otherwise
            assert target.encode() == sent.target, "the engine is given the canonical form"
        assert not OF_THE_CLIENTS_CONNECTION & {name for name, _ in sent.headers}
        if sent.method in LOOKS:
            continue
        changes += 1
        assert _judged(outcome, sent), f"{sent} was not what was judged: {outcome.judged}"
        assert _plain(sent.target) in {_plain(each.target.encode()) for each in outcome.judged if each.target}
    let_through = sum(not _is_refused(line) for line in outcome.lines) + _silent(outcome)
    assert changes <= let_through, "no refused one arrives"


def _request_of(raw: bytes) -> wire.WireRequest:
    upgraded = b"\r\nupgrade: " in raw.partition(b"\r\n\r\n")[0].lower()
    try:
        return wire.read(raw, upgraded=upgraded)
    except ValueError as error:
        raise AssertionError(f"the engine got {raw!r}: {error}") from error


def _judged(outcome: Outcome, sent: wire.WireRequest) -> bool:
    """Whether a body that reaches the engine was judged; one where none belongs is dropped."""
    if not sent.body:
        return any(each.method == sent.method for each in outcome.judged)
    digest = hashlib.sha256(sent.body).hexdigest()
    told = {line.digest for line in outcome.lines if line.method == sent.method and not _is_refused(line)}
    return digest in told or digest in {
        each.streamed for each in outcome.judged if each.method == sent.method
    }


def _is_refused(line: AuditLine) -> bool:
    return bool(line.code)


def _silent(outcome: Outcome) -> int:
    """Requests that leave no line, because they change nothing."""
    paths = [each.target.path for each in outcome.judged if each.target]
    return sum(path.endswith(("/wait", "/resize", "/auth")) for path in paths)


def _plain(target: bytes) -> bytes:
    return target.replace(CONTAINER.encode(), b"mine").partition(b"?")[0]


@pytest.mark.parametrize("caller", [ROOT, ALICE], ids=lambda caller: caller.name)
@fuzzed(250)
@given(raw=streams())
def test_what_reaches_the_engine_is_one_proper_request_and_the_one_that_was_judged(
    gates: RecordedGates, caller: Caller, raw: bytes
) -> None:
    check(gates.talk(raw, caller), caller)


@pytest.mark.parametrize("caller", [ROOT, ALICE], ids=lambda caller: caller.name)
@fuzzed(60)
@given(raw=st.binary(max_size=300))
def test_noise_reaches_nobody(gates: RecordedGates, caller: Caller, raw: bytes) -> None:
    assert gates.talk(raw, caller).reached == []


def test_the_oracle_sees_what_passes(gates: RecordedGates) -> None:
    """A request that is let through is recorded, judged, answered by the engine and told to the audit."""
    body = b'{"Image":"x"}'
    raw = request("POST", "/v1.41/containers/create", body)
    for caller in (ROOT, ALICE):
        outcome = gates.talk(raw, caller)
        created = wire.read(outcome.reached[-1])
        assert (created.method, created.target) == ("POST", b"/v1.41/containers/create")
        assert [line.digest for line in outcome.lines] == [hashlib.sha256(created.body).hexdigest()]
        assert MARK.encode() in outcome.answers
        check(outcome, caller)


@pytest.mark.parametrize(
    "raw",
    [
        b"GET /info HTTP/1.1\r\nHost: x\r\n\r\nGET / HTTP/1.1\r\n\r\n",
        b"GET /info HTTP/1.1\r\n\r\n",
        b"GET /info HTTP/1.1\nHost: x\n\n",
        b"GET /info HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\na",
        b"GET /info HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"GET /info HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n1;x\r\na\r\n0\r\n\r\n",
        b"GET /info HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nX: y\r\n\r\n",
        b"GET /in f HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET /info HTTP/1.1\r\nHost: x\r\n folded: y\r\n\r\n",
        b"GET /info HTTP/1.1\r\nHost : x\r\n\r\n",
    ],
)
def test_the_strict_reader_takes_nothing_that_could_be_read_in_two_ways(raw: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        wire.read(raw)
