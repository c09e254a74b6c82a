"""Find GPU devices that a trusted caller names by a path: under any name, they are not for free.

Confined callers have a list of the paths that they may name. Trusted callers may name any path, so the file
at the path is looked at, by the kernel's numbers of devices.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import stat
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from gpushared.domain.model.errors import RequestError, TimedOut
from gpushared.engine.reality import DRIVER_OF_DISPLAYS, machine
from gpushared.gate.api.body import Body, objects, section, strings
from gpushared.gate.containers.gpu_request import SIZE_HINT

LOOK_SECONDS = 5.0
MOST_NODES = 4096
PROC = "/proc"
_RULE = re.compile(r"\s*(?P<kind>[abc])\s+(?P<major>\d+|\*):(\d+|\*)\s+(?P<access>[rwm]+)\s*")


async def check_devices(body: Body) -> None:
    """Raise ``RequestError`` where devices or device rules of a create body would give a GPU."""
    host = section(body, "HostConfig")
    paths = [path for device in objects(host, "Devices") if isinstance(path := device.get("PathOnHost"), str)]
    rules = strings(host, "DeviceCgroupRules")
    if not paths and not rules:
        return
    try:
        async with asyncio.timeout(LOOK_SECONDS):
            found = await asyncio.to_thread(_first, paths, rules)
    except TimeoutError:
        raise TimedOut(f"{', '.join(paths)} could not be looked at", hint="try again later") from None
    if found:
        raise RequestError(f"{found} would be a GPU without a lease", hint=SIZE_HINT)


def _first(paths: list[str], rules: list[str]) -> str:
    majors = frozenset(number for number, driver in machine().majors.items() if driver != DRIVER_OF_DISPLAYS)
    for rule in rules:
        if _covers(rule, majors):
            return f"the device rule {rule!r}"
    return next((path for path in paths if _gives_gpu(path, majors)), "")


def _covers(rule: str, majors: frozenset[int]) -> bool:
    """Return True if the rule lets a program read or write such devices; only making nodes does no harm."""
    found = _RULE.fullmatch(rule)
    if found is None or found["kind"] == "b" or not set(found["access"]) & {"r", "w"}:
        return False
    return found["kind"] == "a" or found["major"] == "*" or int(found["major"]) in majors


def _gives_gpu(path: str, majors: frozenset[int]) -> bool:
    real = os.path.realpath(path)
    # A path in /proc means different files to different processes, and the engine is another process.
    if path.startswith(PROC + "/") or real.startswith(PROC + "/"):
        return True
    return any(stat.S_ISCHR(each.st_mode) and os.major(each.st_rdev) in majors for each in _at(Path(real)))


def _at(path: Path) -> Iterator[os.stat_result]:
    """Yield the file and, for a directory, the files in it: the engine gives each device in it."""
    # If a file cannot be looked at, the engine finds that out, and says so.
    with contextlib.suppress(OSError):
        yield path.stat()
        for each in islice(path.rglob("*"), MOST_NODES):
            with contextlib.suppress(OSError):
                yield each.stat()
