"""What the system knows of a caller."""

from __future__ import annotations

import asyncio
import os
import pwd
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

from gpushared.domain.errors import TimedOut
from gpushared.domain.request import Caller

LOOKUP_SECONDS = 5.0
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


def _look_up(caller: Caller) -> Account:
    try:
        entry = pwd.getpwuid(caller.uid)
    except KeyError:
        return Account(caller, ())
    groups = os.getgrouplist(entry.pw_name, caller.gid)
    return Account(caller, tuple(sorted(set(groups) - {caller.gid})), entry.pw_dir)
