"""List the endpoints of the Docker Engine API, each with its scope.

An endpoint on no list is refused, for all callers. The lists follow the engine's own descriptions, from API
version 1.24 on.
"""

from __future__ import annotations

from gpushared.gate.api.routes import Match, Payload, Route, RouteAction, RouteTable

_A = RouteAction
_IN = Payload.STREAM
_NEVER = Payload.REFUSED
_ATTACH = "detachKeys logs stream stdin stdout stderr"
_LOGS = "follow stdout stderr since until timestamps tail details"
_FILTERS = "filters"
_CONTAINERS = "all limit size filters trunc_cmd"
_CHECKPOINT = "checkpoint checkpoint-dir"
_IMAGES = "all filters shared-size digests manifests identity only_ids"
_PULL = "fromImage tag platform fromSrc repo message changes"

BUILD = (
    "images are built on this machine by trusted users only: a build's steps run as root",
    "build elsewhere, with rootless podman or buildah for example, push it to a registry and pull it here",
)
BUILD_OF_NOBODY = (
    "images are not built through gpushared where everybody is confined: no policy bounds a build's steps",
    "build with rootless podman or buildah and push it to a registry; root can ask the engine itself",
)
COMMIT = (
    "containers are committed by trusted users only: images and their names are everybody's",
    "write what was done into a Dockerfile and build it elsewhere, or keep files in your home",
)
TAG = (
    "images are named by trusted users only: a name is everybody's",
    "push the name to a registry and pull it here, or use the image by its id",
)
REMOVE = (
    "images are removed by trusted users only: others may need them",
    "ask the administrator if the disk is full",
)
LOAD = (
    "images are loaded by trusted users only: they bring their names, which are everybody's, along",
    "push them to a registry and pull them here",
)
PUSH = (
    "images are pushed by trusted users only: this machine holds other people's",
    "`docker save` it and push the file from elsewhere, as `skopeo copy docker-archive:FILE` does",
)
DISK = (
    "what all users' containers take of the disk is for trusted users only",
    "`docker ps -as` shows yours, `docker images` all images",
)
CHECKPOINT = (
    "checkpoints are refused: a container brought back from one would have no lease",
    "let the program itself write checkpoints; `gpushare` tells it before it has to stop",
)
COPY = ("this way to copy files has left the engine's API", "upgrade the client")
DEBUG = ("the engine's inside is not shown through gpushared", "root can ask the engine itself")
PLUGIN = (
    "plugins of the engine run as root and are not changed through gpushared",
    "root can ask the engine itself",
)
PLUGINS = (
    "plugins are listed for trusted users only: their settings may hold passwords",
    "`docker info` names the drivers there are",
)
SWARM = (
    "this machine is no swarm through gpushared: a service's containers would have no leases",
    "`gpushare submit --pool` runs jobs on many machines",
)
SECRET = (
    "secrets and configs belong to a swarm, which this machine is not through gpushared",
    "mount a file of your home that only you may read",
)
CLUSTER_VOLUME = ("volumes of a swarm are not changed through gpushared", "make a new volume")
OPTIONS = ("OPTIONS is a question of web browsers, which have no business here", "use a Docker client")


def match_route(method: str, path: str) -> Match | None:
    """Return the route of a request, None if no list has it."""
    return _TABLE.match(method, path)


def _route(
    methods: str,
    path: str,
    action: RouteAction,
    query: str = "",
    payload: Payload = Payload.NONE,
    *,
    closed: str = "",
    hijack: bool = False,
    registry: bool = False,
) -> Route:
    open_names, closed_names = frozenset(query.split()), frozenset(closed.split())
    return Route(tuple(methods.split()), path, action, open_names, closed_names, payload, hijack, registry)


def _trusted(
    methods: str,
    path: str,
    refusal: tuple[str, str],
    payload: Payload = Payload.NONE,
    *,
    hijack: bool = False,
    action: RouteAction = RouteAction.TRUSTED,
) -> Route:
    why, hint = refusal
    return Route(tuple(methods.split()), path, action, payload=payload, hijack=hijack, why=why, hint=hint)


def _refused(methods: str, path: str, refusal: tuple[str, str]) -> Route:
    return Route(tuple(methods.split()), path, RouteAction.REFUSE, why=refusal[0], hint=refusal[1])


ROUTES: tuple[Route, ...] = (
    _route("GET HEAD", "/_ping", _A.PASS),
    _route("GET", "/version", _A.PASS),
    _route("GET", "/info", _A.INFO),
    _route("GET", "/events", _A.EVENTS, "since until filters"),
    _route("POST", "/auth", _A.PASS, payload=_IN),
    _trusted("GET", "/system/df", DISK),
    # Containers
    _route("GET", "/containers/json", _A.CONTAINER_LIST, _CONTAINERS, closed="since before"),
    _route("POST", "/containers/create", _A.CREATE, "name platform", _IN),
    _route("POST", "/containers/prune", _A.CONTAINER_PRUNE, "filters stream"),
    # A container's name never has a slash, but clients ask for an image's name here first
    _route("GET", "/containers/{name...}/json", _A.CONTAINER, "size"),
    _route("GET", "/containers/{name}/top", _A.TOP, "ps_args"),
    _route("GET", "/containers/{name}/logs", _A.CONTAINER, _LOGS),
    _route("GET", "/containers/{name}/changes", _A.CONTAINER),
    _route("GET", "/containers/{name}/export", _A.CONTAINER),
    _route("GET", "/containers/{name}/stats", _A.CONTAINER, "stream one-shot"),
    _route("POST", "/containers/{name}/resize", _A.CONTAINER, "h w"),
    _route("POST", "/containers/{name}/start", _A.START, "detachKeys", _NEVER, closed=_CHECKPOINT),
    _route("POST", "/containers/{name}/stop", _A.END, "signal t"),
    _route("POST", "/containers/{name}/restart", _A.RESTART, "signal t"),
    _route("POST", "/containers/{name}/kill", _A.END, "signal"),
    _route("POST", "/containers/{name}/update", _A.UPDATE, payload=_IN),
    _route("POST", "/containers/{name}/rename", _A.RENAME, "name"),
    _route("POST", "/containers/{name}/pause", _A.CONTAINER),
    _route("POST", "/containers/{name}/unpause", _A.UNPAUSE),
    _route("POST", "/containers/{name}/attach", _A.ATTACH, _ATTACH, hijack=True),
    _route("GET", "/containers/{name}/attach/ws", _A.CONTAINER, _ATTACH, hijack=True),
    _route("POST", "/containers/{name}/wait", _A.CONTAINER, "condition"),
    _route("DELETE", "/containers/{name}", _A.END, "v force link"),
    _route("GET HEAD", "/containers/{name}/archive", _A.ARCHIVE, "path"),
    _route("PUT", "/containers/{name}/archive", _A.ARCHIVE, "path noOverwriteDirNonDir copyUIDGID", _IN),
    _refused("POST", "/containers/{name}/copy", COPY),
    _refused("GET POST", "/containers/{name}/checkpoints", CHECKPOINT),
    _refused("DELETE", "/containers/{name}/checkpoints/{rest...}", CHECKPOINT),
    _trusted("POST", "/commit", COMMIT, _IN),
    # Programs that join a container
    _route("POST", "/containers/{name}/exec", _A.EXEC_CREATE, payload=_IN),
    _route("POST", "/exec/{name}/start", _A.EXEC, payload=_IN, hijack=True),
    _route("POST", "/exec/{name}/resize", _A.EXEC, "h w"),
    _route("GET", "/exec/{name}/json", _A.EXEC),
    # Images
    _route("GET", "/images/json", _A.IMAGE_LIST, _IMAGES, closed="filter"),
    _route("POST", "/images/create", _A.PULL, _PULL, _IN, registry=True),
    _route("GET", "/images/search", _A.REGISTRY, "term limit filters", registry=True),
    _route("GET", "/images/get", _A.PASS, "names platform"),
    _route("GET", "/images/{name...}/json", _A.IMAGE, "manifests platform"),
    _route("GET", "/images/{name...}/history", _A.PASS, "platform"),
    _route("GET", "/images/{name...}/attestations", _A.PASS, "platform type statement"),
    _route("GET", "/images/{name...}/get", _A.PASS, "platform"),
    _route("GET", "/distribution/{name...}/json", _A.REGISTRY, registry=True),
    _trusted("POST", "/images/load", LOAD, _IN),
    _trusted("POST", "/images/prune", REMOVE),
    _trusted("POST", "/images/{name...}/push", PUSH, _IN),
    _trusted("POST", "/images/{name...}/tag", TAG),
    _trusted("DELETE", "/images/{name...}", REMOVE),
    _trusted("POST", "/build", BUILD, _IN, action=_A.BUILD),
    _trusted("POST", "/build/prune", BUILD),
    _trusted("POST", "/build/cancel", BUILD),
    _trusted("POST", "/session", BUILD, _IN, hijack=True, action=_A.BUILD),
    _trusted("POST", "/grpc", BUILD, _IN, hijack=True, action=_A.BUILD),
    # Networks
    _route("GET", "/networks", _A.NETWORK_LIST, _FILTERS),
    _route("POST", "/networks/create", _A.NETWORK_CREATE, payload=_IN),
    _route("POST", "/networks/prune", _A.NETWORK_PRUNE, "filters stream"),
    _route("GET", "/networks/{name...}", _A.NETWORK_INSPECT, "verbose scope"),
    _route("DELETE", "/networks/{name}", _A.NETWORK),
    _route("POST", "/networks/{name}/connect", _A.NETWORK_CONNECT, payload=_IN),
    _route("POST", "/networks/{name}/disconnect", _A.NETWORK_CONNECT, payload=_IN),
    # Volumes
    _route("GET", "/volumes", _A.VOLUME_LIST, _FILTERS),
    _route("POST", "/volumes/create", _A.VOLUME_CREATE, payload=_IN),
    _route("POST", "/volumes/prune", _A.VOLUME_PRUNE, "filters stream"),
    _route("GET", "/volumes/{name...}", _A.VOLUME),
    _route("DELETE", "/volumes/{name}", _A.VOLUME, "force"),
    _refused("PUT", "/volumes/{name}", CLUSTER_VOLUME),
    # Plugins; `docker inspect` asks here last for any name
    _trusted("GET", "/plugins", PLUGINS),
    _refused("GET", "/plugins/privileges", PLUGIN),
    _route("GET", "/plugins/{name...}/json", _A.PLUGIN),
    _refused("GET POST DELETE", "/plugins/{rest...}", PLUGIN),
    # A swarm
    *(
        _refused("GET POST DELETE", f"/{kind}{rest}", SWARM)
        for kind in ("swarm", "nodes", "services", "tasks")
        for rest in ("", "/{rest...}")
    ),
    *(
        _refused("GET POST DELETE", f"/{kind}{rest}", SECRET)
        for kind in ("secrets", "configs")
        for rest in ("", "/{rest...}")
    ),
    _refused("GET", "/debug/{rest...}", DEBUG),
)

_TABLE = RouteTable(ROUTES)
