"""Declare what may be done to the chosen row: its key, the command it stands for, and the call that does it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from gpushared.cli.ps import time_left
from gpushared.cli.top.panels import PanelRow
from gpushared.client import Client, Lease
from gpushared.client.jobs import Jobs
from gpushared.light import NamedTuple

LOG_LINES = 100
USUAL_EXTENSION = "1h"
PAUSED = {"suspended", "suspending"}


class ActionTarget(NamedTuple):
    """Hold the lease or the job that a command names."""

    name: str
    is_job: bool
    owner: str
    state: str
    has_container: bool


class KeyAction(NamedTuple):
    """Describe an action. ``command`` gives the arguments that do the same; None where it makes no sense.

    ``do`` makes the call and returns a sentence; an action without it runs its command on the terminal.
    ``asks`` names the value that the user types before, and ``usual`` is the value to begin with.
    """

    key: str
    name: str
    command: Callable[[ActionTarget, str], Sequence[str] | None]
    do: Callable[[Client, ActionTarget, str], str] | None = None
    asks: str = ""
    usual: str = ""


def target_of(row: PanelRow | None) -> ActionTarget | None:
    """Return what commands on this machine can name.

    A lease of another node has an id of that node only; its job, if the caller may see it, has one of the pool.
    """
    lease = None if row is None else row.item
    if not isinstance(lease, Lease) or lease.state == "ended":
        return None
    if lease.node or (lease.job_id and lease.job_id == lease.id):
        return (
            ActionTarget(lease.job_id, True, lease.owner, lease.state, bool(lease.grants))
            if lease.job_id
            else None
        )
    has_container = bool(lease.container_id)
    return ActionTarget(lease.id, False, lease.owner, lease.state, has_container) if lease.id else None


def _logs(target: ActionTarget, _: str) -> Sequence[str] | None:
    return ("logs", "-f", "-n", str(LOG_LINES), target.name) if target.has_container else None


def _stop(target: ActionTarget, _: str) -> Sequence[str]:
    return ("cancel" if target.is_job else "stop", target.name)


def _pause(target: ActionTarget, _: str) -> Sequence[str] | None:
    if target.is_job or target.state not in {"active", *PAUSED}:
        return None
    return ("resume" if target.state in PAUSED else "pause", target.name)


def _extend(target: ActionTarget, duration: str) -> Sequence[str] | None:
    return None if target.is_job else ("extend", target.name, duration or USUAL_EXTENSION)


def _do_stop(client: Client, target: ActionTarget, _: str) -> str:
    if target.is_job:
        return f"{Jobs(client).cancel(target.name).id} ends"
    lease = client.stop(target.name)
    return f"{lease.id} is over" if lease.state == "ended" else f"{lease.id} ends"


def _do_pause(client: Client, target: ActionTarget, _: str) -> str:
    call = client.resume if target.state in PAUSED else client.pause
    lease = call(target.name)
    return f"{lease.id} is {lease.state}"


def _do_extend(client: Client, target: ActionTarget, duration: str) -> str:
    return time_left(client.extend(target.name, duration), time.time())


ACTIONS = (
    KeyAction("k", "stop", _stop, _do_stop),
    KeyAction("p", "pause or resume", _pause, _do_pause),
    KeyAction("e", "extend", _extend, _do_extend, "by", USUAL_EXTENSION),
    KeyAction("l", "logs", _logs),
)


def story(client: Client, target: ActionTarget, *, whole: bool) -> list[str]:
    """Return the lines of ``gpushare why``; without ``whole`` the story of all that happened is left out."""
    from gpushared.cli.why import job_lines, lease_lines

    now = time.time()
    if target.is_job:
        lines = list(job_lines(Jobs(client).explain(target.name), now))
    else:
        lines = list(lease_lines(client.explain(target.name), now))
    if whole or "  story" not in lines:
        return lines
    return lines[: lines.index("  story")]
