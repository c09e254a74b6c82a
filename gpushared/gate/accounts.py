"""What the system knows of a caller, and what the caller may do with paths."""

from __future__ import annotations

import asyncio
import json
import os
import pwd
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TypeVar

from gpushared.domain.errors import TimedOut, Unavailable
from gpushared.domain.request import Caller

LOOKUP_SECONDS = 5.0
CHECK_SECONDS = 10.0
CHECKER = Path(__file__).with_name("path_check.py")
_NAME_THREADS = ThreadPoolExecutor(max_workers=4, thread_name_prefix="names")
_Answer = TypeVar("_Answer")


@dataclass(frozen=True, slots=True)
class Account:
    """A caller with its supplementary groups and its home, which is empty where it has none."""

    caller: Caller
    groups: tuple[int, ...]
    home: str = ""


@dataclass(frozen=True, slots=True)
class PathWish:
    """A path that a container is to see."""

    path: str
    write: bool


async def ask_names(question: Callable[..., _Answer], *args: object) -> _Answer:
    """Have the name services asked off the event loop.

    They can hang for minutes. In threads of their own, which nothing else waits for.
    """
    return await asyncio.get_running_loop().run_in_executor(_NAME_THREADS, question, *args)


async def look_up(caller: Caller) -> Account:
    """The caller's account from the system's user database; without an entry it has no more than its ids.

    Raises ``TimedOut`` when the database (LDAP, for example) does not answer.
    """
    try:
        async with asyncio.timeout(LOOKUP_SECONDS):
            return await ask_names(_look_up, caller)
    except TimeoutError:
        raise TimedOut(
            f"the user database does not answer for uid {caller.uid}", hint="try again later"
        ) from None


@dataclass(frozen=True, slots=True)
class Resolved:
    """A path with all symbolic links resolved, as the caller sees it."""

    path: str
    trouble: str
    """Why the caller cannot use it so; empty when it can."""


async def resolve_as(account: Account, wishes: Sequence[PathWish]) -> list[Resolved]:
    """What the caller would find at these paths, none of which holds a NUL.

    A helper process with the caller's ids looks, so that the kernel decides. Raises ``TimedOut``, and
    ``Unavailable`` when the check itself fails.
    """
    order = {
        "uid": account.caller.uid,
        "gid": account.caller.gid,
        "groups": account.groups,
        "wishes": [asdict(wish) for wish in wishes],
    }
    try:
        async with asyncio.timeout(CHECK_SECONDS):
            output = await _run_checker(json.dumps(order).encode())
    except TimeoutError:
        raise TimedOut(
            "checking the mounted paths took too long", hint="is a network file system away?"
        ) from None
    return [Resolved(**result) for result in json.loads(output)]


def _look_up(caller: Caller) -> Account:
    try:
        entry = pwd.getpwuid(caller.uid)
    except KeyError:
        return Account(caller, ())
    groups = os.getgrouplist(entry.pw_name, caller.gid)
    return Account(caller, tuple(sorted(set(groups) - {caller.gid})), entry.pw_dir)


async def _run_checker(words: bytes) -> bytes:
    pipe, null = asyncio.subprocess.PIPE, asyncio.subprocess.DEVNULL
    try:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-I", "-S", str(CHECKER), stdin=pipe, stdout=pipe, stderr=null, cwd="/", env={}
        )
    except OSError as error:
        raise Unavailable(f"mounted paths cannot be checked: {error}") from error
    try:
        output, _ = await process.communicate(words)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode != 0:
        raise Unavailable(
            "mounted paths cannot be checked as the caller", hint="mount nothing; is the daemon not root?"
        )
    return output
