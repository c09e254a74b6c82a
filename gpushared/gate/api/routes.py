"""Decode a request's target once, check its parameters, and find its endpoint and the gate's action on it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from urllib.parse import parse_qsl, quote, unquote_to_bytes, urlencode

from gpushared.domain.leases.stop_order import KILL, AskedEnd
from gpushared.domain.model.errors import PermissionRefused, RequestError
from gpushared.domain.model.request import Caller
from gpushared.domain.model.units import shown
from gpushared.gate.api.body import parse_object, serialise
from gpushared.ports import LABEL_OWNER

_GROUPS = {"{name...}": "(?P<name>.+)", "{name}": "(?P<name>[^/]+)", "{rest...}": ".+"}
VERSION = re.compile(r"v[0-9]{1,3}(?:\.[0-9]{1,3})?")
ABSOLUTE = re.compile(rb"https?://[^/?#]*", re.IGNORECASE)
HEXLESS_PERCENT = re.compile(rb"%(?![0-9A-Fa-f]{2})")
MAX_PARAMETERS = 100
FALSE = frozenset({"", "0", "no", "false", "none"})
"""The engine reads these values as false and all others as true."""
REPEATABLE = frozenset({"names", "platform", "type", "changes"})
FLAG = r"[A-Za-z0-9]{0,8}"
NUMBER = r"-?[0-9]{0,10}"
WORD = r"[A-Za-z0-9+-]{0,64}"
TIME = r"[A-Za-z0-9.:+-]{0,64}"
LINE = r"[ -~]{0,512}"
LONG = r"[^\0]{0,65536}"

_WORDS: Mapping[str, str] = {
    FLAG: "all size stream one-shot v force logs stdin stdout stderr follow timestamps details digests"
    " manifests shared-size identity verbose noOverwriteDirNonDir copyUIDGID statement"
    # The Docker SDK for Python sends these; no engine reads the first two.
    " trunc_cmd only_ids link",
    NUMBER: "limit h w t",
    WORD: "signal condition tail scope",
    TIME: "since until",
    LINE: "name detachKeys ps_args platform fromImage tag names term type fromSrc repo",
    LONG: "filters path message changes",
}
ONLY_NO = frozenset({"link"})
NO = re.compile(r"0|no|false|none|", re.IGNORECASE)
"""The engine reads these values as no."""
FORMS: Mapping[str, re.Pattern[str]] = {
    name: re.compile(form, re.DOTALL) for form, names in _WORDS.items() for name in names.split()
}
COLUMNS = r"pid(,[a-z_%]+)*"
UNIX = r"-[AadefFjlLyTHmcw]+"
BSD = r"[auxfjlvsmcwSH]+"
ARGUMENTS = re.compile(rf"(({UNIX}|{BSD}|-aux|(-[Aae]*o|[ax]*o) ?{COLUMNS})( |$))*")
Filters = dict[str, list[str]]


class RouteAction(StrEnum):
    """Name the action on a confined caller's request; most requests of trusted callers pass unchanged."""

    PASS = "pass"  # noqa: S105 - a word, no password
    REFUSE = "refuse"
    TRUSTED = "trusted"
    BUILD = "build"
    INFO = "info"
    EVENTS = "events"
    CREATE = "create"
    START = "start"
    RESTART = "restart"
    UNPAUSE = "unpause"
    END = "end"
    UPDATE = "update"
    RENAME = "rename"
    TOP = "top"
    CONTAINER = "container"
    ATTACH = "attach"
    ARCHIVE = "archive"
    CONTAINER_LIST = "container-list"
    CONTAINER_PRUNE = "container-prune"
    EXEC_CREATE = "exec-create"
    EXEC = "exec"
    IMAGE = "image"
    IMAGE_LIST = "image-list"
    PULL = "pull"
    REGISTRY = "registry"
    NETWORK = "network"
    NETWORK_LIST = "network-list"
    NETWORK_INSPECT = "network-inspect"
    NETWORK_CREATE = "network-create"
    NETWORK_CONNECT = "network-connect"
    NETWORK_PRUNE = "network-prune"
    VOLUME = "volume"
    VOLUME_LIST = "volume-list"
    VOLUME_CREATE = "volume-create"
    VOLUME_PRUNE = "volume-prune"
    PLUGIN = "plugin"


class Payload(StrEnum):
    """Name the kind of body that an endpoint takes."""

    NONE = "none"
    """Engines ignore a body here."""
    REFUSED = "refused"
    """Engines refuse a body here, because older ones read options from it."""
    STREAM = "stream"


@dataclass(frozen=True, slots=True)
class Route:
    """Describe an endpoint: ``query`` lists the parameters that a confined caller may give.

    ``closed`` lists the parameters that engines read too, but that only trusted callers may give. Both are
    empty if only trusted callers may use the endpoint: there the engine alone reads the query. ``why`` and
    ``hint`` are the refusal that other callers get.
    """

    methods: tuple[str, ...]
    path: str
    action: RouteAction
    query: frozenset[str] = frozenset()
    closed: frozenset[str] = frozenset()
    payload: Payload = Payload.NONE
    hijack: bool = False
    registry: bool = False
    """The caller's password for a registry is passed on."""
    why: str = ""
    hint: str = ""

    @property
    def pattern(self) -> re.Pattern[str]:
        """Return the pattern of the path.

        ``{name}`` in ``path`` is one segment; ``{name...}`` may hold slashes, as images' names do.
        """
        escaped = re.escape(self.path)
        for placeholder, group in _GROUPS.items():
            escaped = escaped.replace(re.escape(placeholder), group)
        return re.compile(escaped)


@dataclass(frozen=True, slots=True)
class Match:
    route: Route
    name: str = ""
    """The name of the container, exec, image, network or volume in the path."""


class RouteTable:
    """Hold the routes in the order of trial: a path in full comes before a path with a name."""

    def __init__(self, routes: tuple[Route, ...]) -> None:
        self._by_first: dict[str, list[tuple[re.Pattern[str], Route]]] = {}
        for route in routes:
            first = route.path.split("/", 2)[1]
            self._by_first.setdefault(first, []).append((route.pattern, route))

    def match(self, method: str, path: str) -> Match | None:
        """Return the route of a request, None if no route matches."""
        first = path.split("/", 2)[1]
        for pattern, route in self._by_first.get(first, ()):
            if method in route.methods and (path_match := pattern.fullmatch(path)):
                return Match(route, path_match.groupdict().get("name") or "")
        return None


@dataclass(frozen=True, slots=True)
class Target:
    """Hold a decoded target: ``path`` has no version prefix and no doubled slashes.

    ``version`` is ``v1.41`` or empty.
    """

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
        unchanged = tuple((key, value) for key, value in self.query if key not in changes)
        return replace(self, query=(*unchanged, *changes.items()))

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
    # A query may hold secrets, and the error's text is logged.
    path = raw.partition(b"?")[0][:200].decode("ascii", "backslashreplace")
    return RequestError(f"{path} is no path of the Docker Engine API")


def asked_end(method: str, target: Target) -> AskedEnd | None:
    """Return the end that a stop, restart, kill or removal asks for; None if a removal ends nothing."""
    if method == "DELETE":
        return KILL if target.flag("force") else None
    if target.path.endswith("/kill"):
        return AskedEnd(target.get("signal") or "KILL", kill=False)
    return asked_stop(target)


def asked_stop(target: Target) -> AskedEnd:
    """Return the stop that a stop or restart asks for.

    The engine ignores a grace that is no number, or refuses the request.
    """
    try:
        grace = int(target.get("t"))
    except ValueError:
        grace = None
    return AskedEnd(target.get("signal"), grace)


def drop_unknown(route: Route, target: Target) -> tuple[Target, list[str]]:
    """Return the target without the parameters that engines do not read, and the names of these parameters.

    A request that only trusted callers may make stays as it is.
    """
    if route.action in {RouteAction.TRUSTED, RouteAction.BUILD}:
        return target, []
    parameters = route.query | route.closed
    dropped = sorted({name for name, _ in target.query} - parameters)
    return replace(target, query=tuple(each for each in target.query if each[0] in parameters)), dropped


def check_parameters(route: Route, target: Target) -> None:
    """Raise for a parameter that a confined caller may not give, or that is repeated or malformed.

    Raises ``PermissionRefused`` or ``RequestError``.
    """
    seen: set[str] = set()
    for name, value in target.query:
        if name not in route.query or (name in ONLY_NO and not NO.fullmatch(value)):
            raise PermissionRefused(f"the parameter {name} is not for you", hint="leave it out")
        if name in seen and name not in REPEATABLE:
            raise RequestError(f"the parameter {name} is given twice", hint="give it once")
        seen.add(name)
        if not FORMS[name].fullmatch(value):
            raise RequestError(f"{shown(value)} is no value of the parameter {name}")


def check_ps(arguments: str) -> None:
    """Raise ``PermissionRefused`` for options that could show more than the container's own processes."""
    if not ARGUMENTS.fullmatch(arguments):
        raise PermissionRefused(
            f"`ps {arguments}` is not for you",
            hint="try -ef, aux, or -o with pid as its first column and columns without titles",
        )


def parse_filters(raw: str) -> Filters:
    """Read the filters of a request.

    Clients write lists (``{"label": ["a=b"]}``) or, in the old form, sets (``{"label": {"a=b": true}}``).
    """
    filters: Filters = {}
    for name, values in (parse_object(raw.encode()) if raw else {}).items():
        chosen = [value for value, on in values.items() if on] if isinstance(values, dict) else values
        if not isinstance(chosen, list) or not all(isinstance(value, str) for value in chosen):
            raise RequestError(f"the filter {name} is not a list of strings: {json.dumps(values)}")
        filters[name] = chosen
    return filters


def own_only(raw: str, caller: Caller) -> str:
    """Add a filter that only the caller's objects pass; the engine requires all labels to match."""
    return write_filters(with_own(parse_filters(raw), caller))


def with_own(filters: Mapping[str, Sequence[str]], caller: Caller) -> Filters:
    copied = {name: list(values) for name, values in filters.items()}
    return {**copied, "label": [*filters.get("label", ()), f"{LABEL_OWNER}={caller.uid}"]}


def write_filters(filters: Mapping[str, Sequence[str]]) -> str:
    return serialise(filters).decode()
