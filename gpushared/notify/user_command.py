"""Run the site's command for a notification, as the user whom it concerns."""

from __future__ import annotations

import asyncio
import os
import pwd
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gpushared.daemon.programs import run_program
from gpushared.notify.attempt import Attempt, Delivered, GivenUp, TryAgain

PATH = "/usr/local/bin:/usr/bin:/bin"
BOUNDS = ("prlimit", "--core=0", "--cpu=60", "--fsize=67108864", "--nofile=256", "--")
"""The program of util-linux lowers the limits of the process that becomes the command."""
JOIN = """\
echo 0 >/proc/self/oom_score_adj
while [ "$1" != -- ]; do
    echo 0 >"$1" || exit 75
    shift
done
shift
unset PWD OLDPWD SHLVL
exec "$@"
"""
"""While it is root, the process gives up the daemon's protection from the OOM killer, and joins the cgroups whose
files are its arguments before ``--``. What the command leaves behind stays in them."""


@dataclass(frozen=True, slots=True)
class _Account:
    name: str
    uid: int
    gid: int
    groups: tuple[int, ...]
    home: str


async def run(
    command: Sequence[str], uid: int, text: str, *, seconds: float, cgroups: Iterable[str] = ()
) -> Attempt:
    """Run the command with ``text`` on their standard input, and with the user's rights only.

    Nothing reads the output. The event names the uid itself, so the command runs as root for leases of root
    only. ``cgroups``: the files by which a process joins the user's cgroups.
    """
    account = await asyncio.to_thread(_account, uid)
    if account is None:
        return GivenUp(f"uid {uid} has no account")
    try:
        result = await run_program(
            ["/bin/sh", "-c", JOIN, "sh", *cgroups, "--", *_becoming(account), *BOUNDS, *command],
            seconds=seconds,
            text=text,
            silent=True,
            ends_group=True,
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
    if result.status == 0:
        return Delivered()
    temporary = result.status == os.EX_TEMPFAIL
    why = f"it ended with {result.status}"
    return TryAgain(why) if temporary else GivenUp(why)


def _becoming(account: _Account) -> tuple[str, ...]:
    groups = ",".join(map(str, account.groups))
    return ("setpriv", f"--reuid={account.uid}", f"--regid={account.gid}", f"--groups={groups}", "--")


def _account(uid: int) -> _Account | None:
    try:
        entry = pwd.getpwuid(uid)
    except KeyError:
        return None
    groups = tuple(os.getgrouplist(entry.pw_name, entry.pw_gid))
    return _Account(entry.pw_name, entry.pw_uid, entry.pw_gid, groups, entry.pw_dir)
