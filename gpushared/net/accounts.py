"""Look up callers in the system's user database."""

from __future__ import annotations

import asyncio
import os
import pwd
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

from gpushared.domain.model.errors import TimedOut
from gpushared.domain.model.request import Caller

LOOKUP_SECONDS = 5.0
_NAME_THREADS = ThreadPoolExecutor(max_workers=16, thread_name_prefix="names")
_asked: dict[tuple[object, ...], Future[Any]] = {}
"""These questions are under way."""
_Answer = TypeVar("_Answer")


@dataclass(frozen=True, slots=True)
class Account:
    """Hold a caller with its supplementary groups and its home, which is empty if it has none."""

    caller: Caller
    groups: tuple[int, ...]
    home: str = ""


@dataclass(frozen=True, slots=True)
class PathWish:
    """Name a path that a container must see."""

    path: str
    write: bool


async def ask_names(question: Callable[..., _Answer], *args: object) -> _Answer:
    """Ask the name services off the event loop.

    The name services can hang for minutes, so the question runs in threads for which nothing else waits. A
    question that is under way already gets the same answer, so that one user's connections do not take all
    threads.
    """
    key = (question, *args)
    asked = _asked.get(key)
    if asked is None:
        asked = _asked[key] = _NAME_THREADS.submit(question, *args)
        asked.add_done_callback(lambda _: _asked.pop(key, None))
    answer: _Answer = await asyncio.shield(asyncio.wrap_future(asked))
    return answer


async def look_up(caller: Caller) -> Account:
    """Return the caller's account from the system's user database; without an entry it has only its ids.

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
