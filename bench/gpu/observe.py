"""What was seen, as lines of JSON: one a case, each with the same five keys."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TextIO

KEYS = ("step", "case", "rc", "values", "seconds")


@dataclass(frozen=True, slots=True)
class Observation:
    """One case's outcome.

    ``rc`` is the exit status of what was tried, None where nothing came to an end. A case that did not
    run says why in ``values["skipped"]``, one that went wrong in ``values["error"]``, one that took too
    long in ``values["timed_out"]``.
    """

    step: str
    case: str
    rc: int | None
    values: Mapping[str, Any] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def measured(self) -> bool:
        """Whether it says anything of the GPU."""
        return not {"skipped", "error", "timed_out"} & self.values.keys()

    def line(self) -> str:
        return json.dumps(asdict(self) | {"seconds": round(self.seconds, 3)}, sort_keys=False)


def parse(line: str) -> Observation:
    """Raises ValueError for a line of another form."""
    found = json.loads(line)
    if not isinstance(found, dict) or tuple(found) != KEYS:
        raise ValueError(f"not an observation, it should have the keys {', '.join(KEYS)}: {line[:200]}")
    named = all(isinstance(found[key], str) and found[key] for key in ("step", "case"))
    ended = found["rc"] is None or (isinstance(found["rc"], int) and not isinstance(found["rc"], bool))
    timed = isinstance(found["seconds"], int | float) and found["seconds"] >= 0
    if not (named and ended and timed and isinstance(found["values"], dict)):
        raise ValueError(f"an observation with a value of the wrong kind: {line[:200]}")
    return Observation(**found)


def read(path: Path) -> tuple[Observation, ...]:
    """All observations of a file. Raises OSError, ValueError."""
    return tuple(parse(line) for line in path.read_text().splitlines() if line.strip())


class Recorder:
    """Writes observations to a file at once, so that a run that is cut off has said all it saw."""

    def __init__(self, path: Path, echo: TextIO | None = None) -> None:
        self._file = path.open("w", encoding="utf-8")
        self._echo = echo or sys.stdout
        self.seen: list[Observation] = []

    def add(self, observation: Observation) -> None:
        self.seen.append(observation)
        for stream in (self._file, self._echo):
            print(observation.line(), file=stream, flush=True)

    def close(self) -> None:
        self._file.close()


def by_case(observations: Iterable[Observation]) -> dict[tuple[str, str], Observation]:
    """The last observation of each case."""
    return {(one.step, one.case): one for one in observations}
