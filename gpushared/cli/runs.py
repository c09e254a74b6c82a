"""Find a container again, or its outcome, after docker's connection to it broke."""

from __future__ import annotations

import json
import os
import sys
import time
from contextlib import suppress
from typing import NamedTuple, Protocol

from gpushared.cli import docker_cli
from gpushared.cli.job_endpoints import DockerEndpoint, docker_host_for
from gpushared.cli.references import container_named, first_found
from gpushared.client import Client
from gpushared.client.http import exchange
from gpushared.client.jobs import Jobs
from gpushared.domain.model.errors import GpushareError, Unavailable

LOOK_SECONDS = 0.3
DAEMON_SECONDS = 30.0
"""A daemon may be away so long."""
POOL_SECONDS = 600.0
"""A coordinator, or the daemon of another node, may be away so long: machines are rebooted."""
START_SECONDS = 5.0
"""An engine may still be at work on a start that nobody waits for any more."""
PROGRAM_SECONDS = 30 * 24 * 3600.0
"""A call that waits for a program is made anew after so long."""


class RunState(NamedTuple):
    """Locate a container, or tell its end: then ``container`` is empty.

    ``exit_code`` is None if the program has none; then ``text`` tells the end. ``has_begun`` is false if the
    engine was never told to start the container.
    """

    path: str = ""
    container: str = ""
    exit_code: int | None = None
    text: str = ""
    has_begun: bool = True

    @property
    def is_running(self) -> bool:
        return bool(self.container) and self.has_begun


class Run(Protocol):
    """Describe a run to look for. ``name``: people's name for it."""

    name: str
    patience_seconds: float

    def end(self) -> RunState | None:
        """Ask the daemon for the end; None while the run goes on. Raises the errors of ``Client``."""
        ...

    def endpoint(self) -> DockerEndpoint:
        """Return the endpoint of the run's container. Raises the errors of ``Client``."""
        ...


class LeaseRun:
    """Look for a container of this node."""

    patience_seconds = DAEMON_SECONDS

    def __init__(self, client: Client, lease_id: str) -> None:
        self.name = lease_id
        self._client = _without_retries(client)

    def end(self) -> RunState | None:
        outcome = self._client.get(self.name).outcome
        if outcome is None:
            return None
        return RunState(exit_code=outcome.exit_code, text=outcome.text or outcome.kind)

    def endpoint(self) -> DockerEndpoint:
        lease = self._client.get(self.name)
        if not lease.container_id:
            raise Unavailable(f"lease {self.name} is {lease.state} and has no container")
        return DockerEndpoint(f"unix://{self._client.path}", lease.container_id)


class JobRun:
    """Look for a container somewhere in the pool."""

    patience_seconds = POOL_SECONDS

    def __init__(self, client: Client, job_id: str) -> None:
        self.name = job_id
        self._client = _without_retries(client)
        self._jobs = Jobs(self._client)

    def end(self) -> RunState | None:
        job = self._jobs.get(self.name)
        return RunState(exit_code=job.exit_code, text=job.reason or job.state) if job.is_over else None

    def endpoint(self) -> DockerEndpoint:
        return docker_host_for(self._client, self._jobs.get(self.name))


class NamedRun:
    """Find the container of a job or a lease, by any of its names.

    ``rank`` is that of a job's part. Wherever the container is, the wait is as long as for one of a pool.
    """

    patience_seconds = POOL_SECONDS

    def __init__(self, client: Client, name: str, rank: int) -> None:
        self.name = name
        self._client = _without_retries(client)
        self._rank = rank

    def end(self) -> RunState | None:
        return first_found(
            self._client,
            self.name,
            lambda name: LeaseRun(self._client, name).end(),
            lambda name: JobRun(self._client, name).end(),
        )

    def endpoint(self) -> DockerEndpoint:
        return container_named(self._client, self.name, self._rank)


def _without_retries(client: Client) -> Client:
    """Return the client without retries: its caller tries again, and tells the user."""
    client.retries = None
    return client


class Finder:
    """Look for a run until the daemon tells its state. ``terminal``: True if ours is in raw mode."""

    def __init__(self, run: Run, *, terminal: bool) -> None:
        self.run = run
        self._terminal = terminal

    def find(self, *, quietly: bool = False, start_seconds: float = START_SECONDS) -> RunState | None:
        """Return where the container is, or its end; None, with a message, if no answer came in time.

        ``start_seconds``: the longest wait for a container that was made and does not run yet.
        """
        since = time.monotonic()
        if not quietly:
            self._say(f"the connection to {self.run.name} broke; its program runs on, and is looked for")
        while True:
            try:
                state = self._look()
            except GpushareError as error:
                if time.monotonic() - since >= self.run.patience_seconds:
                    if not quietly:
                        self._give_up(error)
                    return None
                state = None
            if state is not None and (state.has_begun or time.monotonic() - since >= start_seconds):
                break
            time.sleep(LOOK_SECONDS)
        if not quietly:
            self._report(state)
        return state

    def exit_code_at(self, state: RunState, condition: str) -> int | None:
        """Wait for the container's end; None if the connection breaks again, or nobody can tell."""
        target = f"/containers/{state.container}/wait?condition={condition}"
        with suppress(GpushareError, ValueError, KeyError, TypeError):
            answer = exchange(state.path, "POST", target, timeout_seconds=PROGRAM_SECONDS)
            if answer.status == docker_cli.OK:
                return int(json.loads(answer.body)["StatusCode"])
        time.sleep(LOOK_SECONDS)
        return None

    def say_lost_while_making(self) -> None:
        """Say that docker's request to make or start the container has no answer."""
        self._say(
            "the daemon went away while docker made the container; "
            f"if it runs: gpushare attach {self.run.name}"
        )

    def say_missing(self) -> None:
        """Say that output may be missing: its connection is lost, and the exit code is known."""
        self._say(f"{self.run.name} has ended; {self._missing()}")

    def _missing(self) -> str:
        return f"what it wrote meanwhile may be missing here: gpushare logs {self.run.name}"

    def _look(self) -> RunState | None:
        """Look once; None if the container is gone and its end is not known yet."""
        if (end := self.run.end()) is not None:
            return end
        endpoint = self.run.endpoint()
        client = _without_retries(Client(endpoint.host))
        answer = client.docker("GET", f"/containers/{endpoint.container}/json")
        if answer.status == docker_cli.MISSING:
            return None
        if answer.status != docker_cli.OK:
            raise Unavailable(docker_cli.message_of(answer))
        state = json.loads(answer.body)["State"]
        if state["Running"]:
            return RunState(client.path, endpoint.container)
        if state["Status"] == "created":
            return RunState(client.path, endpoint.container, has_begun=False)
        return RunState(exit_code=int(state["ExitCode"]))

    def _report(self, state: RunState) -> None:
        if not state.has_begun:
            self._say(
                f"the container of {self.run.name} has not started since; "
                f"if it does: gpushare attach {self.run.name}"
            )
        elif state.is_running:
            self._say(f"connected to {self.run.name} again; {self._missing()}")
        elif state.exit_code is None:
            self._say(f"{self.run.name} is over without an exit code: {state.text}")
        else:
            self.say_missing()

    def _give_up(self, error: GpushareError) -> None:
        self._say(
            f"after {self.run.patience_seconds:.0f} s still: {error.message}; "
            f"its program may run on: gpushare attach {self.run.name}"
        )

    def _say(self, sentence: str) -> None:
        """Write a line; a terminal in raw mode needs the return to the line's beginning too."""
        end = "\r\n" if self._terminal else "\n"
        with suppress(OSError):
            os.write(
                sys.stderr.fileno(), f"{end if self._terminal else ''}gpushare: {sentence}{end}".encode()
            )
