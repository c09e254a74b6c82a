"""The endpoints of the Docker Engine API that the gate knows, and what it does with each.

What is not listed is refused, for everybody. ``query`` lists the parameters that a confined caller may give;
trusted callers may give any, which the engine judges.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import StrEnum


class Action(StrEnum):
    """What happens to a request, for confined callers; most are passed on as they are for trusted ones."""

    PASS = "pass"  # noqa: S105 - a word, no password
    TRUSTED = "trusted"
    """Confined callers are refused."""
    CREATE = "create"
    START = "start"
    RESTART = "restart"
    END = "end"
    """Stop, kill, removal: may end the caller's own container."""
    UPDATE = "update"
    CONTAINER = "container"
    """Only the caller's own containers."""
    ATTACH = "attach"
    ARCHIVE = "archive"
    """Only the caller's own containers without bind mounts: the engine copies as root."""
    CONTAINER_LIST = "container-list"
    EXEC_CREATE = "exec-create"
    EXEC = "exec"
    EVENTS = "events"
    PULL = "pull"
    NETWORK = "network"
    NETWORK_CREATE = "network-create"
    NETWORK_CONNECT = "network-connect"
    VOLUME = "volume"
    VOLUME_LIST = "volume-list"
    VOLUME_CREATE = "volume-create"


class Payload(StrEnum):
    """What body an endpoint takes."""

    NONE = "none"
    STREAM = "stream"


@dataclass(frozen=True, slots=True)
class Route:
    methods: tuple[str, ...]
    pattern: re.Pattern[str]
    action: Action
    query: frozenset[str] = frozenset()
    payload: Payload = Payload.NONE
    hijack: bool = False


@dataclass(frozen=True, slots=True)
class Match:
    route: Route
    name: str = field(default="")
    """The container, exec, image, network or volume named in the path."""


def match_route(method: str, path: str) -> Match | None:
    """The route of a request, None when it is on no list."""
    first = path.split("/", 2)[1]
    for route in _BY_FIRST.get(first, ()):
        if method in route.methods and (found := route.pattern.fullmatch(path)):
            return Match(route, found.groupdict().get("name") or "")
    return None


def _route(
    methods: str,
    path: str,
    action: Action,
    query: str = "",
    payload: Payload = Payload.NONE,
    *,
    hijack: bool = False,
) -> Route:
    """``{name}`` in ``path`` is one segment, ``{name...}`` may hold slashes, as images' names do."""
    pattern = (
        re.escape(path).replace(r"\{name\.\.\.\}", "(?P<name>.+)").replace(r"\{name\}", "(?P<name>[^/]+)")
    )
    return Route(
        tuple(methods.split()), re.compile(pattern), action, frozenset(query.split()), payload, hijack
    )


_A = Action
_IN = Payload.STREAM
_ATTACH = "detachKeys logs stream stdin stdout stderr"
_LOGS = "follow stdout stderr since until timestamps tail details"
_FILTERS = "filters"

ROUTES: tuple[Route, ...] = (
    _route("GET HEAD", "/_ping", _A.PASS),
    _route("GET", "/version", _A.PASS),
    _route("GET", "/info", _A.PASS),
    _route("GET", "/events", _A.EVENTS, "since until filters"),
    _route("POST", "/auth", _A.PASS, payload=_IN),
    _route("GET", "/system/df", _A.TRUSTED),
    # Containers
    _route("GET", "/containers/json", _A.CONTAINER_LIST, "all limit size filters"),
    _route("POST", "/containers/create", _A.CREATE, "name platform", _IN),
    _route("GET", "/containers/{name}/json", _A.CONTAINER, "size"),
    _route("GET", "/containers/{name}/top", _A.CONTAINER, "ps_args"),
    _route("GET", "/containers/{name}/logs", _A.CONTAINER, _LOGS),
    _route("GET", "/containers/{name}/changes", _A.CONTAINER),
    _route("GET", "/containers/{name}/export", _A.CONTAINER),
    _route("GET", "/containers/{name}/stats", _A.CONTAINER, "stream one-shot"),
    _route("POST", "/containers/{name}/resize", _A.CONTAINER, "h w"),
    _route("POST", "/containers/{name}/start", _A.START, "detachKeys"),
    _route("POST", "/containers/{name}/stop", _A.END, "signal t"),
    _route("POST", "/containers/{name}/restart", _A.RESTART, "signal t"),
    _route("POST", "/containers/{name}/kill", _A.END, "signal"),
    _route("POST", "/containers/{name}/update", _A.UPDATE, payload=_IN),
    _route("POST", "/containers/{name}/rename", _A.CONTAINER, "name"),
    _route("POST", "/containers/{name}/pause", _A.CONTAINER),
    _route("POST", "/containers/{name}/unpause", _A.CONTAINER),
    _route("POST", "/containers/{name}/attach", _A.ATTACH, _ATTACH, hijack=True),
    _route("POST", "/containers/{name}/wait", _A.CONTAINER, "condition"),
    _route("DELETE", "/containers/{name}", _A.END, "v force link"),
    _route("GET HEAD", "/containers/{name}/archive", _A.ARCHIVE, "path"),
    _route("PUT", "/containers/{name}/archive", _A.ARCHIVE, "path noOverwriteDirNonDir copyUIDGID", _IN),
    _route("POST", "/containers/prune", _A.TRUSTED),
    _route("POST", "/commit", _A.TRUSTED, payload=_IN),
    # Programs that join a container
    _route("POST", "/containers/{name}/exec", _A.EXEC_CREATE, payload=_IN),
    _route("POST", "/exec/{name}/start", _A.EXEC, payload=_IN, hijack=True),
    _route("POST", "/exec/{name}/resize", _A.EXEC, "h w"),
    _route("GET", "/exec/{name}/json", _A.EXEC),
    # Images: readable by all, changed by trusted callers only, because names are shared
    _route("GET", "/images/json", _A.PASS, "all filters shared-size digests manifests"),
    _route("POST", "/images/create", _A.PULL, "fromImage tag platform", _IN),
    _route("GET", "/images/search", _A.PASS, "term limit filters"),
    _route("GET", "/images/get", _A.PASS, "names platform"),
    _route("GET", "/images/{name...}/json", _A.PASS, "manifests platform"),
    _route("GET", "/images/{name...}/history", _A.PASS, "platform"),
    _route("GET", "/images/{name...}/get", _A.PASS, "platform"),
    _route("GET", "/distribution/{name...}/json", _A.PASS),
    _route("POST", "/images/load", _A.TRUSTED, payload=_IN),
    _route("POST", "/images/prune", _A.TRUSTED),
    _route("POST", "/images/{name...}/push", _A.TRUSTED, payload=_IN),
    _route("POST", "/images/{name...}/tag", _A.TRUSTED),
    _route("DELETE", "/images/{name...}", _A.TRUSTED),
    _route("POST", "/build", _A.TRUSTED, payload=_IN),
    _route("POST", "/build/prune", _A.TRUSTED),
    _route("POST", "/build/cancel", _A.TRUSTED),
    _route("POST", "/session", _A.TRUSTED, payload=_IN, hijack=True),
    _route("POST", "/grpc", _A.TRUSTED, payload=_IN, hijack=True),
    # Networks
    _route("GET", "/networks", _A.PASS, _FILTERS),
    _route("POST", "/networks/create", _A.NETWORK_CREATE, payload=_IN),
    _route("POST", "/networks/prune", _A.TRUSTED),
    _route("GET", "/networks/{name}", _A.PASS, "verbose scope"),
    _route("DELETE", "/networks/{name}", _A.NETWORK),
    _route("POST", "/networks/{name}/connect", _A.NETWORK_CONNECT, payload=_IN),
    _route("POST", "/networks/{name}/disconnect", _A.NETWORK_CONNECT, payload=_IN),
    # Volumes
    _route("GET", "/volumes", _A.VOLUME_LIST, _FILTERS),
    _route("POST", "/volumes/create", _A.VOLUME_CREATE, payload=_IN),
    _route("POST", "/volumes/prune", _A.TRUSTED),
    _route("GET", "/volumes/{name}", _A.VOLUME),
    _route("DELETE", "/volumes/{name}", _A.VOLUME, "force"),
    # What is installed; `docker inspect` asks here for names that are nothing else
    _route("GET", "/plugins", _A.PASS, _FILTERS),
    _route("GET", "/plugins/{name...}/json", _A.PASS),
)

_BY_FIRST: dict[str, list[Route]] = {}
for _each in ROUTES:
    _BY_FIRST.setdefault(_each.pattern.pattern.replace("\\", "").split("/", 2)[1], []).append(_each)
