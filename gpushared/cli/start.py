"""Do the work of ``gpushare run``: check the image, get a lease, and then become docker."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial

from gpushared.cli import docker_cli, lease_values
from gpushared.cli.docker_args import RUN, OurOptions, RunWords, are_plain, refuse_ways_around, warnings
from gpushared.cli.errors import UsageError, say, whole_number, wrong_values
from gpushared.cli.lease_values import check_values
from gpushared.cli.waiting import Interrupted, Progress, QueueWait
from gpushared.client import Client
from gpushared.client.submit_words import LEASE_WORDS
from gpushared.domain.model.errors import NotFound, PermissionRefused, Unimplemented
from gpushared.light import TYPE_CHECKING

if TYPE_CHECKING:
    from gpushared.cli.capture import Captured
    from gpushared.cli.runs import Run

WHOLE_GPU = "1"
_SIZES = ("gpu", "gpu-memory", "gpu-compute", "preset")
PRIVILEGED = "HostConfig.Privileged"
NOT_IN_A_POOL = (
    "privileged",
    "cgroup-parent",
    "device-cgroup-rule",
    "link",
    "oom-kill-disable",
    "pid",
    "storage-opt",
    "userns",
    "uts",
    "volumes-from",
)
"""Options of docker that no policy gives to a user who is not trusted, as nobody is by a pool's order."""


class PreparedRun:
    """Hold a run whose words make sense on a machine that has docker; nothing is leased yet."""

    def __init__(self, words: RunWords) -> None:
        self.words = words
        max_wait = max_wait_seconds(words)
        refuse_ways_around(words)
        request = {**lease_fields(words), "ends_with_caller": True}
        self.docker = docker_cli.find_docker()
        self.client = Client()
        self.environ = docker_cli.environment(self.client)
        shown = {"container_name": words.value("name").removeprefix("/"), "image": words.image}
        request = {**with_lease_ids(self.client, request), **shown}
        progress = Progress(sys.stderr, advice_of(words))
        self.wait = QueueWait(self.client, request, progress, max_wait, self._check_before_waiting)
        self._captured: Captured | None = None

    def refusal(self) -> int:
        """Return docker's exit code if docker refuses the words, and has said why; else 0.

        This check comes first, so that a word that docker refuses costs nobody a GPU or a wait.
        """
        check_privileges(self.client, self.words)
        print_warnings(self.words)
        code, self._captured = refusal_of(self.docker, self.words, self.client)
        return code

    def fetch_image(self) -> None:
        """Pull before the request, so that nobody holds a GPU meanwhile. Raises NotFound, Interrupted."""
        code = docker_cli.fetch_image(self.client, self.docker, self.words)
        if code < 0:
            raise Interrupted(-code)
        if code != 0:
            raise NotFound(
                f"the image {self.words.image[:200]} could not be pulled",
                hint="docker's own message is above",
            )

    def _check_before_waiting(self) -> None:
        from gpushared.cli.capture import check_run

        check_run(self.client, self.docker, self.words, self._captured)

    def environ_for(self, lease_id: str) -> dict[str, str]:
        """Return docker's environment for a lease that was granted."""
        if self.words.is_set("detach"):
            return self.environ
        from gpushared.cli.relay import fork_relay

        def run() -> Run:
            from gpushared.cli.runs import LeaseRun

            return LeaseRun(self.client, lease_id)

        path = fork_relay(run, self.client.path, terminal=self.words.is_set("tty"))
        return docker_cli.environment_for(f"unix://{path}")

    def acquire(self) -> str:
        """Wait for the lease and return its id."""
        try:
            return self.wait.run().id
        except Interrupted as error:
            name = signal.Signals(error.exit_code - 128).name
            say(f"left the queue ({name})")
            raise


def refusal_of(program: str, words: RunWords, client: Client) -> tuple[int, Captured | None]:
    """Return docker's exit code if docker refuses the words, and says so itself; else 0.

    The second value is the container that docker would create, if docker has read the words.
    """
    if are_plain(words):
        return 0, None
    from gpushared.cli.capture import read_run

    return read_run(program, words, partial(docker_cli.api_version_of, client))


def print_warnings(words: RunWords, options: OurOptions = RUN) -> None:
    """Warn on stderr of words that may not be meant, and tell the size if none was named."""
    for warning in warnings(words, options):
        say(f"warning: {warning}")
    if not _names_size(words):
        what = "MIG instance" if words.ours.get("isolation") == "mig" else "whole GPU"
        say(f"1 {what}, because no size was named")


def advice_of(words: RunWords) -> str:
    """Advise a user who runs a container detached and must wait for its lease."""
    if not words.is_set("detach"):
        return ""
    text = "`gpushare submit` queues a container and comes back at once"
    limit = (
        "" if "max-wait" in words.ours else "; with --max-wait 10m `gpushare run -d` gives up after that time"
    )
    return text + limit


def may_go_elsewhere(client: Client, words: RunWords) -> bool:
    """Return True for a container of the pool, and False for one that is of this node alone."""
    ours = words.ours
    if any(ours.get(name) for name in ("pool", "nodes", "span")):
        return True
    return bool(ours.get("node")) and ours["node"] != client.status().node


def check_privileges(client: Client, words: RunWords) -> None:
    """Warn of --privileged where it is given; elsewhere raise PermissionRefused, before anybody waits.

    For a container of the pool, refuse each option in ``NOT_IN_A_POOL``.
    """
    options = [name for name in NOT_IN_A_POOL if words.value(name).lower() not in {"", "0", "f", "false"}]
    if not options:
        return
    if may_go_elsewhere(client, words):
        raise PermissionRefused(
            f"--{options[0]} is not allowed for a container of a pool", hint="leave it out"
        )
    if "privileged" not in options:
        return  # what becomes of the others is asked once docker has read all of the words
    body = json.dumps({"Image": words.image, "HostConfig": {"Privileged": True}}).encode()
    with suppress(NotFound, Unimplemented):  # a daemon that cannot tell is one whose gate judges all the same
        for one in client.explain_policy(body, "").findings:
            if one.field == PRIVILEGED and one.verdict == "refused":
                # The gate's own hint names --gpus, which `gpushare run` refuses.
                raise PermissionRefused(
                    "you may not use --privileged on this node",
                    hint="GPUs need no privileges here: leave it out",
                )
    say("warning: --privileged lets the container reach every GPU of this machine, whatever its lease says")


def _names_size(words: RunWords) -> bool:
    return any(name in words.ours for name in _SIZES)


def lease_fields(words: RunWords) -> dict[str, object]:
    """Read the lease from the words, as keyword arguments of ``Client.request``. Raises UsageError."""
    ours = words.ours
    fields: dict[str, object] = {
        word.python_name: _READERS.get(word.option, str)(ours.get(word.option, "")) for word in LEASE_WORDS
    }
    fields |= {
        "gpu": fields["gpu"] if _names_size(words) else WHOLE_GPU,
        "after": names(ours.get("after", "")),
        "requeue": requeue(words),
        "restart_on_fault": _restarts(words),
        "host_cpu_milli": lease_values.cpu_milli(words),
        "host_memory_bytes": lease_values.memory_bytes(words),
    }
    check_values(fields)
    return fields


def with_lease_ids(client: Client, request: dict[str, object]) -> dict[str, object]:
    """Return the request with the ids of the leases that it names. Raises NotFound, StateConflict."""
    references = {key: words for key in ("after", "near", "away_from") if (words := request[key])}
    if not references:
        return request
    from typing import cast

    from gpushared.cli.references import lease_id

    return request | {
        key: [lease_id(client, word) for word in cast("list[str]", words)]
        for key, words in references.items()
    }


def names(text: str) -> list[str]:
    """Return the names in a list with commas."""
    return [name.strip() for name in text.split(",") if name.strip()]


def requeue(words: RunWords) -> bool | None:
    """Return the choice to requeue; None if neither option was given."""
    yes, no = (bool(words.ours.get(name)) for name in ("requeue", "no-requeue"))
    if yes and no:
        raise UsageError("--requeue and --no-requeue exclude each other", hint="leave one of them out")
    if yes and words.is_set("rm"):
        raise UsageError(
            "--requeue and --rm exclude each other", hint="a container that is gone cannot start again"
        )
    return yes or (False if no else None)


def _begin_at(text: str) -> float:
    if not text:
        return 0.0
    from datetime import datetime

    from gpushared.client.moment import read_moment

    with wrong_values("--begin"):
        return read_moment(text, datetime.now().astimezone())


def _priority(text: str) -> int:
    if not text:
        return 0
    from gpushared.domain.model.request import MAX_PRIORITY

    return whole_number("--priority", text, -MAX_PRIORITY, MAX_PRIORITY)


_READERS: Mapping[str, Callable[[str], object]] = {
    "begin": _begin_at,
    "priority": _priority,
    **dict.fromkeys(("model", "near", "away-from", "notify"), names),
    **dict.fromkeys(("hold", "immediate"), bool),
}
"""These options of a lease have no text for a value; "" stands for an option that was not given."""


def _restarts(words: RunWords) -> int:
    """Return the number of restarts on a fault.

    Raises UsageError beside options of docker that remove the container, or start it by themselves.
    """
    text = words.ours.get("restart-on-fault", "")
    if not text:
        return 0
    number = whole_number("--restart-on-fault", text, 0, 100)
    if number and words.is_set("rm"):
        raise UsageError(
            "conflicting options: --restart-on-fault and --rm",
            hint="a container that is removed cannot be started again: leave one of them out",
        )
    if number and words.value("restart") not in {"", "no"}:
        raise UsageError(
            "conflicting options: --restart-on-fault and --restart",
            hint="docker's policy starts it again after faults too: leave one of them out",
        )
    return number


def max_wait_seconds(words: RunWords) -> int | None:
    """Return how long the user would wait; None = for ever."""
    if "max-wait" not in words.ours:
        return None
    from gpushared.domain.model.units import parse_duration

    with wrong_values("--max-wait"):
        return parse_duration(words.ours["max-wait"], least=0)
