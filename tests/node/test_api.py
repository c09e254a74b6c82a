"""The API over its socket: JSON and gRPC alike, bad requests, waiting, and clients that misbehave."""

from __future__ import annotations

import contextlib
import json
import resource
import select
import signal
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psutil
import pytest

from gpushared.net.limits import UserLimits
from gpushared.node.services.grpc_services import SERVICES
from tests.node.conftest import NewDaemon
from tests.node.daemon import GPUSHARED, DaemonProcess, Json, Refused, acting_as, connected, wait_until
from tests.node.grpc_client import ask

HUGE = "1" * 200_000


# --- two faces, one answer -------------------------------------------------------------------------------


def test_json_and_grpc_give_the_same_answers(lone_daemon: DaemonProcess) -> None:
    """Values, defaults, errors and hints."""
    held = lone_daemon.request("0.25", time="3h", request_id="r1")
    queued = lone_daemon.request("2", time="2h")
    lone_daemon.wait_lease(held["id"], "reserved")
    wait_until(lambda: lone_daemon.lease(held["id"])["memory_wall"], "its settings are made")
    calls: list[tuple[str, Json]] = [
        ("Leases/Get", {"lease_id": held["id"]}),
        ("Leases/Get", {"lease_id": queued["id"]}),
        ("Leases/Get", {"lease_id": "l-none"}),
        ("Leases/Request", {"gpu": "0.25", "request_id": "r1"}),
        ("Leases/Request", {"gpu": "0.5", "request_id": "r1"}),
        ("Leases/Request", {"gpu": "64"}),
        ("Leases/Request", {"gpu": "0.5", "immediate": True, "isolation": "exclusive"}),
        ("Leases/Request", {"gpu": "2", "immediate": True}),
        ("Leases/Request", {"gpu": "a quarter"}),
        ("Leases/Request", {"preset": "nobody"}),
        ("Leases/Wait", {"lease_id": held["id"], "token": "older", "timeout_seconds": 5}),
        ("Leases/Stop", {"lease_id": held["id"], "grace_seconds": -1}),
        ("Leases/Explain", {"lease_id": queued["id"]}),
        ("Leases/Offer", {"gpu": "0.5", "time": "9h"}),
        ("Leases/List", {"ended": True}),
        ("Node/Presets", {}),
    ]
    for call, by_grpc in zip(calls, ask(lone_daemon.socket, calls), strict=True):
        try:
            by_json = lone_daemon.call(*call)
        except Refused as refused:
            by_json = {"code": refused.code, "message": refused.message, "hint": refused.hint}
        assert by_grpc == by_json, call


def test_health_and_reflection_answer_unmodified_clients(lone_daemon: DaemonProcess) -> None:
    whole, leases, services = ask(
        lone_daemon.socket, [("health", {}), ("health", {"service": "gpushare.v1.Leases"}), ("services", {})]
    )
    assert (whole, leases) == ({"status": 1}, {"status": 1})
    ours = {service.full_name for service in SERVICES}
    assert ours <= set(services["names"])


# --- bad requests ----------------------------------------------------------------------------------------

BAD_REQUESTS: list[tuple[str, Any, str]] = [
    ("Leases/Request", {}, "invalid_argument"),
    ("Leases/Request", {"gpu": "-1"}, "invalid_argument"),
    ("Leases/Request", {"gpu": "0"}, "invalid_argument"),
    ("Leases/Request", {"gpu": "nan"}, "invalid_argument"),
    ("Leases/Request", {"gpu": "inf"}, "invalid_argument"),
    ("Leases/Request", {"gpu": "1e3"}, "invalid_argument"),
    ("Leases/Request", {"gpu": "0.5.5"}, "invalid_argument"),
    ("Leases/Request", {"gpu": "½"}, "invalid_argument"),
    ("Leases/Request", {"gpu": "٢"}, "invalid_argument"),
    ("Leases/Request", {"gpu": "\x00"}, "invalid_argument"),
    ("Leases/Request", {"gpu": "\ud800"}, "invalid_argument"),
    ("Leases/Request", {"gpu": HUGE}, "invalid_argument"),
    ("Leases/Request", {"gpu": "3"}, "failed_precondition"),
    ("Leases/Request", {"gpu": "3x0.5"}, "failed_precondition"),
    ("Leases/Request", {"gpu": "0.25", "gpu_memory": "100000g"}, "failed_precondition"),
    ("Leases/Request", {"gpu_memory": "-8g"}, "invalid_argument"),
    ("Leases/Request", {"gpu_memory": "8 parsec"}, "invalid_argument"),
    ("Leases/Request", {"gpu_memory": "9" * 5000}, "invalid_argument"),
    ("Leases/Request", {"gpu_compute": "130%"}, "invalid_argument"),
    ("Leases/Request", {"gpu_compute": "NaN%"}, "invalid_argument"),
    ("Leases/Request", {"gpu": "0.25", "isolation": "exclusive"}, "invalid_argument"),
    ("Leases/Request", {"gpu": "0.25", "isolation": "cosy"}, "invalid_argument"),
    ("Leases/Request", {"gpu": "0.25", "class": "royal"}, "invalid_argument"),
    ("Leases/Request", {"gpu": "0.25", "time": "0s"}, "invalid_argument"),
    ("Leases/Request", {"gpu": "0.25", "time": "tomorrow"}, "invalid_argument"),
    ("Leases/Request", {"gpu": "0.25", "time": "9" * 400 + "d"}, "invalid_argument"),
    ("Leases/Request", {"preset": "nobody's"}, "not_found"),
    ("Leases/Request", {"preset": "ü" * 10_000}, "not_found"),
    ("Leases/Request", {"gpu": "0.25", "request_id": "x" * 129}, "invalid_argument"),
    ("Leases/Request", {"gpu": 0.25}, "invalid_argument"),
    ("Leases/Request", {"gpu": ["0.25"]}, "invalid_argument"),
    ("Leases/Request", {"gpus": "0.25"}, "invalid_argument"),
    ("Leases/Get", {}, "invalid_argument"),
    ("Leases/Stop", {}, "invalid_argument"),
    ("Leases/Get", {"lease_id": "' OR 1=1 --"}, "not_found"),
    ("Leases/Get", {"lease_id": "\ud800"}, "invalid_argument"),
    ("Leases/Get", {"lease_id": HUGE}, "not_found"),
    ("Leases/Release", {"lease_id": "l-none"}, "not_found"),
    ("Leases/Stop", {"lease_id": "l-none"}, "not_found"),
    ("Leases/Stop", {"lease_id": "HELD", "grace_seconds": 3601}, "invalid_argument"),
    ("Leases/Stop", {"lease_id": "HELD", "grace_seconds": 2**31}, "invalid_argument"),
    ("Leases/Wait", {"lease_id": "l-none", "timeout_seconds": 60}, "not_found"),
    ("Leases/Wait", {"lease_id": "HELD", "timeout_seconds": "NaN"}, "invalid_argument"),
    ("Leases/List", {"limit": "many"}, "invalid_argument"),
    ("Simulation/Change", {"gpu_index": 9, "utilization_ratio": 1}, "invalid_argument"),
    ("Simulation/Change", {"utilization_ratio": 7}, "invalid_argument"),
    ("Simulation/Change", {"utilization_ratio": 0.5, "hang_seconds": "NaN"}, "invalid_argument"),
    ("Simulation/Change", {"processes": [{"pid": -1, "memory_bytes": 1}]}, "invalid_argument"),
    ("Simulation/Change", {"processes": [{"pid": 1, "memory_bytes": -1}]}, "invalid_argument"),
    ("Simulation/Change", {"processes": [{"pid": 1, "memory_bytes": 2**50}]}, "invalid_argument"),
]


def test_a_bad_request_gets_one_sentence_and_one_hint_and_changes_nothing(lone_daemon: DaemonProcess) -> None:
    held = lone_daemon.request("0.25")
    wait_until(lambda: lone_daemon.lease(held["id"])["memory_wall"], "its settings are made")
    before = lone_daemon.leases(), gpu_figures(lone_daemon)
    for call, message, code in BAD_REQUESTS:
        body = json.loads(json.dumps(message).replace("HELD", held["id"]))
        try:
            pytest.fail(f"{call} {str(message)[:80]} was answered: {lone_daemon.call(call, body)}")
        except Refused as error:
            refused = error
        case = f"{call} {str(message)[:80]}: {refused}"
        assert refused.code == code, case
        assert 0 < len(refused.message) < 300, case
        assert "\n" not in refused.message, case
        assert 0 < len(refused.hint) < 300, case
        assert refused.status in {400, 404}, case
    assert (lone_daemon.leases(), gpu_figures(lone_daemon)) == before
    assert "Traceback" not in lone_daemon.text()


def gpu_figures(daemon: DaemonProcess) -> list[Json]:
    return [{**gpu, "sampled_at": 0} for gpu in daemon.call("Gpus/List")["gpus"]]


BAD_BODIES: list[tuple[bytes, int]] = [
    (b"{", 400),
    (b"[]", 400),
    (b"null", 400),
    (b"\xff\xfe", 400),
    (b'{"gpu": "0.25", "gpu": "0.5"}', 400),
    (b"[" * 100_000, 400),
    (b'{"gpu": ' + b"[" * 100_000, 400),
    (b'{"limit": ' + b"9" * 5000 + b"}", 400),
    (b'{"gpu": "' + b"x" * 10_000_000 + b'"}', 413),
]


def test_a_body_that_is_no_request_is_refused_and_the_daemon_lives_on(lone_daemon: DaemonProcess) -> None:
    for body, status in BAD_BODIES:
        told, answer = lone_daemon.post("/gpushare.v1.Leases/Request", body)
        assert told == status, body[:40]
        assert json.loads(answer)["message"], body[:40]
    assert lone_daemon.leases() == {}
    assert "Traceback" not in lone_daemon.text()


def test_a_call_that_does_not_exist_is_unimplemented(lone_daemon: DaemonProcess) -> None:
    for name in ("Leases/Steal", "Nobody/Get", "Leases/", "Leases/Get/more"):
        with pytest.raises(Refused) as refused:
            lone_daemon.call(name)
        assert (refused.value.status, refused.value.code) == (404, "unimplemented")


def test_unicode_is_kept_as_it_is(new_daemon: NewDaemon) -> None:
    config = '[presets.small]\ngpu = "0.25"\ndescription = "für alle 🐁"\n'
    daemon = new_daemon(config=config)
    daemon.start()
    (preset,) = daemon.call("Node/Presets")["presets"]
    assert (preset["name"], preset["description"]) == ("small", "für alle 🐁")
    lease = daemon.call("Leases/Request", {"preset": "small", "request_id": "\u202e🐁"})
    assert daemon.call("Leases/Request", {"preset": "small", "request_id": "\u202e🐁"})["id"] == lease["id"]


# --- asking twice, waiting, going away -------------------------------------------------------------------


def test_asking_again_by_the_same_request_id_is_the_same_lease_also_after_a_crash(
    lone_daemon: DaemonProcess,
) -> None:
    """In the queue, reserved, and when it is over."""
    with ThreadPoolExecutor(8) as pool:
        asked = list(pool.map(lambda _: lone_daemon.request("1", request_id="once")["id"], range(32)))
    assert len(set(asked)) == 1
    queued = lone_daemon.request("2", request_id="waits")
    over = lone_daemon.request("0.25", request_id="over")
    lone_daemon.call("Leases/Release", {"lease_id": over["id"]})
    lone_daemon.kill()
    lone_daemon.start()
    again = [lone_daemon.request("1", request_id="once"), lone_daemon.request("2", request_id="waits")]
    assert [one["id"] for one in again] == [asked[0], queued["id"]]
    ended = lone_daemon.request("0.25", request_id="over")
    assert (ended["id"], ended["state"]) == (over["id"], "ended")


def test_a_lease_that_ends_while_it_is_listed_is_listed_once(lone_daemon: DaemonProcess) -> None:
    """The live ones come from memory, those that are over from the disk."""

    def come_and_go() -> None:
        for _ in range(60):
            lease = lone_daemon.request("0.25")
            lone_daemon.call("Leases/Release", {"lease_id": lease["id"]})

    with ThreadPoolExecutor(1) as pool:
        going = pool.submit(come_and_go)
        while not going.done():
            listed = [one["id"] for one in lone_daemon.call("Leases/List", {"ended": True})["leases"]]
            assert len(set(listed)) == len(listed)
        going.result()


def test_a_wait_comes_back_when_what_is_shown_changes_and_not_before(lone_daemon: DaemonProcess) -> None:
    holder = lone_daemon.request("2")
    waiting = lone_daemon.request("1")
    asked = {"lease_id": waiting["id"], "token": waiting["token"], "timeout_seconds": 0.3}
    assert lone_daemon.call("Leases/Wait", asked)["token"] == waiting["token"]
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(lone_daemon.call, "Leases/Wait", {**asked, "timeout_seconds": 60})
        lone_daemon.call("Leases/Release", {"lease_id": holder["id"]})
        assert answer.result(30)["state"] == "reserved"
    past = lone_daemon.call("Leases/Wait", {**asked, "timeout_seconds": 60})
    assert past["state"] == "reserved"


@pytest.mark.parametrize("seconds", [-1, 0, "-Infinity"])
def test_a_wait_without_time_comes_back_at_once(lone_daemon: DaemonProcess, seconds: Any) -> None:
    lone_daemon.request("2")
    waiting = lone_daemon.request("1")
    asked = {"lease_id": waiting["id"], "token": waiting["token"], "timeout_seconds": seconds}
    assert lone_daemon.call("Leases/Wait", asked)["state"] == "queued"


def readable(channels: list[socket.socket]) -> list[socket.socket]:
    """Those that were answered, or hung up on."""
    return select.select(channels, [], [], 0)[0]


def wait_for_ever(daemon: DaemonProcess, lease: Json) -> socket.socket:
    """A client in the middle of a long poll."""
    body = json.dumps({"lease_id": lease["id"], "token": lease["token"], "timeout_seconds": 60}).encode()
    channel = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    channel.connect(str(daemon.socket))
    head = f"POST /gpushare.v1.Leases/Wait HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
    channel.sendall(head.encode() + body)
    return channel


def test_two_hundred_may_wait_and_are_served_in_the_order_they_came(new_daemon: NewDaemon) -> None:
    daemon = new_daemon(config="[queue]\nmax_queued_per_user = 300\n")
    daemon.start()
    holder = daemon.request("2")
    queued = [daemon.request("2") for _ in range(200)]
    waiting = [wait_for_ever(daemon, daemon.lease(lease["id"])) for lease in queued]
    try:
        assert len(daemon.leases()) == 201
        daemon.free_permille()
        assert readable(waiting) == []
        places = [daemon.lease(lease["id"])["waiting"]["position"] for lease in queued]
        assert places == list(range(1, 201))
        daemon.call("Leases/Release", {"lease_id": holder["id"]})
        for channel in waiting:
            channel.settimeout(30)
            assert b"HTTP/1.1 200" in channel.recv(4096)
        assert daemon.lease(queued[0]["id"])["state"] == "reserved"
        assert daemon.lease(queued[1]["id"])["waiting"]["position"] == 1
    finally:
        for channel in waiting:
            channel.close()


def test_whoever_goes_away_leaves_the_queue_and_whoever_waits_stays(new_daemon: NewDaemon) -> None:
    daemon = new_daemon(config="[queue]\norphan_seconds = 1\n")
    daemon.start()
    daemon.request("2")
    gone, stays = daemon.request("1"), daemon.request("1")
    left, waiting = wait_for_ever(daemon, gone), wait_for_ever(daemon, stays)
    left.close()
    wait_until(lambda: gone["id"] not in daemon.leases(), "the queue is left")
    assert daemon.lease(gone["id"])["outcome"]["kind"] == "stopped"
    assert daemon.lease(stays["id"])["state"] == "queued"
    waiting.close()
    wait_until(lambda: stays["id"] not in daemon.leases(), "the queue is left")


def test_a_restart_gives_everybody_the_whole_time_to_come_back(new_daemon: NewDaemon) -> None:
    daemon = new_daemon(config="[queue]\norphan_seconds = 2\n")
    daemon.start()
    daemon.request("2")
    waiting = daemon.request("1")
    daemon.kill()
    threading.Event().wait(2.5)
    daemon.start()
    assert daemon.lease(waiting["id"])["state"] == "queued"
    again = wait_for_ever(daemon, waiting)
    threading.Event().wait(2.5)
    assert daemon.lease(waiting["id"])["state"] == "queued"
    again.close()
    wait_until(lambda: waiting["id"] not in daemon.leases(), "the queue is left")


def test_clients_that_say_nothing_or_half_do_not_keep_others_waiting(lone_daemon: DaemonProcess) -> None:
    halves = [
        b"",
        b"P",
        b"PRI * HT",
        b"POST /gpushare.v1.Leases/List HTTP/1.1\r\nContent-Le",
        b"\x16\x03\x01",
    ]
    silent = []
    for half in halves * 20:
        channel = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        channel.connect(str(lone_daemon.socket))
        channel.sendall(half)
        silent.append(channel)
    assert lone_daemon.leases() == {}
    assert ask(lone_daemon.socket, [("Leases/List", {})])[0]["leases"] == []
    assert len(readable(silent)) < len(silent), "they were answered only after all others were given up"
    for channel in silent:
        channel.close()
    wait_until(lambda: open_sockets(lone_daemon) < 20, "their connections are closed")


def test_one_user_with_a_thousand_connections_does_not_shut_the_others_out(new_daemon: NewDaemon) -> None:
    """Also where the daemon was started from a shell, with its low limit of open files."""
    daemon = new_daemon(command=("prlimit", "--nofile=1024:", str(GPUSHARED)))
    daemon.start()
    silent = [socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) for _ in range(450)]
    with acting_as(61001):
        for channel in silent:
            channel.connect(str(daemon.socket))
            channel.sendall(b"PRI")
    wait_until(lambda: open_sockets(daemon) > 3 * len(silent), "they are all connected")
    assert daemon.leases() == {}
    for channel in silent:
        channel.close()
    wait_until(lambda: open_sockets(daemon) < 20, "their connections are closed")
    assert "Too many open files" not in daemon.text()


def open_sockets(daemon: DaemonProcess) -> int:
    assert daemon.process is not None
    return len(psutil.Process(daemon.process.pid).net_connections("unix"))


def test_a_client_that_never_reads_its_answers_is_not_buffered_without_end(
    lone_daemon: DaemonProcess,
) -> None:
    request = b"POST /gpushare.v1.Gpus/List HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}"
    with connected(lone_daemon.socket, 0) as channel:
        channel.setblocking(False)
        with pytest.raises(BlockingIOError):
            channel.sendall(request * 100_000)
        assert lone_daemon.leases() == {}


# --- signals ---------------------------------------------------------------------------------------------


def test_a_reload_takes_new_rules_and_a_wrong_file_leaves_the_old_ones(lone_daemon: DaemonProcess) -> None:
    path = lone_daemon.directory / "config.toml"
    path.write_text('[presets.small]\ngpu = "0.1"\n[queue]\nmax_queued = 0\n')
    lone_daemon.signal(signal.SIGHUP)
    lone_daemon.wait_notified("READY=1")
    assert [one["name"] for one in lone_daemon.call("Node/Presets")["presets"]] == ["small"]
    lone_daemon.request("2")
    with pytest.raises(Refused) as refused:
        lone_daemon.request("1")
    assert refused.value.code == "resource_exhausted"
    path.write_text("[queue]\nmax_queud = 5\n")
    lone_daemon.signal(signal.SIGHUP)
    lone_daemon.wait_notified("READY=1")
    assert "did you mean" in lone_daemon.text()
    assert [one["name"] for one in lone_daemon.call("Node/Presets")["presets"]] == ["small"]


def test_a_second_daemon_on_the_same_socket_or_journal_is_refused(
    lone_daemon: DaemonProcess, new_daemon: NewDaemon
) -> None:
    """Two would sell the same GPUs twice."""
    for place in ("runtime_dir", "state_dir"):
        second = new_daemon()
        setattr(second, place, getattr(lone_daemon, place))
        second.launch()
        assert second.wait() == {"runtime_dir": 2, "state_dir": 125}[place]
        assert "another gpushared" in second.text()
    assert lone_daemon.leases() == {}


def test_a_stop_answers_those_who_wait_by_hanging_up_and_keeps_their_place(
    lone_daemon: DaemonProcess,
) -> None:
    lone_daemon.request("2")
    waiting = lone_daemon.request("1")
    channel = wait_for_ever(lone_daemon, waiting)
    channel.settimeout(30)
    assert lone_daemon.terminate() == 0
    assert channel.recv(4096) == b""
    channel.close()
    assert not lone_daemon.socket.exists() or not lone_daemon.running
    lone_daemon.start()
    assert lone_daemon.lease(waiting["id"])["state"] == "queued"


@pytest.fixture
def many_files() -> Iterator[None]:
    """Room for the connections of the test itself."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(before[0], min(4096, before[1])), before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.usefixtures("many_files")
def test_the_connection_beyond_the_bound_is_told_why(lone_daemon: DaemonProcess) -> None:
    with contextlib.ExitStack() as stack:
        for _ in range(UserLimits().connections):
            stack.enter_context(connected(lone_daemon.socket, 1001))
        with pytest.raises(Refused, match="you have 1024 connections"):
            wait_until(lambda: not lone_daemon.call("Node/Status", uid=1001), "it is refused")
        assert lone_daemon.call("Node/Status")["caller_uid"] == "0", "others are not shut out"
