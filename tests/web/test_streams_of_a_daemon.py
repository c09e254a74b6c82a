"""Streams of a real daemon, as browsers of several users read them through its socket."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from gpushared.web.browser_site import STREAMS_OF_A_USER
from tests.node.daemon import DaemonProcess, make_directory, name, wait_until
from tests.web.streaming import Browser, RefusedStream, StreamReader

pytestmark = pytest.mark.skipif(os.getuid() != 0, reason="only root can become somebody else")
ALICE, BOB = 61051, 61052
LEASES = {"leases": ["Leases/List", {}], "gpus": ["Gpus/List", {}]}
SAY = "echo hello; printf '10%%\\r20%%\\n'; echo error >&2; exec sleep 1000"

Log = Callable[..., Browser]


@contextmanager
def running(engine: str) -> Iterator[DaemonProcess]:
    daemon = DaemonProcess(make_directory(), engine=engine)
    try:
        daemon.start()
        yield daemon
    finally:
        daemon.dispose()


@pytest.fixture(scope="module")
def shared(docker_engine: str) -> Iterator[DaemonProcess]:
    """One daemon with two simulated GPUs for the tests that do not end it."""
    with running(docker_engine) as daemon:
        yield daemon


@pytest.fixture
def browse() -> Iterator[Log]:
    """Open browsers, each logged in as a user."""
    opened: list[Browser] = []

    def browser(daemon: DaemonProcess, uid: int = 0) -> Browser:
        opened.append(Browser(daemon, uid))
        return opened[-1]

    yield browser
    for one in opened:
        one.close()


def first(stream: StreamReader, *names: str) -> StreamReader:
    """Read until the page has these answers."""
    while not set(names) <= stream.answers.keys():
        stream.event()
    return stream


def test_a_lease_shows_on_the_page_from_its_request_to_its_end(shared: DaemonProcess, browse: Log) -> None:
    stream = first(browse(shared).stream(LEASES), "leases", "gpus")
    lease = shared.request("0.25", uid=ALICE)["id"]
    stream.until_states({lease: "reserved"})
    shared.call("Leases/Release", {"lease_id": lease}, uid=ALICE)
    while lease in stream.states():
        stream.event()


def test_what_a_page_has_is_what_the_unary_calls_answer_to_its_user(
    shared: DaemonProcess, browse: Log
) -> None:
    held = shared.hold("0.25", uid=ALICE)
    queued = shared.request("2", uid=BOB)["id"]
    for uid in (0, ALICE, BOB):
        stream = first(browse(shared, uid).stream(LEASES), "leases", "gpus")
        stream.until_states({held["id"]: "active", queued: "queued"})
        while stream.answers["leases"] != shared.call("Leases/List", uid=uid):
            stream.event()  # a sample may have come between the two
        seen = {lease["id"]: lease["container_id"] for lease in stream.answers["leases"]["leases"]}
        assert bool(seen[held["id"]]) is (uid != BOB)
    shared.call("Leases/Stop", {"lease_id": held["id"]})
    shared.call("Leases/Stop", {"lease_id": queued})


def test_unary_answers_name_the_revision_of_the_events(shared: DaemonProcess, browse: Log) -> None:
    browser = browse(shared)
    body = b"{}"
    call = "POST /gpushare.v1.Leases/List HTTP/1.1\r\nContent-Type: application/json\r\n"
    _, headers, _, _ = browser.ask(call, body)
    event = browser.stream(LEASES).event()
    life, state, _ = headers["gpushare-revision"].split(".")
    assert event["revision"].startswith(f"{life}.{state}.")


def test_a_page_reads_the_log_of_a_container_of_its_user(shared: DaemonProcess, browse: Log) -> None:
    lease = shared.hold("0.25", uid=ALICE, command=("sh", "-c", SAY))
    watch = {"log": ["logs", {"lease_id": lease["id"]}]}
    stream = browse(shared, ALICE).stream(watch)
    lines = list[str]()
    while len(lines) < 3:
        lines += stream.until("log", kind="log")["lines"]
    assert sorted(lines) == ["20%", "error", "hello"]
    shared.call("Leases/Stop", {"lease_id": lease["id"], "grace_seconds": 0}, uid=ALICE)
    stream.until("log", end=True)


def test_the_log_of_a_container_begins_again_after_each_of_its_restarts(
    shared: DaemonProcess, browse: Log
) -> None:
    lease = shared.hold("0.25", uid=ALICE, command=("sh", "-c", SAY))
    stream = browse(shared, ALICE).stream({"log": ["logs", {"lease_id": lease["id"]}]})
    stream.until("log", first=True)
    for _ in range(2):
        shared.check("restart", lease["container_id"], uid=ALICE)
        stream.until("log", end=True)
        stream.until("log", first=True)
    shared.call("Leases/Stop", {"lease_id": lease["id"], "grace_seconds": 0}, uid=ALICE)


def test_a_page_is_told_why_a_lease_has_no_log(shared: DaemonProcess, browse: Log) -> None:
    lease = shared.request("0.1", uid=ALICE)
    stream = browse(shared).stream({"log": ["logs", {"lease_id": lease["id"]}]})
    assert "has no container yet" in stream.until("log", kind="trouble")["message"]
    shared.call("Leases/Release", {"lease_id": lease["id"]}, uid=ALICE)
    stream = browse(shared).stream({"log": ["logs", {"lease_id": lease["id"]}]})
    assert "is ended" in stream.until("log", kind="trouble")["message"]


def test_nobody_reads_the_log_of_another_users_container(shared: DaemonProcess, browse: Log) -> None:
    lease = shared.hold("0.25", uid=ALICE, command=("sh", "-c", SAY))
    event = browse(shared, BOB).stream({"log": ["logs", {"lease_id": lease["id"]}]}).event()
    assert (event["kind"], event["code"]) == ("trouble", "permission_denied")
    shared.call("Leases/Stop", {"lease_id": lease["id"], "grace_seconds": 0}, uid=ALICE)


def test_a_page_reads_the_output_of_a_job(shared: DaemonProcess, browse: Log) -> None:
    job = f"job-{name()}"
    options = shared.container_options("--name", job)
    submitted = shared.gpushare("submit", "--gpu", "0.25", *options, "sh", "-c", SAY)
    assert submitted.returncode == 0, submitted.stderr
    stream = browse(shared).stream({"log": ["logs", {"job_id": job}], "job": ["Jobs/Get", {"job_id": job}]})
    lines = list[str]()
    while len(lines) < 3:
        lines += stream.until("log", kind="log")["lines"]
    assert sorted(lines) == ["20%", "error", "hello"]
    assert shared.gpushare("stop", job).returncode == 0


def test_a_user_has_a_bounded_number_of_streams_and_others_have_their_own(
    shared: DaemonProcess, browse: Log
) -> None:
    alice = browse(shared, ALICE)
    streams = [alice.stream(LEASES) for _ in range(STREAMS_OF_A_USER)]
    with pytest.raises(RefusedStream) as refused:
        alice.stream(LEASES)
    assert refused.value.status == 429
    assert refused.value.answer["details"]
    first(browse(shared, BOB).stream(LEASES), "leases")
    streams[0].channel.close()

    def opens() -> bool:
        try:
            alice.stream(LEASES)
        except RefusedStream:
            return False
        return True

    wait_until(opens, "another stream may be opened")


def test_streams_end_at_once_with_the_daemon_and_go_on_after_its_restart(
    docker_engine: str, browse: Log
) -> None:
    with running(docker_engine) as daemon:
        browser = browse(daemon)
        stream = first(browser.stream(LEASES), "leases", "gpus")
        lease = daemon.request("2")["id"]
        stream.until_states({lease: "reserved"})
        assert daemon.terminate() == 0
        stream.read_to_the_end()
        daemon.start()
        again = browser.stream(LEASES, stream.mark)
        again.answers = stream.answers
        other = daemon.request("0.25")["id"]
        again.until_states({other: "queued"})
        assert lease in again.states()


def test_a_daemon_that_is_killed_hangs_up_on_its_pages(docker_engine: str, browse: Log) -> None:
    with running(docker_engine) as daemon:
        stream = first(browse(daemon).stream(LEASES), "leases")
        daemon.signal(signal.SIGKILL)
        daemon.wait()
        stream.read_to_the_end()
