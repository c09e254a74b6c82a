"""The client's own HTTP against a strict server, and against servers that misbehave."""

from __future__ import annotations

import json
import threading
from dataclasses import dataclass
from pathlib import Path

import pytest

from gpushared.client import Client, ConnectionLost, socket_path
from gpushared.client.http import NotOurDaemon, exchange
from gpushared.domain.model import errors
from tests.cli.standin import HANG_UP, Reply, StandIn, ok, refusal

BODY = json.dumps({"version": "1.2.3", "node": "n" * 70_000}).encode()


@pytest.mark.parametrize(
    "reply",
    [
        pytest.param(Reply(BODY), id="with a length"),
        pytest.param(Reply(BODY, chunks=1), id="in one chunk"),
        pytest.param(Reply(BODY, chunks=9), id="in many chunks"),
        pytest.param(Reply(BODY, length=False), id="until the connection ends"),
        pytest.param(Reply(BODY, informational=True), id="after an informational answer"),
    ],
)
def test_an_answer_is_read_however_it_is_framed(standin: StandIn, reply: Reply) -> None:
    """Length, chunks and end of connection all bring the same body."""
    standin.answers["Node/Status"] = reply
    status = Client(standin.host).status()
    assert (status.version, len(status.node)) == ("1.2.3", 70_000)


def test_a_call_is_a_post_of_json(standin: StandIn) -> None:
    """The request is what the Connect protocol's unary form asks for."""
    standin.answers["Leases/Get"] = ok({"id": "l-1"})
    Client(standin.host).get("naïve")
    (call,) = standin.calls
    assert (call.method, call.target, call.body) == ("POST", "/gpushare.v1.Leases/Get", {"lease_id": "naïve"})
    assert call.headers["content-type"] == "application/json"


@dataclass(frozen=True)
class Broken:
    """Bytes that are no answer, and what they are called."""

    raw: bytes
    error: type[errors.GpushareError]


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(Broken(b"", ConnectionLost), id="nothing"),
        pytest.param(Broken(b"HTTP/1.1 200 OK\r\nConte", ConnectionLost), id="half a head"),
        pytest.param(
            Broken(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{}", ConnectionLost), id="half a body"
        ),
        pytest.param(
            Broken(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n{", ConnectionLost),
            id="half a chunk",
        ),
        pytest.param(Broken(b"SSH-2.0-OpenSSH\r\n\r\n", NotOurDaemon), id="another protocol"),
        pytest.param(
            Broken(b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n", NotOurDaemon), id="negative length"
        ),
        pytest.param(
            Broken(b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n", NotOurDaemon),
            id="huge length",
        ),
        pytest.param(
            Broken(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n", NotOurDaemon),
            id="no chunk size",
        ),
        pytest.param(Broken(b"HTTP/1.1 200 OK\r\n" + b"A: b\r\n" * 30_000, NotOurDaemon), id="endless head"),
        pytest.param(Broken(b"H" * 300_000, NotOurDaemon), id="endless line"),
        pytest.param(Broken(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n[]", NotOurDaemon), id="no object"),
        pytest.param(Broken(b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n{", NotOurDaemon), id="no JSON"),
    ],
)
def test_a_broken_answer_is_an_error_of_our_tree(standin: StandIn, case: Broken) -> None:
    """A server that says nonsense, or dies amid its answer, never shows as a foreign exception."""
    standin.answers["Node/Status"] = Reply(raw=case.raw)
    with pytest.raises(errors.GpushareError) as caught:
        Client(standin.host).status()
    assert type(caught.value) is case.error


def test_a_hanging_daemon_ends_in_a_time_out(standin: StandIn) -> None:
    """A call never waits longer than its time."""
    release = threading.Event()
    standin.answers["Leases/Release"] = Reply(hold=release)
    with pytest.raises(errors.TimedOut):
        Client(standin.host).release("l-1", answer_seconds=0.05)
    release.set()


def test_a_trickle_of_bytes_does_not_prolong_the_time(standin: StandIn) -> None:
    """The time counts for the whole answer: each byte comes soon, but the last one much too late."""
    standin.answers["/"] = Reply(b"x" * 100_000, drip_seconds=0.01)
    with pytest.raises(errors.TimedOut):
        exchange(str(standin.path), "GET", "/", timeout_seconds=0.2)


@pytest.mark.parametrize(
    ("status", "code", "error"),
    [
        (400, "invalid_argument", errors.RequestError),
        (400, "failed_precondition", errors.StateConflict),
        (404, "not_found", errors.NotFound),
        (403, "permission_denied", errors.PermissionRefused),
        (429, "resource_exhausted", errors.LimitReached),
        (503, "unavailable", errors.Unavailable),
        (504, "deadline_exceeded", errors.TimedOut),
        (500, "internal", errors.GpushareError),
        (501, "unimplemented", errors.Unimplemented),
        (500, "a_code_of_the_future", errors.GpushareError),
    ],
)
def test_an_error_of_the_daemon_comes_back_as_the_error_it_was(
    standin: StandIn, status: int, code: str, error: type[errors.GpushareError]
) -> None:
    """Code, sentence and hint survive the way through JSON."""
    standin.answers["Leases/Get"] = refusal(status, code, "no", "do that")
    with pytest.raises(errors.GpushareError) as caught:
        Client(standin.host).get("l-1")
    assert (type(caught.value), caught.value.message, caught.value.hint) == (error, "no", "do that")


def test_a_request_that_can_never_fit_is_told_from_one_at_the_wrong_moment(standin: StandIn) -> None:
    """A failed precondition of a request means that this node could not grant it even when empty."""
    standin.answers["Leases/Request"] = refusal(400, "failed_precondition", "too big", "ask for less")
    with pytest.raises(errors.NeverFits, match="too big"):
        Client(standin.host).request(request_id="r", gpu="9")


def test_another_server_on_the_socket_is_named(standin: StandIn) -> None:
    """Docker's own socket answers with errors too, but not with ours."""
    standin.answers["Gpus/List"] = Reply(b'{"message": "page not found"}', status=404)
    with pytest.raises(errors.Unavailable, match="is not gpushared") as caught:
        Client(standin.host).gpus()
    assert "GPUSHARE_HOST" in caught.value.hint


def test_a_missing_socket_says_what_to_look_at(tmp_path: Path) -> None:
    with pytest.raises(errors.DaemonUnavailable, match="there is no socket") as caught:
        Client(f"unix://{tmp_path}/none").status()
    assert "systemctl status gpushared" in caught.value.hint
    assert "GPUSHARE_HOST" in caught.value.hint


def test_a_dead_socket_says_that_nobody_listens(standin: StandIn) -> None:
    standin.go_away()
    with pytest.raises(errors.DaemonUnavailable, match="nobody listens") as caught:
        Client(standin.host).status()
    assert not isinstance(caught.value, ConnectionLost)


def test_a_hang_up_is_a_lost_connection(standin: StandIn) -> None:
    """Callers may ask again with the same request id: they can tell it from nobody being there."""
    standin.answers["Leases/Request"] = HANG_UP
    with pytest.raises(ConnectionLost):
        Client(standin.host).request(request_id="r", gpu="1")


@pytest.mark.parametrize(
    "host", ["tcp://localhost:1", "/run/x.sock", "unix://relative", "unix://", "unix:///" + "x" * 200]
)
def test_a_host_that_is_no_unix_socket_is_a_mistake_in_the_configuration(host: str) -> None:
    with pytest.raises(errors.ConfigError) as caught:
        socket_path(host)
    assert caught.value.hint
    assert len(str(caught.value)) < 400


def test_the_host_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUSHARE_HOST", "unix:///tmp/here.sock")
    assert socket_path() == "/tmp/here.sock"
    monkeypatch.setenv("GPUSHARE_HOST", "")
    assert socket_path() == "/run/gpushared/gpushared.sock"
