"""Define the messages between the daemon and its helper program. Use the standard library only.

The order is one line of JSON, and so is the answer; empty lines before the answer tell of progress. The bytes
of an archive follow the order, or the answer.
"""

from enum import StrEnum
from typing import Any

Order = dict[str, Any]
STAT, AGAIN = "stat", "again"
"""An answer has one of these: the file that was found, or the path to look for again from the beginning."""
BLOCK_BYTES = 256 * 1024
START = "start it first, or write to a volume or directory that it mounts"


class Deed(StrEnum):
    """Name the helper's tasks."""

    LOOK = "look"
    READ = "read"
    WRITE = "write"
    PICK = "pick"


class RefusalKind(StrEnum):
    """Name the reasons for which the helper refuses."""

    MISSING = "missing"
    FORBIDDEN = "forbidden"
    BROKEN = "broken"
    FAILED = "failed"


class CopyRefusedError(Exception):
    """The helper does not do what it is asked for; the text says why, for the caller to read."""

    def __init__(self, kind: RefusalKind, text: str, hint: str = "") -> None:
        super().__init__(text)
        self.kind = kind
        self.hint = hint
