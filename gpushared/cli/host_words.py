"""Read the host's CPU and memory from docker's own options, so that the lease counts them too."""

from __future__ import annotations

import math
import re

from gpushared.light import TYPE_CHECKING

if TYPE_CHECKING:
    from gpushared.cli.docker_args import RunWords

_CPUS = r"\d{1,6}(?:\.\d{1,9})?|\.\d{1,9}"
_MICROSECONDS = r"\d{1,12}"
_MEMORY = r"(\d{1,18}(?:\.\d{1,9})?) ?([kmgtp]?)(?:i?b)?"
"""Compiled where they are needed: most commands say nothing of the host."""
_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4, "p": 5}
DEFAULT_PERIOD = "100000"
"""Docker's, in microseconds, where only ``--cpu-quota`` is given."""


def cpu_milli(words: RunWords) -> int:
    """Return thousandths of a core by ``--cpus`` or ``--cpu-quota``; 0 if neither is a number."""
    cpus = words.value("cpus")
    if cpus:
        return math.ceil(float(cpus) * 1000) if re.fullmatch(_CPUS, cpus, re.ASCII) else 0
    quota, period = words.value("cpu-quota"), words.value("cpu-period") or DEFAULT_PERIOD
    if not quota or not all(re.fullmatch(_MICROSECONDS, each, re.ASCII) for each in (quota, period)):
        return 0
    if not int(period):
        return 0
    return -(-int(quota) * 1000 // int(period))


def memory_bytes(words: RunWords) -> int:
    """Bytes by ``--memory``, where a number alone is bytes; 0 where it is no size, which docker will say."""
    memory = words.value("memory")
    match = re.fullmatch(_MEMORY, memory, re.ASCII | re.IGNORECASE) if memory else None
    return int(float(match[1]) * 1024 ** _POWERS[match[2].lower()]) if match else 0
