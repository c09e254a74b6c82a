"""What jobs did, by what their containers wrote: the daemons are not asked.

A job writes a line every moment that it lives, so that also one whose machine lost its power has an end.
All times are of the machine's own uptime, which no clock that a test shifts reaches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

WORK: Final = """
me="$0/$GPUSHARE_JOB_ID.$GPUSHARE_ATTEMPT.$(cat "$1/name")"
say() { read up _ </proc/uptime; echo "$1 $up" >>"$me"; }
say began
trap 'say stopped; exit 143' TERM
while [ ! -e "$0/end-$GPUSHARE_JOB_ID" ] && [ ! -e "$0/end-all" ]; do say alive; sleep 0.2; done
say done
"""
"""Run as ``sh -c WORK SHARED HERE``."""


@dataclass(frozen=True)
class Run:
    """One container's life, from its own words."""

    job: str
    attempt: int
    node: str
    words: tuple[tuple[str, float], ...]

    @property
    def began(self) -> float:
        return self.words[0][1]

    @property
    def last(self) -> float:
        """When it lived for sure."""
        return self.words[-1][1]

    @property
    def ended(self) -> str:
        """``done``, ``stopped``, or ``alive`` where it was killed or lives on."""
        return self.words[-1][0]

    def overlaps(self, other: Run) -> bool:
        return self.began <= other.last and other.began <= self.last


class Diary:
    """The directory in which all containers write."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        directory.mkdir()
        directory.chmod(0o1777)

    def runs(self, job: str) -> list[Run]:
        """Of one job, by their begin."""
        found = [self._read(path) for path in self.directory.glob(f"{job}.*")]
        return sorted((run for run in found if run is not None), key=lambda run: run.began)

    def end(self, *jobs: str) -> None:
        """Let them finish their work."""
        for job in jobs:
            (self.directory / f"end-{job}").touch()

    def _read(self, path: Path) -> Run | None:
        # The last line may be under way, or torn by a power cut.
        lines = [line.split() for line in path.read_text().split("\n")[:-1]]
        words = tuple((line[0], float(line[1])) for line in lines if len(line) == 2)
        job, attempt, node = path.name.split(".")
        return Run(job, int(attempt), node, words) if words else None


def overlapping(runs: Sequence[Run]) -> list[tuple[Run, Run]]:
    """Two attempts of a job at the same time; the parts of one are meant to be."""
    return [
        (one, other)
        for number, one in enumerate(runs)
        for other in runs[number + 1 :]
        if one.attempt != other.attempt and one.overlaps(other)
    ]
