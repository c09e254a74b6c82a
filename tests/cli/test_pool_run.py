"""``gpushare run --pool``: the way to a place in the pool, and every way out of it."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from typing import Any, NoReturn

import pytest

from gpushared.api.v1.messages import DoorAnswer, Job, ReserveAnswer, SubmitAnswer
from gpushared.cli import docker_cli, pool_run
from gpushared.cli.docker_args import RUN, split
from gpushared.cli.waiting import Interrupted
from gpushared.domain.model.errors import StateConflict, Unimplemented

JOB = "0123456789"
DOOR = {"host": "unix:///run/gpushared/doors/0123456789-1000.sock", "lease_id": "l-7f3k", "node": "b"}
RESERVED = {
    "id": JOB,
    "state": "placing",
    "parts": [{"node": "b", "state": "reserved", "lease_id": "l-7f3k"}],
}


class OlderDaemon:
    """Takes a job, and is interrupted before it has said so, as often as it is told to be."""

    def __init__(self, interruptions: int = 0) -> None:
        self.interruptions = interruptions
        self.taken: list[str] = []
        self.cancelled: list[str] = []
        self.asked: list[str] = []
        self.names: list[str] = []

    def reserve(self, **_: Any) -> ReserveAnswer:
        self.asked.append("reserve")
        raise Unimplemented("there is no call gpushare.v1.Jobs/Reserve")

    def submit(self, **asked: Any) -> SubmitAnswer:
        self.asked.append("submit")
        self._take(asked["request_id"])
        return SubmitAnswer({"job_ids": [JOB]})

    def _take(self, request_id: str) -> None:
        if request_id not in self.taken:
            self.taken.append(request_id)
        if self.interruptions:
            self.interruptions -= 1
            raise Interrupted(signal.SIGINT)

    def get(self, job: str) -> Job:
        self.asked.append("get")
        return Job({"id": job, "state": "queued"})

    def wait(self, *_: object, **__: object) -> Job:
        self.asked.append("wait")
        raise Interrupted(signal.SIGINT)

    def door(self, _: str) -> DoorAnswer:
        self.asked.append("door")
        return DoorAnswer(DOOR)

    def cancel(self, job: str, **_: object) -> None:
        self.cancelled.append(job)


class Daemon(OlderDaemon):
    """Has the job wait."""

    def reserve(self, **asked: Any) -> ReserveAnswer:
        self.asked.append("reserve")
        self._take(asked["request_id"])
        return ReserveAnswer({"job": {"id": JOB, "state": "queued"}})


class DaemonWithFreeGpu(Daemon):
    """Has a lease at once."""

    def reserve(self, **asked: Any) -> ReserveAnswer:
        self.asked.append("reserve")
        self.names.append(asked["name"])
        return ReserveAnswer({"job": RESERVED, "door": DOOR})


class OlderDaemonWithFreeGpu(OlderDaemon):
    """The same, of the version before."""

    def get(self, _: str) -> Job:
        self.asked.append("get")
        return Job(RESERVED)


@pytest.mark.parametrize("kind", [Daemon, OlderDaemon])
@pytest.mark.parametrize("interruptions", [0, 1], ids=["in the queue", "before the answer"])
def test_whoever_is_interrupted_leaves_the_pools_queue(
    interruptions: int, kind: type[OlderDaemon], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or a GPU would be held for them later, for a minute."""
    daemon = kind(interruptions)
    monkeypatch.setattr(pool_run, "Jobs", lambda _: daemon)
    monkeypatch.setattr(docker_cli, "find_docker", lambda: "/bin/false")
    assert pool_run.run_in_pool(split(["--pool", "--gpu", "1", "busybox"], RUN)) == 128 + signal.SIGINT
    assert (len(daemon.taken), daemon.cancelled) == (1, [JOB])


@pytest.mark.parametrize(
    ("kind", "asked"),
    [(DaemonWithFreeGpu, ["reserve"]), (OlderDaemonWithFreeGpu, ["reserve", "submit", "get", "door"])],
    ids=["one call", "a daemon of the version before"],
)
def test_where_there_is_room_docker_is_started_at_the_daemon_of_the_job(
    kind: type[OlderDaemon], asked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon, became = kind(), []

    def become(program: str, words: Sequence[str], environ: dict[str, str]) -> NoReturn:
        became.append((words[:4], environ["DOCKER_HOST"]))
        raise SystemExit

    monkeypatch.setattr(pool_run, "Jobs", lambda _: daemon)
    monkeypatch.setattr(docker_cli, "find_docker", lambda: "/bin/false")
    monkeypatch.setattr(docker_cli, "become", become)
    with pytest.raises(SystemExit):
        pool_run.run_in_pool(split(["--pool", "--gpu", "1", "-d", "busybox"], RUN))
    assert became == [(["docker", "run", "--label", "gpushare.lease=l-7f3k"], DOOR["host"])]
    assert daemon.asked == asked


@pytest.mark.parametrize(("words", "name"), [(["--name", "trainer"], "trainer"), ([], "")])
def test_a_container_s_name_goes_to_the_pool_which_finds_the_job_by_it(
    words: list[str], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon = DaemonWithFreeGpu()

    def become(*_: object) -> NoReturn:
        raise SystemExit

    monkeypatch.setattr(pool_run, "Jobs", lambda _: daemon)
    monkeypatch.setattr(docker_cli, "find_docker", lambda: "/bin/false")
    monkeypatch.setattr(docker_cli, "become", become)
    with pytest.raises(SystemExit):
        pool_run.run_in_pool(split(["--pool", "--gpu", "1", "-d", *words, "busybox"], RUN))
    assert daemon.names == [name]


def test_what_the_pool_refuses_at_once_is_said_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    daemon = Daemon(0)
    refused = {"id": JOB, "state": "failed", "reason": "no node could take it", "hint": "T4"}
    monkeypatch.setattr(daemon, "reserve", lambda **_: ReserveAnswer({"job": refused}))
    monkeypatch.setattr(pool_run, "Jobs", lambda _: daemon)
    monkeypatch.setattr(docker_cli, "find_docker", lambda: "/bin/false")
    with pytest.raises(StateConflict, match="no node could take it"):
        pool_run.run_in_pool(split(["--pool", "--gpu", "1", "busybox"], RUN))
    assert capsys.readouterr().err == ""
