"""What the daemon and its helper program say to each other. Standard library only.

The order is one line of JSON, and so is the answer; empty lines before the answer say that there is progress.
The bytes of an archive follow the order, or the answer.
"""

from enum import StrEnum
from typing import Any

Order = dict[str, Any]
STAT, AGAIN = "stat", "again"
"""What an answer has: the file that was found, or the path that is to be looked for from the beginning."""
BLOCK_BYTES = 256 * 1024
START = "start it first, or write to a volume or directory that it mounts"


class Deed(StrEnum):
    """What the helper is to do."""

    LOOK = "look"
    READ = "read"
    WRITE = "write"
    PICK = "pick"


class Kind(StrEnum):
    """Why the helper refuses."""

    MISSING = "missing"
    FORBIDDEN = "forbidden"
    BROKEN = "broken"
    FAILED = "failed"


class RefusedError(Exception):
    """The helper does not do what it is asked for; the text says why, for the caller to read."""

    def __init__(self, kind: Kind, text: str, hint: str = "") -> None:
        super().__init__(text)
        self.kind = kind
        self.hint = hint
