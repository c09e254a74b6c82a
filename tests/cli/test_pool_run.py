"""``gpushare run --pool``: the way to a place in the pool, and every way out of it."""

from __future__ import annotations

import signal
from types import SimpleNamespace
from typing import Any

import pytest

from gpushared.cli import docker, pool_run
from gpushared.cli.docker_args import RUN, split
from gpushared.cli.waiting import Interrupted
from gpushared.client.job_messages import Job


class Daemon:
    """Takes a job, and is interrupted before it has said so, as often as it is told to be."""

    def __init__(self, interruptions: int) -> None:
        self.interruptions = interruptions
        self.taken: list[str] = []
        self.cancelled: list[str] = []

    def submit(self, **asked: Any) -> SimpleNamespace:
        if asked["request_id"] not in self.taken:
            self.taken.append(asked["request_id"])
        if self.interruptions:
            self.interruptions -= 1
            raise Interrupted(signal.SIGINT)
        return SimpleNamespace(job_ids=["0123456789"], notes=[])

    def get(self, job: str) -> Job:
        return Job({"id": job, "state": "queued"})

    def wait(self, *_: object, **__: object) -> Job:
        raise Interrupted(signal.SIGINT)

    def cancel(self, job: str, **_: object) -> None:
        self.cancelled.append(job)


@pytest.mark.parametrize("interruptions", [0, 1], ids=["in the queue", "before the answer"])
def test_whoever_is_interrupted_leaves_the_pools_queue(
    interruptions: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or a GPU would be held for them later, for a minute."""
    daemon = Daemon(interruptions)
    monkeypatch.setattr(pool_run, "Jobs", lambda _: daemon)
    monkeypatch.setattr(docker, "find_docker", lambda: "/bin/false")
    assert pool_run.run_in_pool(split(["--pool", "--gpu", "1", "busybox"], RUN)) == 128 + signal.SIGINT
    assert (len(daemon.taken), daemon.cancelled) == (1, ["0123456789"])
