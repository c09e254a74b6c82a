"""Give the audit one line for each request that changes something or is refused.

The audit gets a line when the answer begins, before its first byte: every answered request has its line.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from urllib.parse import parse_qs

from gpushared.domain.model.errors import Code, GpushareError, http_status
from gpushared.domain.model.request import Caller
from gpushared.gate.containers.ownership import NotYours
from gpushared.net.error_answers import RefusedRequestError, RequestRefusal
from gpushared.net.http_server import Exchange
from gpushared.storage.audit.line import AuditLine, CallRecord, Origin, Sink, line_now

READING = frozenset({"GET", "HEAD"})
_CHANGES_NOTHING = re.compile(r"/auth|/containers/[^/]+/(wait|resize)|/exec/[^/]+/resize")
"""These posts only look, wait, or report a terminal's size."""
_ARCHIVE = re.compile(r"/containers/[^/]+/archive")
_REFUSALS = frozenset({Code.INVALID_ARGUMENT, Code.PERMISSION_DENIED, Code.RESOURCE_EXHAUSTED})
"""These errors give a line even to a request that would have changed nothing. Other errors only report a
state."""
GONE = "the client went away before there was an answer"


@dataclass(slots=True)
class Recording:
    """Record one request. ``endpoint`` is the client's text until the gate has parsed the target."""

    exchange: Exchange
    sink: Sink
    endpoint: str
    record: CallRecord = field(default_factory=CallRecord)
    written: bool = False

    @property
    def changes(self) -> bool:
        """Return True if the request would change something, by its method and path."""
        return self.exchange.method not in READING and not _CHANGES_NOTHING.fullmatch(self.endpoint)

    def answered(self, status: int) -> None:
        """Write the line, because the answer begins."""
        if self.changes:
            self._write(status)

    def refused(self, error: GpushareError) -> None:
        """Write the line of a request that the daemon refuses."""
        if self.changes or error.code in _REFUSALS or isinstance(error, NotYours):
            self._write(http_status(error), error.code, error.message)

    def broken(self, error: RefusedRequestError) -> None:
        """Write the line of a request that breaks a bound of HTTP."""
        error.recorded = True
        self._write(error.status, error.code, error.message)

    def gone(self) -> None:
        """Write the line of a request that will get no answer, if it changes something."""
        if self.changes:
            self._write(0, text=GONE)

    def _write(self, status: int, code: str = "", text: str = "") -> None:
        if self.written:
            return
        self.written = True
        record = self.record
        notes = "; ".join(part for part in (text, record.note, _archive_path(self)) if part)
        line = line_now(
            self.exchange.caller.uid,
            self.exchange.caller.name,
            self.exchange.method,
            self.endpoint,
            origin=self.exchange.origin,
            container=record.container,
            name=record.name,
            digest=self.exchange.body_digest if record.digest is None else record.digest,
            status=status,
            code=code,
            text=notes,
        )
        self.sink(line)


@contextmanager
def recording(exchange: Exchange, sink: Sink) -> Iterator[Recording]:
    """Record a request while the block handles it; errors pass through."""
    recorded = Recording(exchange, sink, _written_path(exchange.target))
    exchange.on_answer = recorded.answered
    try:
        yield recorded
    except GpushareError as error:
        recorded.refused(error)
        raise
    except RefusedRequestError as error:
        recorded.broken(error)
        raise
    finally:
        if not exchange.started:
            recorded.gone()


def line_of_refusal(refusal: RequestRefusal, caller: Caller, origin: Origin) -> AuditLine:
    """Return the line of a request that was refused before its endpoint was known."""
    method = refusal.method.decode("ascii", "backslashreplace")
    return line_now(
        caller.uid,
        caller.name,
        method,
        _written_path(refusal.target),
        origin=origin,
        status=refusal.status,
        code=refusal.code,
        text=refusal.message,
    )


def _archive_path(recording: Recording) -> str:
    """Return an archive's path in the container, which says more about the request than a digest."""
    if not _ARCHIVE.fullmatch(recording.endpoint):
        return ""
    query = recording.exchange.target.partition(b"?")[2].decode("ascii", "backslashreplace")
    return f"path {value}" if (value := "".join(parse_qs(query).get("path", [])[:1])) else ""


def _written_path(target: bytes) -> str:
    """Return the path without the query, which may hold secrets."""
    return target.partition(b"?")[0].decode("ascii", "backslashreplace")
