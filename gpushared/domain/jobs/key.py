"""Define an attempt's key. Leases name it, so it stands apart from the modules that name leases."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NewType

JobId = NewType("JobId", str)
"""Thirteen characters, ten in older releases, or those of an array and ``_7`` for its job of that number."""


@dataclass(frozen=True, slots=True, order=True)
class AttemptKey:
    """One attempt to run a job; on one node there is at most one part of it. Never used twice."""

    job: JobId
    number: int

    def __str__(self) -> str:
        return f"{self.job}/{self.number}"
