"""Which endpoints there are, who may ask them, and with which parameters. No engine is asked."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import pytest

from gpushared.domain.model.errors import PermissionRefused, RequestError
from gpushared.gate.api.endpoints import ROUTES, match_route
from gpushared.gate.api.routes import (
    FORMS,
    Route,
    RouteAction,
    check_parameters,
    check_ps,
    drop_unknown,
    parse_target,
)
from gpushared.gate.containers.filtered_views import (
    shown_image,
    shown_images,
    shown_info,
    shown_network,
    with_nvidia_runtime,
)
from gpushared.gate.handlers.archives import check_plain, engine_version
from tests.gate.engine_endpoints import ENDPOINTS

SCOPES: Mapping[RouteAction, str] = {
    RouteAction.PASS: "everybody",
    RouteAction.REFUSE: "nobody",
    RouteAction.TRUSTED: "trusted callers",
    RouteAction.BUILD: "trusted callers, and nobody where everybody is confined",
    RouteAction.INFO: "everybody, with NVIDIA's runtime where GPUs are leased; numbers of own containers, "
    "no passwords of proxies, no names of leases",
    RouteAction.EVENTS: "own containers",
    RouteAction.CREATE: "everybody, by policy",
    RouteAction.START: "own containers; their mounts, networks and volumes are judged again",
    RouteAction.RESTART: "own containers; their mounts, networks and volumes are judged again",
    RouteAction.UNPAUSE: "own containers, but no suspended ones",
    RouteAction.END: "own containers",
    RouteAction.UPDATE: "own containers, by policy",
    RouteAction.RENAME: "own containers",
    RouteAction.TOP: "own containers; options of `ps` below",
    RouteAction.CONTAINER: "own containers",
    RouteAction.ATTACH: "own containers",
    RouteAction.ARCHIVE: "own containers; see below",
    RouteAction.CONTAINER_LIST: "own containers",
    RouteAction.CONTAINER_PRUNE: "own containers",
    RouteAction.EXEC_CREATE: "own containers, by policy",
    RouteAction.EXEC: "own containers",
    RouteAction.IMAGE: "everybody, without containers' ids",
    RouteAction.IMAGE_LIST: "everybody, without containers' numbers and ids",
    RouteAction.PULL: "everybody; no tag of an image made here",
    RouteAction.REGISTRY: "everybody, where the policy lets the engine ask registries",
    RouteAction.NETWORK: "own networks that no own container needs",
    RouteAction.NETWORK_LIST: "own networks and the engine's",
    RouteAction.NETWORK_INSPECT: "own networks and the engine's, with own containers only",
    RouteAction.NETWORK_CREATE: "everybody, by policy",
    RouteAction.NETWORK_CONNECT: "own networks and own containers, by policy",
    RouteAction.NETWORK_PRUNE: "own networks that no own container needs",
    RouteAction.VOLUME: "own volumes",
    RouteAction.VOLUME_LIST: "own volumes",
    RouteAction.VOLUME_CREATE: "everybody, by policy",
    RouteAction.VOLUME_PRUNE: "own volumes",
    RouteAction.PLUGIN: "trusted callers; there is none for others",
}
"""The page on the API says these words of the endpoints."""

PAGE = Path(__file__).parents[2] / "docs/reference/docker-api.md"
CLOSED = {RouteAction.TRUSTED, RouteAction.REFUSE}


@pytest.mark.parametrize(("method", "path"), ENDPOINTS, ids=" ".join)
def test_every_endpoint_of_every_version_is_on_the_list(method: str, path: str) -> None:
    """With a name in it that holds slashes where it may, as images' names do."""
    match = match_route(method, re.sub(r"{\w+}", "abc", path.rstrip("/")))
    assert match is not None


@pytest.mark.parametrize("path", ["/", "/brand/new", "/containers", "/containers/a/b/start", "/images"])
def test_what_no_engine_has_is_on_no_list(path: str) -> None:
    assert match_route("GET", path) is None
    assert match_route("POST", path) is None


@pytest.mark.parametrize("path", [path for method, path in ENDPOINTS if method == "GET"])
def test_no_other_method_comes_in_by_the_way_of_one_that_reads(path: str) -> None:
    """Engines themselves know HEAD in two places only."""
    for method in ("HEAD", "OPTIONS", "TRACE", "PATCH", "CONNECT", "get"):
        if (method, path) not in ENDPOINTS:
            assert match_route(method, re.sub(r"{\w+}", "abc", path)) is None


@pytest.mark.parametrize("route", [route for route in ROUTES if route.action in CLOSED], ids=lambda r: r.path)
def test_what_is_closed_says_why_and_what_to_do_instead(route: Route) -> None:
    assert len(route.why.split()) > 6
    assert len(route.hint.split()) > 2
    assert route.query == frozenset()


def test_every_action_has_a_scope_and_every_parameter_a_form() -> None:
    assert set(SCOPES) == set(RouteAction)
    assert {name for route in ROUTES for name in route.query} == set(FORMS)


@pytest.mark.parametrize(
    ("method", "path", "action"),
    [
        ("GET", "/containers/create/json", RouteAction.CONTAINER),
        ("POST", "/containers/prune", RouteAction.CONTAINER_PRUNE),
        ("GET", "/images/a/json/json", RouteAction.IMAGE),
        ("GET", "/images/search", RouteAction.REGISTRY),
        ("DELETE", "/images/networks/x", RouteAction.TRUSTED),
        ("POST", "/volumes/prune", RouteAction.VOLUME_PRUNE),
        ("POST", "/plugins/a/b/enable", RouteAction.REFUSE),
        ("GET", "/networks/a/b", RouteAction.NETWORK_INSPECT),
    ],
)
def test_a_name_that_is_also_a_word_of_the_api_leads_nowhere_else(
    method: str, path: str, action: RouteAction
) -> None:
    match = match_route(method, path)
    assert match is not None
    assert match.route.action is action


REFUSED_PARAMETERS = [
    ("POST", "/containers/x/start?checkpoint=y", PermissionRefused),
    ("POST", "/containers/x/stop?T=1", PermissionRefused),
    ("DELETE", "/containers/x?link=1", PermissionRefused),
    ("POST", "/containers/x/stop?t=1&t=2", RequestError),
    ("POST", "/containers/x/stop?t=1;signal=2", RequestError),
    ("POST", "/containers/x/kill?signal=9%0a", RequestError),
    ("POST", "/containers/x/resize?h=1e9&w=1", RequestError),
    ("GET", "/containers/x/archive?path=%00", RequestError),
    ("POST", "/containers/x/wait?condition=%22", RequestError),
    ("GET", f"/containers/json?filters={'x' * 70_000}", RequestError),
    ("POST", "/images/create?fromImage=x%0ay", RequestError),
]


@pytest.mark.parametrize(("method", "target", "error"), REFUSED_PARAMETERS)
def test_a_parameter_outside_its_route_or_form_is_refused(
    method: str, target: str, error: type[Exception]
) -> None:
    parsed = parse_target(target.encode())
    match = match_route(method, parsed.path)
    assert match is not None
    with pytest.raises(error):
        check_parameters(match.route, parsed)


ASKED_EVERY_DAY = [
    ("GET", "/v1.45/containers/json?all=1&limit=0&filters=%7B%22name%22%3A%5B%22x%22%5D%7D"),
    ("GET", "/containers/x/logs?follow=1&stdout=1&stderr=1&tail=all&since=2026-01-01T00%3A00%3A00.5Z"),
    ("POST", "/containers/x/attach?detachKeys=ctrl-p%2Cctrl-q&stream=1&stdin=1"),
    ("GET", "/images/get?names=a%3A1&names=b%3A2"),
    ("PUT", "/containers/x/archive?path=%2Ftmp%2F%C3%A9%20x&noOverwriteDirNonDir=true"),
    ("POST", "/images/create?fromImage=registry.example%3A5000%2Fa%2Fb&tag=1.0&platform=linux%2Farm64%2Fv8"),
    ("GET", "/events?since=1763730000.000000001&until=1763730001"),
    ("POST", "/containers/create?name=proj-web-1&platform="),
    ("GET", "/containers/json?limit=-1&all=1&size=0&trunc_cmd=0"),
    ("DELETE", "/containers/x?v=True&link=False&force=True"),
    ("GET", "/images/json?only_ids=0&all=0"),
]


@pytest.mark.parametrize(
    "route", [route for route in ROUTES if route.action not in CLOSED], ids=lambda r: r.path
)
def test_a_parameter_is_either_for_confined_callers_or_closed_to_them_or_dropped(route: Route) -> None:
    assert not route.query & route.closed
    known = sorted(route.query | route.closed)
    query = "&".join(f"{name}=1" for name in ["Brand", *known, "brand", *map(str.swapcase, known)])
    parsed = parse_target(f"/x?{query}".encode())
    kept, dropped = drop_unknown(route, parsed)
    if route.action is RouteAction.BUILD:
        assert (kept, dropped) == (parsed, [])
        return
    assert [name for name, _ in kept.query] == known
    assert dropped == sorted({"Brand", "brand", *map(str.swapcase, known)})


@pytest.mark.parametrize(("method", "target"), ASKED_EVERY_DAY)
def test_parameters_as_clients_send_them_pass(method: str, target: str) -> None:
    parsed = parse_target(target.encode())
    match = match_route(method, parsed.path)
    assert match is not None
    check_parameters(match.route, parsed)


SAFE_PS = [
    "",
    "-ef",
    "aux",
    "-aux",
    "auxf",
    "-o pid,comm",
    "-eo pid,pcpu,args",
    "axo pid,cmd",
    "-e -o pid,%cpu",
    "-L",
]
UNSAFE_PS = [
    "-oppid=PID,args",
    "-e -o ppid=PID",
    "-eo args,pid",
    "-o comm -o pid",
    "axe",
    "eww",
    "-C sshd",
    "-u root",
    "-p 1",
    "-o pid,args=PID",
    "-ef\n-oppid=PID",
    "-o\tppid=PID",
    "--pid 1",
    "-M",
    "o ppid=PID",
    "k-pid",
]


@pytest.mark.parametrize("arguments", SAFE_PS)
def test_options_of_ps_that_show_whole_processes_pass(arguments: str) -> None:
    check_ps(arguments)


@pytest.mark.parametrize("arguments", UNSAFE_PS)
def test_options_of_ps_that_could_show_others_processes_are_refused(arguments: str) -> None:
    with pytest.raises(PermissionRefused):
        check_ps(arguments)


PLAIN = b"BOOK".ljust(257, b"\0") + b"ustar\x0000"


@pytest.mark.parametrize("start", [PLAIN, b"", b"\0" * 512])
def test_a_plain_archive_passes(start: bytes) -> None:
    check_plain(start)


@pytest.mark.parametrize(
    "start",
    [
        b"\x1f\x8b" + PLAIN[2:],
        b"BZh" + PLAIN[3:],
        b"\xfd7zXZ\0" + PLAIN[6:],
        b"\x28\xb5\x2f\xfd" + PLAIN[4:],
        b"\x53\x2a\x4d\x18" + PLAIN[4:],
        b"#!/bin/sh",
        PLAIN[:257],
    ],
)
def test_an_archive_that_an_engine_would_unpack_with_a_program_is_refused(start: bytes) -> None:
    """Be it a tar at the same time: the name of its first file is its first bytes."""
    with pytest.raises(RequestError, match="no plain tar"):
        check_plain(start)


@pytest.mark.parametrize(
    ("said", "numbers"),
    [("20.10.24+dfsg1", (20, 10, 24)), ("29.5.1", (29, 5, 1)), ("28.0.0-rc.1", (28, 0, 0)), ("dev", ())],
)
def test_an_engines_version_is_its_numbers(said: str, numbers: tuple[int, ...]) -> None:
    assert engine_version(said) == numbers


def test_the_engines_facts_hold_no_secrets_of_others() -> None:
    info = {
        "Containers": 40,
        "ContainersRunning": 30,
        "HttpProxy": "http://me:secret@proxy:3128",
        "RegistryConfig": {"Mirrors": ["https://u:secret@mirror/"]},
        "DiscoveredDevices": [{"ID": "gpushare.io/lease=l-bobs"}],
        "Swarm": {"RemoteManagers": [{"Addr": "10.0.0.1"}], "ControlAvailable": True},
        "NCPU": 2,
    }
    shown = shown_info(info, [{"State": "running"}, {"State": "exited"}])
    assert shown == {
        "Containers": 2,
        "ContainersRunning": 1,
        "ContainersPaused": 0,
        "ContainersStopped": 1,
        "HttpProxy": "http://proxy:3128",
        "RegistryConfig": {"Mirrors": ["https://mirror/"]},
        "Swarm": {"LocalNodeState": "inactive", "ControlAvailable": False},
        "NCPU": 2,
    }


def test_a_network_shows_ones_own_containers_on_it() -> None:
    network = {"Name": "bridge", "Containers": {"a": {"Name": "mine"}, "b": {"Name": "bobs"}}, "Peers": [1]}
    assert shown_network(network, {"a"}) == {"Name": "bridge", "Containers": {"a": {"Name": "mine"}}}
    assert shown_network({"Name": "none", "Containers": None}, {"a"})["Containers"] == {}


def test_images_tell_nothing_of_containers() -> None:
    assert shown_images([{"Id": "a", "Containers": 3}, {"Id": "b"}]) == [
        {"Id": "a", "Containers": -1},
        {"Id": "b", "Containers": -1},
    ]


def test_an_images_manifests_do_not_name_the_containers_that_use_them() -> None:
    data = {"Platform": {"os": "linux"}, "Containers": ["5f3c"]}
    shown = shown_image({"Id": "a", "Manifests": [{"ID": "m", "ImageData": data}, {"ID": "attestation"}]})
    assert shown["Manifests"] == [
        {"ID": "m", "ImageData": {**data, "Containers": []}},
        {"ID": "attestation"},
    ]
    assert shown_images([{"Id": "a", "Manifests": [{"ImageData": data}]}])[0]["Manifests"] == [
        {"ImageData": {**data, "Containers": []}}
    ]
    assert shown_image({"Id": "b", "Manifests": None}) == {"Id": "b", "Manifests": None}


def rows_of_routes() -> list[str]:
    """Return a row for each scope and set of parameters, with the endpoints that have both."""
    alike: dict[tuple[str, str], list[str]] = {}
    for route in ROUTES:
        if route.action not in CLOSED | {RouteAction.BUILD}:
            parameters = " ".join(f"`{name}`" for name in sorted(route.query))
            endpoint = f"`{' '.join(route.methods)} {route.path}`"
            alike.setdefault((SCOPES[route.action], parameters), []).append(endpoint)
    return [f"| {', '.join(endpoints)} | {scope} | {names} |" for (scope, names), endpoints in alike.items()]


def refusals(*actions: RouteAction) -> list[str]:
    """Return a line for each sentence of refusal, with the endpoints that it closes."""
    closed: dict[tuple[str, str], list[str]] = {}
    for route in ROUTES:
        if route.action in actions:
            endpoint = f"`{' '.join(route.methods)} {route.path}`"
            closed.setdefault((route.why, route.hint), []).append(endpoint)
    return [f"- {', '.join(endpoints)}: {why}: {hint}" for (why, hint), endpoints in closed.items()]


def test_the_reference_page_has_every_route_as_it_is() -> None:
    rows = [line for line in PAGE.read_text().splitlines() if line.startswith("| `")]
    assert rows == rows_of_routes()


def test_the_reference_page_has_every_closed_route_with_its_words() -> None:
    section = PAGE.read_text().partition("## Closed endpoints")[2].partition("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("- ")]
    trusted = refusals(RouteAction.TRUSTED, RouteAction.BUILD)
    assert lines == [*trusted, *refusals(RouteAction.REFUSE)]


OWN_RUNTIME = {"path": "/opt/bin/nvidia-container-runtime", "runtimeArgs": ["x"]}


@pytest.mark.parametrize(
    ("runtimes", "leases", "shown"),
    [
        ({"runc": {}}, True, {"runc": {}, "nvidia": {"path": "nvidia-container-runtime"}}),
        ({"runc": {}}, False, {"runc": {}}),
        ({"nvidia": OWN_RUNTIME}, True, {"nvidia": OWN_RUNTIME}),
        ({"nvidia": OWN_RUNTIME, "runc": {}}, False, {"runc": {}}),
        (None, True, {"nvidia": {"path": "nvidia-container-runtime"}}),
    ],
)
def test_nvidia_s_runtime_is_named_exactly_where_gpus_are_leased(
    runtimes: object, leases: bool, shown: object
) -> None:
    """Tools that can do without a GPU ask for one only where the runtime is named."""
    assert with_nvidia_runtime({"ID": "x", "Runtimes": runtimes}, leases=leases) == {
        "ID": "x",
        "Runtimes": shown,
    }
