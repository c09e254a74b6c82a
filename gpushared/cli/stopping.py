"""The end of a lease, seen through: its container has stopped, and its GPU memory is free again."""

from __future__ import annotations

import time

from gpushared.cli import docker
from gpushared.cli.faults import say
from gpushared.client import Client, Lease
from gpushared.client.api import ANSWER_SECONDS, STOP_GRACE_SECONDS
from gpushared.domain.errors import Unavailable

POLL_SECONDS = 30.0
QUIET_SECONDS = 2.0


class Stop:
    """Stops leases. ``until_over``: waits for their GPU memory too, and not for their containers alone."""

    def __init__(self, client: Client, grace_seconds: int | None, *, until_over: bool) -> None:
        self._client = client
        self._grace_seconds = grace_seconds
        self._until_over = until_over

    def begin(self, name: str) -> Lease:
        """Ask for the end of a lease."""
        return self._client.stop(name, grace_seconds=self._grace_seconds)

    def finish(self, lease: Lease) -> str:
        """The id of a lease whose end was asked for, once it has come. Raises Unavailable, TimedOut."""
        if lease.state != "ended" and lease.container_id:
            self._wait_for_container(lease)
        if self._until_over:
            self._wait_for_end(lease)
        return lease.id

    def _wait_for_container(self, lease: Lease) -> None:
        grace = STOP_GRACE_SECONDS if self._grace_seconds is None else self._grace_seconds
        answer = self._client.docker(
            "POST",
            f"/containers/{lease.container_id}/wait",
            answer_seconds=grace + ANSWER_SECONDS,
            may_repeat=True,
        )
        if answer.status not in {docker.OK, docker.MISSING}:
            raise Unavailable(
                f"nobody knows whether the container of {lease.id} has stopped: {docker.message_of(answer)}",
                hint="`gpushare ps` shows how far it is",
            )

    def _wait_for_end(self, lease: Lease) -> None:
        told, since = False, time.monotonic()
        while lease.state != "ended":
            if not told and time.monotonic() - since >= QUIET_SECONDS:
                say(f"{lease.id} is {lease.state}: its GPU memory is not back yet")
                told = True
            seconds = POLL_SECONDS if told else QUIET_SECONDS
            lease = self._client.wait(lease.id, lease.token, timeout_seconds=seconds)
