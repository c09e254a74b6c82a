"""What somebody attached to a container reads last, where its lease was ended and not the program itself."""

from __future__ import annotations

import struct

_STANDARD_ERROR = 2
_FRAME = struct.Struct(">BxxxL")
"""Docker's attach protocol: the stream and the size come before each piece of output."""


def as_output(text: str, *, terminal: bool) -> bytes:
    """The text as output of the container: on its terminal, or framed as its standard error."""
    if not text:
        return b""
    if terminal:
        return "".join(f"\r\n{line}" for line in text.splitlines()).encode() + b"\r\n"
    line = f"{text}\n".encode()
    return _FRAME.pack(_STANDARD_ERROR, len(line)) + line
