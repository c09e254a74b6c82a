"""Write ``gpushare run --result-file``, and run docker as a child for work after docker's end.

Schedulers read the file; without it they could not tell a container's own exit code 125 from ours.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from gpushared.cli import docker_cli
from gpushared.cli.docker_args import RunArguments
from gpushared.cli.errors import report
from gpushared.cli.start import PreparedRun
from gpushared.cli.waiting import Interrupted, MaxWaitReached, signals_interrupt
from gpushared.client import Client, Lease
from gpushared.domain.model.errors import GpushareError, RequestError

OUTCOME_SECONDS = 15.0
"""After docker's end the daemon has so long to tell the lease's outcome."""
_FORWARDED = (signal.SIGTERM, signal.SIGHUP)
_FROM_THE_TERMINAL = (signal.SIGINT, signal.SIGQUIT)


class ResultFile:
    """Write the result file as a whole or not at all."""

    def __init__(self, path: str) -> None:
        self._path = Path(path)
        self._next = self._path.with_name(f".{self._path.name}.{os.getpid()}")
        self.lease = ""
        try:
            self._next.touch()
        except OSError as error:
            raise RequestError(
                f"the result file {path[:200]} cannot be written: {error.strerror}",
                hint="its folder must exist and be yours to write in",
            ) from error

    def write(self, outcome: str, exit_code: int, reason: str) -> None:
        content = {"lease": self.lease, "outcome": outcome, "exit_code": exit_code, "reason": reason}
        try:
            self._next.write_text(json.dumps(content) + "\n", encoding="utf-8")
            self._next.replace(self._path)
        except OSError as error:
            raise RequestError(
                f"the result file {self._path} cannot be written: {error.strerror}",
                hint=f"the outcome is also in its story: gpushare why {self.lease}",
            ) from error


def run_with_result(args: RunArguments, path: str) -> int:
    """Run docker as a child; return its exit code (128+n if signal n ended it)."""
    result = ResultFile(path)
    try:
        prepared = PreparedRun(args)
        with signals_interrupt():
            if code := prepared.refusal():
                result.write("refused", code, "docker does not take these words")
                return code
            prepared.fetch_image()
            result.lease = prepared.acquire()
        code = _run(prepared, docker_cli.run_command(args, result.lease), result.lease)
    except Interrupted as error:
        result.write("cancelled", error.exit_code, "cancelled while it waited")
        return error.exit_code
    except GpushareError as error:
        code = report(error)
        result.write("max_wait" if isinstance(error, MaxWaitReached) else "refused", code, error.message)
        return code
    outcome, reason = _outcome(prepared, result.lease)
    result.write(outcome, code, reason)
    return code


def _run(prepared: PreparedRun, command: list[str], lease_id: str) -> int:
    command = [prepared.docker, *command[1:]]
    environ = prepared.environ_for(lease_id)
    return run_as_child(command, environ)


def _outcome(prepared: PreparedRun, lease_id: str) -> tuple[str, str]:
    """Return the lease's outcome by the daemon: a kind and a sentence."""
    try:
        lease = prepared.client.get(lease_id)
        if lease.state == "reserved":  # docker failed before it made a container
            prepared.client.release(lease_id)
            return "failed", "docker made no container"
        if not prepared.args.is_set("detach"):
            lease = _until_over(prepared.client, lease)
    except GpushareError as error:
        return "unknown", error.message
    if lease.outcome is not None:
        return lease.outcome.kind, lease.outcome.text
    return "running", f"the lease is {lease.state}"


def _until_over(client: Client, lease: Lease) -> Lease:
    until = time.monotonic() + OUTCOME_SECONDS
    while lease.outcome is None and (remaining := until - time.monotonic()) > 0:
        lease = client.wait(lease.id, lease.token, timeout_seconds=remaining)
    return lease


def run_as_child(command: Sequence[str], environ: Mapping[str, str]) -> int:
    """Run docker and stay; returns docker's exit code, 128+n when signal n ended docker."""
    with _passing_signals() as pass_to:
        child = subprocess.Popen(command, env=environ)
        pass_to(child)
        code = child.wait()
    return code if code >= 0 else 128 - code


@contextmanager
def _passing_signals() -> Iterator[Callable[[subprocess.Popen[bytes]], None]]:
    """Pass TERM and HUP on to a child; what a terminal sends, the child gets from the terminal itself.

    The handlers are in place before the child begins, so that no signal ends the parent first. They are no
    SIG_IGN: a handler is undone by the child's exec, an ignored signal would stay ignored.
    """
    children: list[subprocess.Popen[bytes]] = []
    early: list[int] = []

    def pass_to(child: subprocess.Popen[bytes]) -> None:
        children.append(child)
        for number in early:
            child.send_signal(number)

    def forward(number: int, frame: FrameType | None) -> None:  # noqa: ARG001 - a handler's signature
        if children:
            children[0].send_signal(number)
        else:
            early.append(number)

    def leave_it(number: int, frame: FrameType | None) -> None:
        pass

    before = {number: signal.signal(number, forward) for number in _FORWARDED}
    before |= {number: signal.signal(number, leave_it) for number in _FROM_THE_TERMINAL}
    try:
        yield pass_to
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
