"""What a program's client decides without a network: requests, addresses, patience, where reading goes on."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import pytest

from gpushared.api.v1 import jobs_pb2, leases_pb2
from gpushared.api.v1.messages import Job
from gpushared.cli.submit import submit
from gpushared.client import pipeline
from gpushared.client.http import ConnectionLost
from gpushared.client.pipeline import AsyncPool, JobWarning, Pool
from gpushared.client.pipeline.job_request import JobRequest, Mount
from gpushared.client.pipeline.pool_address import find_pool, pool_of
from gpushared.client.pipeline.progress import JobWatch, Position
from gpushared.client.retries import FIRST_SECONDS, RetryPatience
from gpushared.client.submit_parameters import JOB_PARAMETERS, LEASE_PARAMETERS, SUBMIT_PARAMETERS
from gpushared.domain.model.errors import (
    ConfigError,
    GpushareError,
    NeverFits,
    NotFound,
    RequestError,
    StateConflict,
    TimedOut,
)
from gpushared.pool.trust.authority import Authority

WORDS = ["sh", "-c", "echo $PART"]
AWAY = ConnectionLost("the pool does not answer")


@pytest.fixture
def anchors(tmp_path: Path) -> Path:
    """The authority of a pool named lab, as a file."""
    file = tmp_path / "pool-ca.pem"
    file.write_bytes(Authority.create(tmp_path / "ca", "lab", time.time()).anchors_pem)
    return file


@pytest.fixture
def token(tmp_path: Path) -> Path:
    file = tmp_path / "token"
    file.write_text("gsp_one\n")
    return file


# --- requests


@pytest.mark.parametrize("error", [ConnectionLost, NeverFits, TimedOut])
def test_programs_import_the_errors_of_a_wait_from_where_they_import_the_pool(
    error: type[GpushareError],
) -> None:
    assert getattr(pipeline, error.__name__) is error


def test_a_request_becomes_the_body_that_docker_takes() -> None:
    request = JobRequest(
        "busybox", WORDS, env={"PART": "7"}, mounts=[Mount("/data", "/in", read_only=True)], workdir="/in"
    )
    assert json.loads(request.message("r").create_body) == {
        "Image": "busybox",
        "Cmd": WORDS,
        "Env": ["PART=7"],
        "WorkingDir": "/in",
        "HostConfig": {
            "Mounts": [{"Type": "bind", "Source": "/data", "Target": "/in", "ReadOnly": True}],
        },
    }


def test_a_command_of_one_text_is_divided_as_a_shell_would() -> None:
    assert JobRequest("busybox", "sh -c 'echo $PART'").create_body()["Cmd"] == WORDS


def test_a_body_of_ones_own_is_sent_as_it_is_and_names_the_image() -> None:
    message = JobRequest(body={"Image": "busybox", "Tty": True}, gpu=0.5).message("r")
    assert (json.loads(message.create_body), message.image) == ({"Image": "busybox", "Tty": True}, "busybox")
    assert message.lease.gpu == "0.5"


def test_all_that_is_asked_of_the_pool_is_in_the_message() -> None:
    request = JobRequest(
        "busybox", gpu="0.25", lease_class="build", after=["a"], after_ok=["b"], retries=2, requeue=False
    )
    message = request.message("mine", "0-3")
    assert (message.request_id, message.array, message.pool, message.retries) == ("mine", "0-3", True, 2)
    assert [(one.job_id, one.ok) for one in message.after] == [("a", False), ("b", True)]
    assert getattr(message.lease, "class") == "build"
    assert not message.requeue


@pytest.mark.parametrize(
    "request_",
    [
        pytest.param(JobRequest(), id="no image"),
        pytest.param(JobRequest("busybox", "echo 'it"), id="an open quote"),
        pytest.param(JobRequest(command=["true"], body={"Image": "busybox"}), id="a body and its parts"),
    ],
)
def test_a_request_that_makes_no_sense_is_refused_before_it_is_sent(request_: JobRequest) -> None:
    with pytest.raises(RequestError) as refused:
        request_.message("r")
    assert refused.value.hint


# --- addresses


@pytest.mark.parametrize(
    ("address", "target"),
    [
        ("dgx", "dgx:7440"),
        ("dgx:99", "dgx:99"),
        ("[::1]", "[::1]:7440"),
        ("[::1]:99", "[::1]:99"),
        ("192.0.2.1", "192.0.2.1:7440"),
    ],
)
def test_a_coordinator_is_asked_by_tls_under_the_name_of_its_pool(
    address: str, target: str, anchors: Path, token: Path
) -> None:
    found = find_pool(address, ca_file=anchors, token_file=token)
    assert (found.target, found.anchors) == (target, anchors.read_bytes())
    assert found.server_name == "coordinator.lab.gpushare.internal"
    assert found.metadata() == (("authorization", "Bearer gsp_one"),)


def test_the_variables_are_taken_where_nothing_is_given(
    monkeypatch: pytest.MonkeyPatch, anchors: Path, token: Path
) -> None:
    monkeypatch.setenv("GPUSHARE_POOL", "dgx")
    monkeypatch.setenv("GPUSHARE_POOL_CA", str(anchors))
    monkeypatch.setenv("GPUSHARE_POOL_TOKEN_FILE", str(token))
    assert find_pool().target == "dgx:7440"
    monkeypatch.delenv("GPUSHARE_POOL")
    monkeypatch.setenv("GPUSHARE_HOST", "unix:///run/node.sock")
    assert find_pool() == find_pool("unix:///run/node.sock")
    assert (find_pool().target, find_pool().credentials, find_pool().metadata()) == (
        *("unix:/run/node.sock", None),
        (),
    )


def test_a_token_that_is_replaced_is_taken_at_the_next_call(anchors: Path, token: Path) -> None:
    found = find_pool("dgx", ca_file=anchors, token_file=token)
    token.write_text("gsp_two")
    assert found.metadata() == (("authorization", "Bearer gsp_two"),)


def test_a_rotated_authority_has_both_anchors_and_one_name(anchors: Path) -> None:
    assert pool_of(anchors.read_bytes() * 2) == "lab"


@pytest.mark.parametrize("what", ["no file", "no text", "no token", "nothing", "no port"])
def test_what_is_wrong_is_said_at_once_with_what_to_do(what: str, anchors: Path, token: Path) -> None:
    match what:
        case "no file":
            anchors.unlink()
        case "no text":
            anchors.write_bytes(b"\xff")
        case "no token":
            token.write_text("\n")
        case "nothing":
            anchors.write_text("")
    with pytest.raises((ConfigError, RequestError)) as refused:
        find_pool("dgx:x" if what == "no port" else "dgx", ca_file=anchors, token_file=token)
    assert refused.value.hint


def test_the_commands_do_not_import_grpc() -> None:
    """It takes longer than a whole listing."""
    code = "import gpushared.client, gpushared.client.jobs, sys; sys.exit('grpc' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# --- patience


def test_it_asks_more_and_more_rarely_until_the_time_is_over() -> None:
    patience = RetryPatience(100.0, is_known=True)
    pauses = [patience.pause_seconds(AWAY, 0.0) for _ in range(10)]
    assert pauses[0] <= 0.2
    assert 2.5 <= pauses[-1] <= 5.0
    assert patience.pause_seconds(TimedOut("late"), 99.0)
    with pytest.raises(ConnectionLost):
        patience.pause_seconds(AWAY, 100.0)


def test_an_answer_makes_it_patient_again() -> None:
    patience = RetryPatience(100.0, is_known=True)
    patience.pause_seconds(AWAY, 0.0)
    patience.answered()
    assert patience.pause_seconds(AWAY, 150.0) <= 0.2


def test_who_never_answered_is_not_waited_for_long() -> None:
    patience = RetryPatience(100.0, is_known=False)
    patience.pause_seconds(AWAY, 0.0)
    with pytest.raises(ConnectionLost):
        patience.pause_seconds(AWAY, FIRST_SECONDS)


@pytest.mark.parametrize("error", [NotFound("no"), StateConflict("no"), RequestError("no")])
def test_what_would_be_said_again_is_not_asked_again(error: GpushareError) -> None:
    with pytest.raises(type(error)):
        RetryPatience(100.0, is_known=True).pause_seconds(error, 0.0)


# --- where reading goes on


def job(state: str = "running", attempt: int = 1, token: str = "") -> Job:
    return Job({"id": "j", "state": state, "attempt": attempt, "token": token})


def test_a_watcher_tells_each_change_once_over_all_connections() -> None:
    watched = JobWatch()
    assert [watched.news(job(token=token)) for token in ("a", "a", "b", "b", "a")] == [
        *(True, False, True, False, True),
    ]


def test_a_reader_goes_on_where_the_connection_was_lost() -> None:
    position = Position(job(), tail=0)
    assert position.news(b"one two ") == b"one two "
    position.resume(job())
    assert [position.news(piece) for piece in (b"one", b" two th", b"ree")] == [b"", b"th", b"ree"]
    position.resume(job())
    assert position.news(b"one two three four") == b" four"


def test_the_output_of_another_attempt_is_read_from_its_beginning() -> None:
    position = Position(job(), tail=0)
    position.news(b"first")
    position.resume(job(attempt=2))
    assert position.news(b"second") == b"second"


def test_the_last_lines_are_not_guessed_again() -> None:
    position = Position(job(), tail=3)
    position.resume(job())
    position.news(b"some")
    with pytest.raises(StateConflict, match="tail=0"):
        position.resume(job())


@pytest.mark.parametrize(
    ("after", "complete"),
    [
        (job(), False),
        (job("unknown"), False),
        (job("succeeded"), True),
        (job("queued"), True),
        (job(attempt=2), True),
    ],
)
def test_output_is_complete_when_its_attempt_no_longer_runs(after: Job, complete: bool) -> None:
    assert Position(job(), tail=0).is_complete(after) is complete


def test_what_was_read_to_the_end_and_removed_then_is_complete() -> None:
    position = Position(job(), tail=0)
    assert not position.all_was_read(job("succeeded"), StateConflict("removed"))
    position.news(b"all")
    assert position.all_was_read(job("succeeded"), StateConflict("removed"))
    assert not position.all_was_read(job(), StateConflict("not yet"))
    assert not position.all_was_read(job("succeeded"), AWAY)


# --- the same words, and the same methods, everywhere


DOCKERS = {"image", "command", "env", "mounts", "workdir", "name", "body", "pull", "platform", "remove"}
"""Of a request, what docker's own words say on the command line."""


def test_a_program_has_the_same_words_as_the_command_submit() -> None:
    options = {name.removeprefix("--") for one in submit.params for name in one.opts if name.startswith("--")}
    assert options - {"help"} == {word.option for word in SUBMIT_PARAMETERS}
    arguments = {one.name for one in fields(JobRequest)} | {"array"}
    assert arguments - DOCKERS == {word.argument for word in SUBMIT_PARAMETERS}


def test_each_word_is_a_field_of_the_api() -> None:
    lease = {one.name for one in leases_pb2.LeaseRequest.DESCRIPTOR.fields}
    job = {one.name for one in jobs_pb2.SubmitRequest.DESCRIPTOR.fields}
    assert {word.field for word in LEASE_PARAMETERS} <= lease
    assert {word.field for word in JOB_PARAMETERS} <= job


def test_each_word_of_a_request_is_in_its_message() -> None:
    request = JobRequest(
        "busybox",
        gpu="0.5",
        isolation="separate",
        begin=datetime(2026, 11, 22, 8, tzinfo=UTC),
        near=["l-a"],
        away_from=["l-b", "l-c"],
        immediate=True,
        notice_signal="USR1",
        restart_on_fault=3,
        span=True,
    )
    message = request.message("r")
    lease = message.lease
    assert (lease.isolation, lease.begin_at) == ("separate", 1795334400.0)
    assert (list(lease.near), list(lease.away_from)) == (["l-a"], ["l-b", "l-c"])
    assert (lease.immediate, lease.notice_signal, lease.restart_on_fault) == (True, "USR1", 3)
    assert (message.span, message.pool, message.or_here) == (True, True, True)


@pytest.mark.parametrize(
    ("pool", "sent"), [(None, (True, True)), (True, (True, False)), (False, (False, False))]
)
def test_where_a_job_may_run_is_said_with_it(pool: bool | None, sent: tuple[bool, bool]) -> None:
    message = JobRequest("busybox", pool=pool).message("r")
    assert (message.pool, message.or_here) == sent


def test_the_clients_for_plain_and_for_asyncio_programs_are_twins() -> None:
    plain, twin = ({name: signature_of(kind, name) for name in public(kind)} for kind in (Pool, AsyncPool))
    assert plain == twin


class NotingStub:
    """Answer every submission with a note, and no explanation."""

    def __init__(self, answered: Callable[[Any], Any]) -> None:
        self._answered = answered

    def Submit(self, *_: object, **__: object) -> Any:  # noqa: N802 - gRPC's name
        return self._answered(jobs_pb2.SubmitAnswer(job_ids=["j"], notes=["kept elsewhere"]))

    def Explain(self, *_: object, **__: object) -> Any:  # noqa: N802 - gRPC's name
        return self._answered(jobs_pb2.JobExplanation())


async def test_a_warning_names_the_line_of_the_program_that_submits(tmp_path: Path) -> None:
    async def answered(message: Any) -> Any:
        return message

    address, request = f"unix://{tmp_path}/socket", JobRequest("busybox")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with Pool(address) as plain:
            plain._stubs = dict.fromkeys(plain._stubs, cast("Any", NotingStub(lambda message: message)))
            plain.submit(request)
            plain.submit_array(request, "0-1")
        async with AsyncPool(address) as twin:
            twin._stubs = dict.fromkeys(twin._stubs, cast("Any", NotingStub(answered)))
            await twin.submit(request)
            await twin.submit_array(request, "0-1")
    assert [(one.category, one.filename) for one in caught] == [(JobWarning, __file__)] * 4


def public(kind: type) -> set[str]:
    return {"__init__"} | {name for name in vars(kind) if not name.startswith("_")}


def signature_of(kind: type, name: str) -> list[str]:
    return list(map(str, inspect.signature(getattr(kind, name)).parameters.values()))
