"""The diaries: what jobs wrote about themselves. The product is not asked.

Each container has a file in the shared folder and appends to it: a line when it starts, one at each beat, one
when it ends. All times are seconds since the machine's boot, which no restart of a daemon changes.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.chaos.plan import BEAT_SECONDS

PROGRAM: Final = f"""
diary=/out/$0.$HOSTNAME
say() {{ read up rest </proc/uptime; echo "$1 $up $2" >>"$diary"; }}
code=$(echo "$2" | cut -d, -f "${{GPUSHARE_ATTEMPT:-1}}")
[ -n "$code" ] || code=${{2##*,}}
trap 'trap "" TERM; say end 143; exit 143' TERM
say start "${{GPUSHARE_JOB_ID:--}} ${{GPUSHARE_ATTEMPT:-0}} ${{GPUSHARE_ARRAY_INDEX:--}} \
${{GPUSHARE_LEASE:--}} ${{GPUSHARE_GPU_UUIDS:--}} ${{GPUSHARE_COMPUTE_PERCENT:-0}} \
${{GPUSHARE_MEMORY_BYTES:-0}}"
n=0
while [ "$n" -lt "$1" ]; do say beat; echo "line $n"; sleep {BEAT_SECONDS}; n=$((n + 1)); done
trap '' TERM
say end "$code"
exit "$code"
"""
"""Run as ``sh -c PROGRAM KEY BEATS CODES`` with the shared folder at ``/out``."""


@dataclass(frozen=True, slots=True)
class Run:
    """One start of a container, until it ended or was not heard any more.

    ``marks``: the times of all its lines. ``code`` is None where it wrote no end.
    """

    key: str
    container: str
    job: str
    attempt: int
    index: str
    lease: str
    gpus: tuple[str, ...]
    percent: float
    memory_bytes: int
    marks: tuple[float, ...]
    code: int | None
    lines: tuple[str, ...] = ()

    @property
    def work(self) -> tuple[str, str]:
        """Which piece of work it is: the key, and the number in an array."""
        return self.key, self.index

    @property
    def began(self) -> float:
        return self.marks[0]

    @property
    def last(self) -> float:
        """When it was heard last."""
        return self.marks[-1]

    def show(self) -> str:
        """The first and the last lines of its diary."""
        lines = self.lines if len(self.lines) <= 4 else (*self.lines[:2], "...", *self.lines[-2:])
        return f"{self.key}.{self.container}: " + " | ".join(lines)


def read_diaries(folder: Path, names: str = "*.*") -> list[Run]:
    """All runs that were written down, by their begin; ``names`` is a pattern of the files' names."""
    runs = [run for file in sorted(folder.glob(names)) for run in read_diary(file.name, file.read_text())]
    return sorted(runs, key=lambda run: run.began)


def read_diary(name: str, text: str) -> list[Run]:
    """The runs of one container; a last line without its end is still being written."""
    key, _, container = name.partition(".")
    runs: list[list[str]] = []
    for line in text.split("\n")[:-1]:
        if line.startswith("start "):
            runs.append([])
        if runs:
            runs[-1].append(line.strip())
    return [_read_run(key, container, lines) for lines in runs]


def _read_run(key: str, container: str, lines: list[str]) -> Run:
    _, _, job, attempt, index, lease, gpus, percent, memory = lines[0].split()
    ends = [line.split() for line in lines if line.startswith("end ")]
    return Run(
        key=key,
        container=container,
        job="" if job == "-" else job,
        attempt=int(attempt),
        index="" if index == "-" else index,
        lease=lease,
        gpus=tuple(gpus.split(",")) if gpus != "-" else (),
        percent=float(percent),
        memory_bytes=int(memory),
        marks=tuple(float(line.split()[1]) for line in lines),
        code=int(ends[-1][2]) if ends else None,
        lines=tuple(lines),
    )
