"""Change leases with one call each: extend, hold, unhold, pause, resume, preempt, priority, resize.

Some modules are imported where they are used: a completion of one of these commands must not wait for them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import TypeVar

import click

from gpushared.cli import complete, text
from gpushared.cli.errors import report, say, wrong_values
from gpushared.cli.options import WholeNumber, for_many
from gpushared.cli.references import lease_id, set_held, set_priority
from gpushared.client import Client, Lease
from gpushared.domain.model.errors import GpushareError, StateConflict

MOVES = {
    "suspending": "its GPU memory is being moved to the host",
    "resuming": "its GPU memory is being moved back",
}
"""The states in which a lease is on its way, and what happens there."""
QUIET_SECONDS = 2.0
POLL_SECONDS = 30.0
_Target = TypeVar("_Target")


def move_each(names: Iterable[str], work: Callable[[str], str]) -> int:
    """Do work on each lease as ``each_lease`` does; a signal ends the command, but not the daemon's work."""
    from gpushared.cli.waiting import Interrupted, signals_interrupt

    try:
        with signals_interrupt():
            return each_lease(names, work)
    except Interrupted as end:
        say("the daemon goes on without this command", hint="`gpushare ps` shows how far it is")
        return end.exit_code


def wait_for_move(client: Client, lease: Lease) -> Lease:
    """Return the lease once its move is over; tell the user of a long move."""
    quiet_until: float | None = time.monotonic() + QUIET_SECONDS
    while lease.state in MOVES:
        if quiet_until is not None and time.monotonic() >= quiet_until:
            say(f"{lease.id} is {lease.state}: {MOVES[lease.state]}")
            quiet_until = None
        seconds = POLL_SECONDS if quiet_until is None else QUIET_SECONDS
        lease = client.wait(lease.id, lease.token, timeout_seconds=seconds)
    return lease


def wrong_state(client: Client, lease: Lease, expected: str) -> StateConflict:
    """Return the error for a lease in another state than expected; its story's newest line has the reason."""
    story = client.explain(lease.id).story
    why = f": {story[-1].text}" if story else ""
    return StateConflict(
        f"{lease.id} is {lease.state}, not {expected}{why}", hint=f"its story: gpushare why {lease.id}"
    )


def each_lease(names: Iterable[_Target], work: Callable[[_Target], str]) -> int:
    """Print the result of ``work`` on each lease; return the exit code of the last failure, else 0."""
    code = 0
    for name in names:
        try:
            click.echo(work(name))
        except GpushareError as error:
            code = report(error)
    return code


def begin_each_then_finish(
    names: Iterable[str], begin: Callable[[str], _Target], finish: Callable[[_Target], str]
) -> int:
    """Do slow work on each lease as ``each_lease`` does: begin all of it before the first wait."""
    code = 0
    targets: list[_Target] = []
    for name in names:
        try:
            targets.append(begin(name))
        except GpushareError as error:
            code = report(error)
    return each_lease(targets, finish) or code


@click.command("extend")
@click.argument("lease", shell_complete=complete.leases)
@click.argument("duration")
def extend(lease: str, duration: str) -> int:
    """Give a lease more time than its --time.

    LEASE is a lease id, a container's name, or the beginning of a container's id; DURATION is added: 30m, 2h.
    Where the first in the queue counts on the lease's end, only an administrator can extend it.

    \b
    Examples:
      gpushare extend l-7f3k 2h
      gpushare extend trainer 1d
    """
    from gpushared.cli.ps import time_left
    from gpushared.domain.model.units import parse_duration

    with wrong_values():
        parse_duration(duration)
    client = Client()
    extended = client.extend(lease_id(client, lease), duration)
    click.echo(text.printable(time_left(extended, time.time())))
    return 0


@for_many(complete.waiting, each_lease)
def hold(client: Client, name: str) -> str:
    """Keep requests and jobs that wait from starting, until they are released. They keep their place.

    LEASE is a lease's or a job's id, or the name of its container. Only an administrator releases what an
    administrator holds.

    \b
    Examples:
      gpushare hold l-7f3k
      gpushare hold k3m9x0p2qa
      gpushare unhold l-7f3k
    """
    return set_held(client, name, held=True)


@for_many(complete.waiting, each_lease)
def unhold(client: Client, name: str) -> str:
    """Release requests and jobs that `gpushare hold` or --hold keeps from starting.

    LEASE is a lease's or a job's id, or the name of its container. They start when it is their
    turn and there is room.

    \b
    Examples:
      gpushare unhold l-7f3k
    """
    return set_held(client, name, held=False)


@for_many(complete.leases, move_each)
def pause(client: Client, name: str) -> str:
    """Take running leases off their GPUs, with their containers kept as they are, until they are resumed.

    LEASE is a lease id, a container's name, or the beginning of a container's id. The GPU memory is moved to
    the host's by a CUDA checkpoint; where that does not work, the command is refused with the reason. It ends
    when the lease is paused; Ctrl-C ends only the command.

    \b
    Examples:
      gpushare pause trainer
    """
    lease = wait_for_move(client, client.pause(lease_id(client, name)))
    if lease.state != "suspended":
        raise wrong_state(client, lease, "suspended")
    return lease.id


@for_many(complete.leases, move_each)
def resume(client: Client, name: str) -> str:
    """Bring paused leases back to the GPUs that they had, as soon as there is room.

    LEASE is a lease id, a container's name, or the beginning of a container's id. The command ends when they
    run again. If a lease has to wait for room, the command says for what and ends: the lease comes back by
    itself.

    \b
    Examples:
      gpushare resume trainer
    """
    lease = wait_for_move(client, client.resume(lease_id(client, name)))
    waiting = lease.waiting
    if lease.state == "suspended" and waiting is not None:
        position = f"position {waiting.position} of {waiting.queue_length}"
        why = waiting.text or waiting.reason
        say(f"{lease.id} waits for room, {position}: {why}", hint="it comes back by itself")
    elif lease.state != "active":
        raise wrong_state(client, lease, "active")
    return lease.id


@for_many(complete.leases, each_lease)
def preempt(client: Client, name: str) -> str:
    """Let leases give way to others at once; for administrators.

    LEASE is a lease id, a container's name, or the beginning of a container's id. The mildest step that is
    possible is taken: the lease leaves its GPUs and comes back by itself; or its container is told, stopped,
    and started again when there is room; or it is told and stopped.

    \b
    Examples:
      gpushare preempt l-7f3k
    """
    return client.preempt(lease_id(client, name)).id


@click.command("priority")
@click.argument("lease", shell_complete=complete.leases)
@click.argument("priority", type=WholeNumber(-100, 100), metavar="PRIORITY")
def priority(lease: str, priority: int) -> int:
    """Move a waiting request or job among those of its project: -100 to 100, higher goes first, 0 is usual.

    LEASE is a lease's or a job's id, or the name of its container. A negative PRIORITY stands
    behind two dashes, as -- -10.

    \b
    Examples:
      gpushare priority l-7f3k 10
      gpushare priority trainer 10
      gpushare priority l-7f3k -- -10
    """
    changed = set_priority(Client(), lease, priority)
    click.echo(text.printable(f"{changed.id}: priority {changed.priority}"))
    return 0


@click.command("resize")
@click.option("--gpu", metavar="SIZE", default="", help="Memory and compute: 0.5 or 0.25..1 of each GPU.")
@click.option(
    "--gpu-memory", metavar="SIZE", default="", help="The memory of each GPU by itself: 12g or 8g..24g."
)
@click.option("--gpu-compute", metavar="PERCENT", default="", help="The share of each GPU's compute: 50%.")
@click.argument("lease", shell_complete=complete.leases)
def resize(lease: str, gpu: str, gpu_memory: str, gpu_compute: str) -> int:
    """Give a lease another size, on the GPUs that it has; a queued one keeps its place.

    LEASE is a lease id, a container's name, or the beginning of a container's id. More is given if it is free
    there now and not kept for whoever waits first; memory can be lowered to what is used and a margin. A
    figure that is left out stays. Of a range the lease gets as much as there is room for now; any other size
    ends a range that it had. The command prints which part of the new size holds when: running processes keep
    their limits.

    \b
    Examples:
      gpushare resize l-7f3k --gpu-memory 12g
      gpushare resize trainer --gpu-compute 50%
      gpushare resize trainer --gpu 0.5
      gpushare resize trainer --gpu 0.25..1
    """
    from gpushared.cli.lease_values import option_of
    from gpushared.domain.model.request_spec import read_size

    sizes = {"gpu": gpu, "gpu_memory": gpu_memory, "gpu_compute": gpu_compute}
    for name, size in sizes.items():
        if size:
            with wrong_values(option_of(name)):
                read_size(**{name: size})
    client = Client()
    answer = client.resize(lease_id(client, lease), **sizes)
    lines = [f"{answer.lease.id}: {answer.lease.asks}", *(f"  {effect}" for effect in answer.effects)]
    click.echo("\n".join(map(text.printable, lines)))
    return 0
