"""One HTTP/1.1 request read by the letter of RFC 9112, with none of the leniency that parsers have."""

from __future__ import annotations

import re
from dataclasses import dataclass

TOKEN = rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
LINE = re.compile(rb"(%b) (/[!-~]*) HTTP/1\.1" % TOKEN)
FIELD = re.compile(rb"(%b): ?([!-~\x80-\xff](?:[ \t!-~\x80-\xff]*[!-~\x80-\xff])?)?" % TOKEN)


@dataclass(frozen=True)
class WireRequest:
    """A request as it went over the wire. Names of headers are in lower case."""

    method: str
    target: bytes
    headers: tuple[tuple[bytes, bytes], ...]
    body: bytes

    def values(self, name: bytes) -> list[bytes]:
        return [value for key, value in self.headers if key == name]


def read(raw: bytes, *, upgraded: bool = False) -> WireRequest:
    """The one request that ``raw`` is. Raises ``ValueError`` where it is less, more, or something else.

    ``upgraded``: bytes of another protocol may follow it.
    """
    head, separator, rest = raw.partition(b"\r\n\r\n")
    line, *fields = head.split(b"\r\n")
    matches = [FIELD.fullmatch(field) for field in fields]
    start = LINE.fullmatch(line)
    if not separator or start is None or not all(matches):
        raise ValueError(f"no proper head: {head!r}")
    headers = tuple((match[1].lower(), match[2] or b"") for match in matches if match)
    sent = WireRequest(start[1].decode(), start[2], headers, b"")
    body, after = _body(sent, rest)
    if after and not upgraded:
        raise ValueError(f"bytes after the request: {after!r}")
    return WireRequest(sent.method, sent.target, headers, body)


def _body(sent: WireRequest, rest: bytes) -> tuple[bytes, bytes]:
    lengths, codings = sent.values(b"content-length"), sent.values(b"transfer-encoding")
    if len(lengths) + len(codings) > 1 or len(sent.values(b"host")) != 1:
        raise ValueError(f"framed twice, or for no host: {sent.headers}")
    if codings:
        return _chunks(codings[0], rest)
    length = lengths[0] if lengths else b"0"
    if not re.fullmatch(rb"0|[1-9][0-9]*", length) or len(rest) < int(length):
        raise ValueError(f"{length!r} bytes were announced, {len(rest)} came")
    return rest[: int(length)], rest[int(length) :]


def _chunks(coding: bytes, rest: bytes) -> tuple[bytes, bytes]:
    if coding != b"chunked":
        raise ValueError(f"coded as {coding!r}")
    body = b""
    while match := re.match(rb"([1-9a-f][0-9a-f]*)\r\n", rest):
        size = int(match[1], 16)
        piece, end = rest[match.end() :][:size], rest[match.end() + size :][:2]
        if len(piece) < size or end != b"\r\n":
            raise ValueError("a chunk is cut off")
        body, rest = body + piece, rest[match.end() + size + 2 :]
    if not rest.startswith(b"0\r\n\r\n"):
        raise ValueError(f"no end of the chunks: {rest[:40]!r}")
    return body, rest[5:]
