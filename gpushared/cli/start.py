"""Do the work of ``gpushare run``: check the image, get a lease, and then become docker."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial

from gpushared.cli import docker_cli, lease_values
from gpushared.cli.docker_args import (
    RUN,
    OurOptions,
    RunArguments,
    are_plain,
    option_after_image,
    refuse_ways_around,
)
from gpushared.cli.errors import UsageError, say, whole_number, wrong_values
from gpushared.cli.lease_values import check_values
from gpushared.cli.waiting import Interrupted, Progress, QueueWait
from gpushared.client import Client
from gpushared.client.submit_parameters import LEASE_PARAMETERS
from gpushared.domain.model.errors import (
    GpushareError,
    NeverFits,
    NotFound,
    PermissionRefused,
    Unimplemented,
)
from gpushared.light import TYPE_CHECKING

if TYPE_CHECKING:
    from gpushared.cli.capture import CreateRequest
    from gpushared.cli.runs import Run
    from gpushared.client.submit_parameters import LeaseArguments

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
    """Hold a run whose arguments make sense on a machine that has docker; nothing is leased yet."""

    def __init__(self, args: RunArguments) -> None:
        self.args = args
        max_wait = max_wait_seconds(args)
        refuse_ways_around(args)
        request = {**lease_fields(args), "ends_with_caller": True}
        self.docker = docker_cli.find_docker()
        self.client = Client()
        self.environ = docker_cli.environment(self.client)
        shown = {"container_name": args.value("name").removeprefix("/"), "image": args.image}
        request = {**with_lease_ids(self.client, request), **shown}
        progress = Progress(sys.stderr, advice_of(args))
        self.wait = QueueWait(self.client, request, progress, max_wait, self._check_before_waiting)
        self._create_request: CreateRequest | None = None

    def refusal(self) -> int:
        """Return docker's exit code if docker refuses the arguments, and has said why; else 0.

        This check comes first, so that an argument that docker refuses costs nobody a GPU or a wait.
        """
        check_privileges(self.client, self.args)
        print_warnings(self.args)
        code, self._create_request = refusal_of(self.docker, self.args, self.client)
        return code

    def fetch_image(self) -> None:
        """Pull before the request, so that nobody holds a GPU meanwhile.

        Raises NotFound, Interrupted, and NeverFits before anybody waits for an image in vain.
        """
        if not docker_cli.has_to_pull(self.client, self.args):
            return
        self._refuse_impossible()
        code = docker_cli.pull_image(self.client, self.docker, self.args)
        if code < 0:
            raise Interrupted(-code)
        if code != 0:
            raise NotFound(
                f"the image {self.args.image[:200]} could not be pulled",
                hint="docker's own message is above",
            )

    def _refuse_impossible(self) -> None:
        from typing import cast

        try:
            self.client.offer(**cast("LeaseArguments", lease_fields(self.args)))
        except NeverFits:
            raise
        except GpushareError:
            return  # the request itself is refused then, or not

    def _check_before_waiting(self) -> None:
        from gpushared.cli.capture import check_run

        check_run(self.client, self.docker, self.args, self._create_request)

    def environ_for(self, lease_id: str) -> dict[str, str]:
        """Return docker's environment for a lease that was granted."""
        if self.args.is_set("detach"):
            return self.environ
        from gpushared.cli.relay import fork_relay

        def run() -> Run:
            from gpushared.cli.runs import LeaseRun

            return LeaseRun(self.client, lease_id)

        path = fork_relay(run, self.client.path, terminal=self.args.is_set("tty"))
        return docker_cli.environment_for(f"unix://{path}")

    def acquire(self) -> str:
        """Wait for the lease and return its id."""
        try:
            return self.wait.run().id
        except Interrupted as error:
            say(f"left the queue ({signal.Signals(error.exit_code - 128).name})")
            raise


def refusal_of(program: str, args: RunArguments, client: Client) -> tuple[int, CreateRequest | None]:
    """Return docker's exit code if docker refuses the arguments, and says so itself; else 0.

    The second value is the container that docker would create, if docker has read the arguments.
    """
    if are_plain(args):
        return 0, None
    from gpushared.cli.capture import read_run

    return read_run(program, args, partial(docker_cli.api_version_of, client))


def print_warnings(args: RunArguments, options: OurOptions = RUN) -> None:
    """Warn on stderr of arguments that may not be meant, and tell the size if none was named."""
    if misplaced := option_after_image(args, options):
        say(
            f"warning: {misplaced} stands after the image, so the container's program gets it; "
            f"options of gpushare {options.command} stand before the image"
        )
    if not _names_size(args):
        size = "MIG instance" if args.own_options.get("isolation") == "mig" else "whole GPU"
        say(f"1 {size}, because no size was named")


def advice_of(args: RunArguments) -> str:
    """Advise a user who runs a container detached and must wait for its lease."""
    if not args.is_set("detach"):
        return ""
    advice = "`gpushare submit` queues a container and comes back at once"
    if "max-wait" not in args.own_options:
        advice += "; with --max-wait 10m `gpushare run -d` gives up after that time"
    return advice


def may_go_elsewhere(client: Client, args: RunArguments) -> bool:
    """Return True for a container of the pool, and False for one that is of this node alone."""
    options = args.own_options
    if any(options.get(name) for name in ("pool", "nodes", "span")):
        return True
    return bool(options.get("node")) and options["node"] != client.status().node


def check_privileges(client: Client, args: RunArguments) -> None:
    """Warn of --privileged where it is given; elsewhere raise PermissionRefused, before anybody waits.

    For a container of the pool, refuse each option in ``NOT_IN_A_POOL``.
    """
    options = [name for name in NOT_IN_A_POOL if args.value(name).lower() not in {"", "0", "f", "false"}]
    if not options:
        return
    if may_go_elsewhere(client, args):
        raise PermissionRefused(
            f"--{options[0]} is not allowed for a container of a pool", hint="leave it out"
        )
    if "privileged" not in options:
        return  # the daemon judges the other options once docker has read all of them
    body = json.dumps({"Image": args.image, "HostConfig": {"Privileged": True}}).encode()
    with suppress(NotFound, Unimplemented):  # the gate of a daemon without this call judges all the same
        for finding in client.explain_policy(body, "").findings:
            if finding.field == PRIVILEGED and finding.verdict == "refused":
                # The gate's own hint names --gpus, which `gpushare run` refuses.
                raise PermissionRefused(
                    "you may not use --privileged on this node",
                    hint="GPUs need no privileges here: leave it out",
                )
    say("warning: --privileged lets the container reach every GPU of this machine, whatever its lease says")


def _names_size(args: RunArguments) -> bool:
    return any(name in args.own_options for name in _SIZES)


def lease_fields(args: RunArguments) -> dict[str, object]:
    """Read the lease from our options, as keyword arguments of ``Client.request``. Raises UsageError."""
    options = args.own_options
    fields: dict[str, object] = {
        parameter.python_name: _READERS.get(parameter.option, str)(options.get(parameter.option, ""))
        for parameter in LEASE_PARAMETERS
    }
    fields |= {
        "gpu": fields["gpu"] if _names_size(args) else WHOLE_GPU,
        "after": names(options.get("after", "")),
        "requeue": requeue(args),
        "restart_on_fault": _restarts(args),
        "host_cpu_milli": lease_values.cpu_milli(args),
        "host_memory_bytes": lease_values.memory_bytes(args),
    }
    check_values(fields)
    return fields


def with_lease_ids(client: Client, request: dict[str, object]) -> dict[str, object]:
    """Return the request with the ids of the leases that it names. Raises NotFound, StateConflict."""
    references = {key: leases for key in ("after", "near", "away_from") if (leases := request[key])}
    if not references:
        return request
    from typing import cast

    from gpushared.cli.references import lease_id

    return request | {
        key: [lease_id(client, reference) for reference in cast("list[str]", leases)]
        for key, leases in references.items()
    }


def names(text: str) -> list[str]:
    """Return the names in a list with commas."""
    return [name.strip() for name in text.split(",") if name.strip()]


def requeue(args: RunArguments) -> bool | None:
    """Return the choice to requeue; None if neither option was given."""
    yes, no = (bool(args.own_options.get(name)) for name in ("requeue", "no-requeue"))
    if yes and no:
        raise UsageError("--requeue and --no-requeue exclude each other", hint="leave one of them out")
    if yes and args.is_set("rm"):
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


def _restarts(args: RunArguments) -> int:
    """Return the number of restarts on a fault.

    Raises UsageError beside options of docker that remove the container, or start it by themselves.
    """
    text = args.own_options.get("restart-on-fault", "")
    if not text:
        return 0
    number = whole_number("--restart-on-fault", text, 0, 100)
    if number and args.is_set("rm"):
        raise UsageError(
            "conflicting options: --restart-on-fault and --rm",
            hint="a container that is removed cannot be started again: leave one of them out",
        )
    if number and args.value("restart") not in {"", "no"}:
        raise UsageError(
            "conflicting options: --restart-on-fault and --restart",
            hint="docker's policy starts it again after faults too: leave one of them out",
        )
    return number


def max_wait_seconds(args: RunArguments) -> int | None:
    """Return how long the user would wait; None = for ever."""
    if "max-wait" not in args.own_options:
        return None
    from gpushared.domain.model.units import parse_duration

    with wrong_values("--max-wait"):
        return parse_duration(args.own_options["max-wait"], least=0)
