"""Where a job's container is: what is said of a node that cannot be asked."""

from __future__ import annotations

from typing import NoReturn

import pytest

from gpushared.api.v1.messages import DoorAnswer, Job
from gpushared.cli import job_endpoints
from gpushared.client import Client
from gpushared.client.http import ConnectionLost
from gpushared.domain.model.errors import GpushareError, TimedOut, Unavailable

JOB = Job({"id": "0123456789", "state": "running", "attempt": 1})


class Door:
    """Leads to a node that answers nobody."""

    def __init__(self, *, here: bool) -> None:
        self.here = here

    def door(self, *_: object) -> DoorAnswer:
        return DoorAnswer({"host": "unix:///run/x.sock", "node": "c", "here": self.here})


@pytest.mark.parametrize(
    ("error", "here", "kind", "said"),
    [
        (ConnectionLost("/run/x.sock"), False, Unavailable, "node c, .* reached: the connection was lost"),
        (TimedOut("/run/x.sock"), False, Unavailable, "node c, .* reached: no answer came in time"),
        (TimedOut("/run/x.sock"), True, TimedOut, "/run/x.sock"),
    ],
)
def test_a_node_that_does_not_answer_is_named_and_not_this_machine_s_daemon(
    monkeypatch: pytest.MonkeyPatch, error: GpushareError, *, here: bool, kind: type[GpushareError], said: str
) -> None:
    def docker(*_: object) -> NoReturn:
        raise error

    monkeypatch.setattr(job_endpoints, "Jobs", lambda _: Door(here=here))
    monkeypatch.setattr(Client, "docker", docker)
    with pytest.raises(kind, match=said):
        job_endpoints.docker_host_for(Client("unix:///run/gpushared.sock"), JOB)
