"""Decode a request's target once, so that the judged target is the one that is sent."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from urllib.parse import parse_qsl, quote, unquote_to_bytes, urlencode

from gpushared.domain.leases.stop_order import KILL, AskedEnd
from gpushared.domain.model.errors import RequestError

VERSION = re.compile(r"v[0-9]{1,3}(?:\.[0-9]{1,3})?")
ABSOLUTE = re.compile(rb"https?://[^/?#]*", re.IGNORECASE)
HEXLESS_PERCENT = re.compile(rb"%(?![0-9A-Fa-f]{2})")
MAX_PARAMETERS = 100
FALSE = frozenset({"", "0", "no", "false", "none"})
"""The engine's words for false; all others are true."""


@dataclass(frozen=True, slots=True)
class Target:
    """``path`` is decoded, without version prefix and doubled slashes; ``version`` is ``v1.41`` or empty."""

    path: str
    version: str = ""
    query: tuple[tuple[str, str], ...] = ()

    def get(self, name: str) -> str:
        """Return the first value of a query parameter (the one that the engine takes), or empty."""
        return next((value for key, value in self.query if key == name), "")

    def flag(self, name: str) -> bool:
        """Return a query parameter as the engine reads booleans."""
        return self.get(name).strip().lower() not in FALSE

    def with_query(self, **changes: str) -> Target:
        """Return the target with these parameters set, in place of any of the client's."""
        kept = tuple((key, value) for key, value in self.query if key not in changes)
        return replace(self, query=(*kept, *changes.items()))

    def without(self, name: str) -> Target:
        """Return the target without a query parameter."""
        return replace(self, query=tuple(each for each in self.query if each[0] != name))

    def with_path(self, path: str) -> Target:
        return replace(self, path=path)

    def encode(self) -> bytes:
        """Return the target as the engine gets it."""
        path = quote(self.path, safe="/:@!$&'()*,;=~+")
        prefix = f"/{self.version}" if self.version else ""
        query = f"?{urlencode(self.query)}" if self.query else ""
        return f"{prefix}{path}{query}".encode("ascii")


def parse_target(raw: bytes) -> Target:
    """Decode a target. Raises ``RequestError`` for a target that could be read in two ways."""
    match = ABSOLUTE.match(raw)
    raw = raw[match.end() :] or b"/" if match else raw
    raw_path, _, raw_query = raw.partition(b"?")
    if not raw_path.startswith(b"/") or b"#" in raw or HEXLESS_PERCENT.search(raw):
        raise _refused(raw)
    try:
        path = unquote_to_bytes(raw_path).decode("utf-8")
        query = parse_qsl(
            raw_query.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=MAX_PARAMETERS
        )
    except ValueError:
        raise _refused(raw) from None
    segments = [segment for segment in path.split("/") if segment]
    if any(segment in {".", ".."} for segment in segments) or not path.isprintable() or path.endswith("/"):
        raise _refused(raw)
    version = segments.pop(0) if segments and VERSION.fullmatch(segments[0]) else ""
    return Target("/" + "/".join(segments), version, tuple(query))


def _refused(raw: bytes) -> RequestError:
    # A query may hold secrets, and what is said here is kept.
    path = raw.partition(b"?")[0][:200].decode("ascii", "backslashreplace")
    return RequestError(f"{path} is no path of the Docker Engine API")


def asked_end(method: str, target: Target) -> AskedEnd | None:
    """Return the end that a stop, restart, kill or removal asks for; None for a removal that ends nothing."""
    if method == "DELETE":
        return KILL if target.flag("force") else None
    if target.path.endswith("/kill"):
        return AskedEnd(target.get("signal") or "KILL", kill=False)
    return asked_stop(target)


def asked_stop(target: Target) -> AskedEnd:
    """Return the stop of a stop or restart. The engine ignores a grace that is no number, or refuses it."""
    try:
        grace = int(target.get("t"))
    except ValueError:
        grace = None
    return AskedEnd(target.get("signal"), grace)
