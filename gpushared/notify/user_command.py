"""Run the site's command for a notification, as the user whom it concerns."""

from __future__ import annotations

import asyncio
import os
import pwd
from collections.abc import Sequence
from dataclasses import dataclass

from gpushared.daemon.programs import run_program
from gpushared.notify.attempt import Attempt, Delivered, GivenUp, TryAgain

PATH = "/usr/local/bin:/usr/bin:/bin"
BOUNDS = ("prlimit", "--core=0", "--cpu=60", "--fsize=67108864", "--nofile=256", "--")
"""The program of util-linux lowers the limits of the process that becomes the command."""


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
            [*BOUNDS, *words],
            seconds=seconds,
            text=text,
            silent=True,
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
