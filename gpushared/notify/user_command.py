"""Run the site's command for a notification, as the user whom it concerns."""

from __future__ import annotations

import asyncio
import os
import pwd
import resource
from collections.abc import Sequence
from dataclasses import dataclass

from gpushared.daemon.programs import run_program
from gpushared.notify.attempt import Attempt, Delivered, GivenUp, TryAgain

PATH = "/usr/local/bin:/usr/bin:/bin"
CPU_SECONDS = 60
FILE_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class _Account:
    name: str
    uid: int
    gid: int
    groups: tuple[int, ...]
    home: str


async def run(words: Sequence[str], uid: int, text: str, *, seconds: float) -> Attempt:
    """Run the words with ``text`` on their standard input, and with the user's rights only.

    Nothing reads the output. The event names the uid itself, so the command runs as root for leases of root
    only.
    """
    account = await asyncio.to_thread(_account, uid)
    if account is None:
        return GivenUp(f"uid {uid} has no account")
    try:
        done = await run_program(
            words,
            seconds=seconds,
            text=text,
            silent=True,
            started=_bound,
            user=account.uid,
            group=account.gid,
            extra_groups=account.groups,
            cwd="/",
            env={
                "PATH": PATH,
                "HOME": account.home,
                "USER": account.name,
                "LOGNAME": account.name,
                "LANG": "C.UTF-8",
            },
        )
    except TimeoutError:
        return GivenUp(f"it does not end within {seconds:g} s")
    except OSError as error:
        return GivenUp(f"it cannot be run as {account.name}: {error.strerror or error}")
    if done.status == 0:
        return Delivered()
    temporary = done.status == os.EX_TEMPFAIL
    why = f"it ended with {done.status}"
    return TryAgain(why) if temporary else GivenUp(why)


def _account(uid: int) -> _Account | None:
    try:
        found = pwd.getpwuid(uid)
    except KeyError:
        return None
    groups = tuple(os.getgrouplist(found.pw_name, found.pw_gid))
    return _Account(found.pw_name, found.pw_uid, found.pw_gid, groups, found.pw_dir)


def _bound(pid: int) -> None:
    """Set the bounds of a process that has just begun."""
    for what, most in (
        (resource.RLIMIT_CPU, CPU_SECONDS),
        (resource.RLIMIT_FSIZE, FILE_BYTES),
        (resource.RLIMIT_CORE, 0),
    ):
        try:
            resource.prlimit(pid, what, (most, most))
        except ProcessLookupError:
            return
