"""What became of a container that docker was attached to, when docker's connection to it broke."""

from __future__ import annotations

import json
import os
import sys
import time
from contextlib import suppress
from typing import NamedTuple, Protocol

from gpushared.cli import docker
from gpushared.cli.job_places import Place, docker_host_for
from gpushared.cli.references import container_named, first_found
from gpushared.client import Client
from gpushared.client.http import exchange
from gpushared.client.jobs import Jobs
from gpushared.domain.errors import GpushareError, Unavailable

LOOK_SECONDS = 0.3
DAEMON_SECONDS = 30.0
"""How long a daemon may be away."""
POOL_SECONDS = 600.0
"""How long a coordinator, or the daemon of another node, may be away: machines are rebooted."""
START_SECONDS = 5.0
"""An engine may still be at work on a start that nobody waits for any more."""
PROGRAM_SECONDS = 30 * 24 * 3600.0
"""A call that waits for a program is made anew after so long."""


class Found(NamedTuple):
    """Where a container is, or how it ended: then ``container`` is empty.

    ``exit_code`` is None where the program has none; ``text`` says how it ended then. ``has_begun`` is false
    where the engine was never told to start it.
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
    """``name``: by which people name it."""

    name: str
    patience_seconds: float

    def end(self) -> Found | None:
        """Asks the daemon; None while it is not over. Raises the errors of ``Client``."""
        ...

    def place(self) -> Place:
        """Where its container is. Raises the errors of ``Client``."""
        ...


class LeaseRun:
    """A container of this node."""

    patience_seconds = DAEMON_SECONDS

    def __init__(self, client: Client, lease_id: str) -> None:
        self.name = lease_id
        self._client = _asks_once(client)

    def end(self) -> Found | None:
        outcome = self._client.get(self.name).outcome
        return (
            None if outcome is None else Found(exit_code=outcome.exit_code, text=outcome.text or outcome.kind)
        )

    def place(self) -> Place:
        lease = self._client.get(self.name)
        if not lease.container_id:
            raise Unavailable(f"lease {self.name} is {lease.state} and has no container")
        return Place(f"unix://{self._client.path}", lease.container_id)


class JobRun:
    """A container somewhere in the pool."""

    patience_seconds = POOL_SECONDS

    def __init__(self, client: Client, job_id: str) -> None:
        self.name = job_id
        self._client = _asks_once(client)
        self._jobs = Jobs(self._client)

    def end(self) -> Found | None:
        job = self._jobs.get(self.name)
        return Found(exit_code=job.exit_code, text=job.reason or job.state) if job.is_over else None

    def place(self) -> Place:
        return docker_host_for(self._client, self._jobs.get(self.name))


class NamedRun:
    """The container of a job or a lease, by whatever name somebody gave.

    ``rank`` is that of a job's part. Wherever the container is, the wait is as long as for one of a pool.
    """

    patience_seconds = POOL_SECONDS

    def __init__(self, client: Client, name: str, rank: int) -> None:
        self.name = name
        self._client = _asks_once(client)
        self._rank = rank

    def end(self) -> Found | None:
        return first_found(
            self._client,
            self.name,
            lambda name: LeaseRun(self._client, name).end(),
            lambda name: JobRun(self._client, name).end(),
        )

    def place(self) -> Place:
        return container_named(self._client, self.name, self._rank)


def _asks_once(client: Client) -> Client:
    """The same client, which leaves it to its caller to try again and to say so."""
    client.retries = None
    return client


class Finder:
    """Looks for a run until the daemon says what became of it. ``terminal``: whether ours is in raw mode."""

    def __init__(self, run: Run, *, terminal: bool) -> None:
        self.run = run
        self._terminal = terminal

    def found(self, *, quietly: bool = False, start_seconds: float = START_SECONDS) -> Found | None:
        """Where it runs on, or how it ended; None where nobody said so in time, which is told then.

        ``start_seconds``: so long a container is waited for that was made and does not run yet.
        """
        since = time.monotonic()
        if not quietly:
            self._say(f"the connection to {self.run.name} broke; its program runs on, and is looked for")
        while True:
            try:
                found = self._look()
            except GpushareError as error:
                if time.monotonic() - since >= self.run.patience_seconds:
                    if not quietly:
                        self._give_up(error)
                    return None
                found = None
            if found is not None and (found.has_begun or time.monotonic() - since >= start_seconds):
                break
            time.sleep(LOOK_SECONDS)
        if not quietly:
            self._tell(found)
        return found

    def exit_code_at(self, found: Found, condition: str) -> int | None:
        """Waits until the container ends; None where the connection breaks again, or nobody can say."""
        target = f"/containers/{found.container}/wait?condition={condition}"
        with suppress(GpushareError, ValueError, KeyError, TypeError):
            answer = exchange(found.path, "POST", target, timeout_seconds=PROGRAM_SECONDS)
            if answer.status == docker.OK:
                return int(json.loads(answer.body)["StatusCode"])
        time.sleep(LOOK_SECONDS)
        return None

    def say_lost_while_making(self) -> None:
        """Docker's request to make or start the container has no answer."""
        self._say(
            "the daemon went away while docker made the container; "
            f"if it runs: gpushare attach {self.run.name}"
        )

    def say_missing(self) -> None:
        """The connection of the output has come to nothing, and the exit code is known."""
        self._say(f"{self.run.name} has ended; {self._missing()}")

    def _missing(self) -> str:
        return f"what it wrote meanwhile may be missing here: gpushare logs {self.run.name}"

    def _look(self) -> Found | None:
        """None where the container has gone and its end is not known yet."""
        if (end := self.run.end()) is not None:
            return end
        place = self.run.place()
        client = _asks_once(Client(place.host))
        answer = client.docker("GET", f"/containers/{place.container}/json")
        if answer.status == docker.MISSING:
            return None
        if answer.status != docker.OK:
            raise Unavailable(docker.message_of(answer))
        state = json.loads(answer.body)["State"]
        if state["Running"]:
            return Found(client.path, place.container)
        if state["Status"] == "created":
            return Found(client.path, place.container, has_begun=False)
        return Found(exit_code=int(state["ExitCode"]))

    def _tell(self, found: Found) -> None:
        if not found.has_begun:
            self._say(
                f"the container of {self.run.name} has not started since; "
                f"if it does: gpushare attach {self.run.name}"
            )
        elif found.is_running:
            self._say(f"connected to {self.run.name} again; {self._missing()}")
        elif found.exit_code is None:
            self._say(f"{self.run.name} is over without an exit code: {found.text}")
        else:
            self.say_missing()

    def _give_up(self, error: GpushareError) -> None:
        self._say(
            f"after {self.run.patience_seconds:.0f} s still: {error.message}; "
            f"its program may run on: gpushare attach {self.run.name}"
        )

    def _say(self, sentence: str) -> None:
        """A terminal in raw mode does not go back to the beginning of a line by itself."""
        end = "\r\n" if self._terminal else "\n"
        with suppress(OSError):
            os.write(
                sys.stderr.fileno(), f"{end if self._terminal else ''}gpushare: {sentence}{end}".encode()
            )
