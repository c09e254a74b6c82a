"""Write the last words to a client attached to a container whose lease, and not its program, ended."""

from __future__ import annotations

import struct

_STANDARD_ERROR = 2
_FRAME = struct.Struct(">BxxxL")
"""In Docker's attach protocol the stream and the size come before each piece of output."""


def as_output(text: str, *, terminal: bool) -> bytes:
    """Return the text as output of the container: on its terminal, or framed as its standard error."""
    if not text:
        return b""
    if terminal:
        return "".join(f"\r\n{line}" for line in text.splitlines()).encode() + b"\r\n"
    line = f"{text}\n".encode()
    return _FRAME.pack(_STANDARD_ERROR, len(line)) + line
