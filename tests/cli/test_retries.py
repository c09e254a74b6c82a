"""Commands that begin while the daemon is away, or lose it: what is tried again, and what is said of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from google.protobuf.descriptor import ServiceDescriptor

from gpushared.api.v1 import (
    audit_pb2,
    gpus_pb2,
    history_pb2,
    jobs_pb2,
    leases_pb2,
    node_pb2,
    policy_pb2,
    pool_pb2,
    projects_pb2,
)
from gpushared.client import Client
from gpushared.client.retries import IDEMPOTENT, READ_ONLY, WITH_REQUEST_ID, may_repeat
from gpushared.domain.model.errors import ConfigError
from tests.cli.answers import lease
from tests.cli.process import Gpushare
from tests.cli.standin import HANG_UP, StandIn, ok, refusal

ANSWERS: dict[str, Any] = {
    "Leases/List": {"leases": [lease()]},
    "Leases/Get": lease(),
    "Leases/Stop": lease(state="ended"),
    "Leases/Hold": lease(state="queued"),
    "Leases/Pause": lease(state="suspended"),
    "Leases/Resume": lease(),
    "Leases/Explain": {"lease": lease()},
    "Leases/Offer": {"starts_now": True},
    "Leases/Extend": lease(),
    "Gpus/List": {"gpus": []},
    "Gpus/Drain": {"gpus": []},
    "Node/Presets": {"presets": []},
    "Node/Status": {"version": "1"},
    "Projects/List": {"projects": []},
    "Audit/List": {"lines": []},
    "History/Ended": {},
    "History/Usage": {},
    "History/Waits": {},
    "Jobs/List": {"jobs": []},
    "Jobs/Get": {"id": "k3m9x0p2qa", "state": "succeeded"},
    "Jobs/Cancel": {"id": "k3m9x0p2qa", "state": "cancelling"},
    "Jobs/Nodes": {"nodes": []},
}


@dataclass(frozen=True)
class Command:
    """Words after ``gpushare``, and the call that they lead to first."""

    words: Sequence[str]
    call: str
    code: int = field(default=0)


COMMANDS = (
    Command(["ps"], "Leases/List"),
    Command(["queue"], "Leases/List"),
    Command(["gpus"], "Gpus/List"),
    Command(["presets"], "Node/Presets"),
    Command(["jobs"], "Jobs/List"),
    Command(["nodes"], "Jobs/Nodes"),
    Command(["audit"], "Audit/List"),
    Command(["history"], "History/Ended"),
    Command(["usage"], "History/Usage"),
    Command(["waits"], "History/Waits"),
    Command(["project", "ls"], "Projects/List"),
    Command(["why", "l-7f3k"], "Leases/Explain"),
    Command(["offer", "--gpu", "1"], "Leases/Offer"),
    Command(["wait", "k3m9x0p2qa_1"], "Jobs/Get"),
    Command(["stop", "l-7f3k"], "Leases/Stop"),
    Command(["cancel", "k3m9x0p2qa_1"], "Jobs/Cancel"),
    Command(["hold", "l-7f3k"], "Leases/Hold"),
    Command(["pause", "l-7f3k"], "Leases/Pause"),
    Command(["resume", "l-7f3k"], "Leases/Resume"),
    Command(["drain", "0", "--reason", "a fan"], "Gpus/Drain"),
)


def give_answers(standin: StandIn) -> None:
    standin.answers.update({call: ok(answer) for call, answer in ANSWERS.items()})


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.words[0])
def test_a_command_that_began_while_the_daemon_was_away_goes_on_when_it_is_back(
    command: Command, gpushare: Gpushare, standin: StandIn
) -> None:
    """One line says what it waits for, on stderr, where no program reads."""
    give_answers(standin)
    standin.go_away()
    process = gpushare.start(*command.words)
    assert process.stderr is not None
    assert process.stderr.readline() == "gpushare: the daemon is away; trying again for 30 s\n"
    standin.listen()
    _, output = process.communicate(timeout=60)
    assert (process.returncode, output) == (command.code, "")


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.words[0])
@pytest.mark.parametrize(
    "broken",
    [HANG_UP, refusal(503, "unavailable", "the pool lab does not answer", "see `gpushare nodes`")],
    ids=["the connection breaks", "what answers is away"],
)
def test_a_call_that_is_the_same_when_it_is_repeated_is_tried_again(
    command: Command, broken: Any, gpushare: Gpushare, standin: StandIn
) -> None:
    give_answers(standin)
    standin.answers[command.call] = [broken, broken, ok(ANSWERS[command.call])]
    done = gpushare(*command.words)
    assert done.returncode == command.code, done.stderr
    assert done.stderr.count("trying again for 30 s") == 1
    assert len(standin.asked(command.call)) >= 3


def test_a_change_that_would_count_twice_is_asked_for_once(gpushare: Gpushare, standin: StandIn) -> None:
    """The daemon may have given the time before the connection broke."""
    standin.answers["Leases/Extend"] = HANG_UP
    done = gpushare("extend", "l-7f3k", "1h")
    assert done.returncode == 125
    assert "nobody knows whether the daemon did what was asked" in done.stderr
    assert "hint: look with" in done.stderr
    assert len(standin.asked("Leases/Extend")) == 1


def test_a_change_that_was_never_sent_is_tried_again(gpushare: Gpushare, standin: StandIn) -> None:
    give_answers(standin)
    standin.go_away()
    process = gpushare.start("extend", "l-7f3k", "1h")
    assert process.stderr is not None
    assert "trying again" in process.stderr.readline()
    standin.listen()
    process.communicate(timeout=60)
    assert (process.returncode, len(standin.asked("Leases/Extend"))) == (0, 1)


def test_after_the_time_the_error_is_that_of_the_last_try(gpushare: Gpushare, standin: StandIn) -> None:
    standin.answers["Leases/List"] = refusal(503, "unavailable", "the journal is full", "make room")
    done = gpushare("ps", GPUSHARE_RETRY_SECONDS="1")
    assert (done.returncode, done.stdout) == (125, "")
    first, second, hint = done.stderr.splitlines()
    assert first == "gpushare: the journal is full; trying again for 1 s"
    assert (second, hint) == ("gpushare: the journal is full", "  hint: make room")


def test_a_coordinator_that_names_the_leader_is_asked_once(gpushare: Gpushare, standin: StandIn) -> None:
    standin.answers["Leases/List"] = refusal(503, "unavailable", "b stands by, and a leads", "ask a", "a")
    done = gpushare("ps")
    assert (done.returncode, len(standin.asked("Leases/List"))) == (125, 1)
    assert done.stderr.splitlines() == ["gpushare: b stands by, and a leads", "  hint: ask a"]


def test_a_submission_that_may_have_been_taken_is_not_told_as_refused(
    gpushare: Gpushare, standin: StandIn
) -> None:
    """The connection broke, and then the daemon stayed away, as the newest error alone would say."""
    give_answers(standin)
    standin.answers["Jobs/Submit"] = HANG_UP
    done = gpushare("submit", "--gpu", "0.25", "busybox", GPUSHARE_RETRY_SECONDS="1")
    assert done.returncode == 125
    assert "nobody knows whether the daemon did what was asked" in done.stderr


def test_several_calls_of_one_command_wait_for_one_absence_once(gpushare: Gpushare, standin: StandIn) -> None:
    standin.go_away()
    done = gpushare("stop", "l-1", "l-2", "l-3", GPUSHARE_RETRY_SECONDS="1")
    assert done.returncode == 125
    assert done.stderr.count("trying again") == 1
    assert done.stderr.count("nobody listens there") == 3


def test_where_no_daemon_was_ever_started_the_error_comes_at_once(
    gpushare: Gpushare, standin: StandIn
) -> None:
    """Nobody is to wait for half a minute for a daemon that is not installed."""
    standin.go_away()
    standin.path.unlink()
    done = gpushare("ps")
    assert done.returncode == 125
    assert "trying again" not in done.stderr
    assert "systemctl status gpushared" in done.stderr


def test_a_daemon_that_left_its_directory_is_waited_for_without_its_socket(
    gpushare: Gpushare, standin: StandIn
) -> None:
    """Some service managers take the socket away at a stop."""
    give_answers(standin)
    standin.go_away()
    standin.path.unlink()
    inner = standin.path.parent / "inner"
    inner.mkdir()
    process = gpushare.start("ps")
    assert process.stderr is not None
    assert "trying again" in process.stderr.readline()
    standin.listen()
    process.communicate(timeout=60)
    assert process.returncode == 0


def test_whoever_looks_for_what_is_wrong_does_not_wait(gpushare: Gpushare, standin: StandIn) -> None:
    standin.go_away()
    for words in (["version"], ["doctor"]):
        assert "trying again" not in gpushare(*words).stderr


def test_a_number_of_seconds_that_makes_no_sense_is_a_mistake_in_the_configuration(
    gpushare: Gpushare,
) -> None:
    for text in ("soon", "-1", "nan", "1e9"):
        done = gpushare("ps", GPUSHARE_RETRY_SECONDS=text)
        assert done.returncode == 2
        assert "GPUSHARE_RETRY_SECONDS" in done.stderr


def test_programs_that_use_the_client_try_once(standin: StandIn) -> None:
    assert Client(standin.host).retries is None


ONCE = {
    *("Leases/Resize", "Leases/Extend", "Leases/Preempt", "Jobs/SubmitBatch"),
    *("Node/Join", "Node/Leave", "Simulation/Change"),
    *("PoolAdmin/CreateJoinToken", "PoolAdmin/CreateApiToken", "PoolAdmin/RevokeToken"),
    *("PoolAdmin/ForgetCoordinator", "PoolAdmin/ForgetNode", "PoolAdmin/RotateCa"),
}
"""What counts twice, or answers otherwise the second time."""
MODULES = (
    audit_pb2,
    gpus_pb2,
    history_pb2,
    jobs_pb2,
    leases_pb2,
    node_pb2,
    policy_pb2,
    pool_pb2,
    projects_pb2,
)
ON_OTHER_PORTS = {"Join"}


def test_of_each_call_it_is_decided_whether_it_may_be_repeated() -> None:
    services: list[ServiceDescriptor] = [
        service for module in MODULES for service in module.DESCRIPTOR.services_by_name.values()
    ]
    unary = {
        f"{service.name}/{method.name}"
        for service in services
        if service.name not in ON_OTHER_PORTS
        for method in service.methods
        if not (method.server_streaming or method.client_streaming)
    }
    kinds = (READ_ONLY, IDEMPOTENT, WITH_REQUEST_ID, ONCE)
    assert unary == set().union(*kinds)
    assert len(unary) == sum(map(len, kinds))


def test_a_request_without_an_id_is_another_one_each_time() -> None:
    assert may_repeat("Leases/Request", {"request_id": "r"})
    assert may_repeat("Jobs/Reserve", {"job": {"request_id": "r"}})
    assert not may_repeat("Leases/Request", {"gpu": "1"})
    assert not may_repeat("Jobs/Submit", {"request_id": ""})


def test_the_error_of_the_variable_is_of_our_tree(monkeypatch: pytest.MonkeyPatch, standin: StandIn) -> None:
    monkeypatch.setenv("GPUSHARE_RETRY_SECONDS", "soon")
    monkeypatch.setattr(Client, "tell_of_retries", print)
    with pytest.raises(ConfigError):
        Client(standin.host)
