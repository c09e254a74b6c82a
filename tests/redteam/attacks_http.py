"""Bytes that two programs could read in two ways, and bytes that keep a server busy."""

from __future__ import annotations

import json

from tests.redteam.attack import BOTH, Attack, How, Response, Threat, asks, plain_body, sends
from tests.redteam.attacked_machine import AttackedMachine, last_answer

CONTAINERS, AVAILABLE, ROOT = Threat.CONTAINERS, Threat.AVAILABILITY, Threat.ROOT
GONE = "o such container"
NO_PATH = "is no path of the Docker Engine API"
NOT_HTTP = "this is not proper HTTP"
SMUGGLED = "GET /containers/{box}/json HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
DELETED = "DELETE /containers/{box}?force=1 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0"
SETTINGS = b"\x04\0\0\0\0\0"


def head(method: str, target: str, *headers: str) -> str:
    return "\r\n".join([f"{method} {target} HTTP/1.1", "Host: docker", *headers, "", ""])


def behind_an_attach(machine: AttackedMachine) -> Response:
    """What follows an upgrade is the program's input, and nothing else."""
    own = machine.made(
        plain_body(Cmd=["sh", "-c", "read line; echo got; sleep 100"], OpenStdin=True, AttachStdin=True)
    )
    machine.ask("POST", f"/containers/{own}/start")
    attach = head(
        "POST", f"/containers/{own}/attach?stream=1&stdin=1&stdout=1", "Upgrade: tcp", "Connection: Upgrade"
    )
    said = machine.attacker.wire(
        machine.daemon.socket, attach.encode(), machine.fill(DELETED).encode(), seconds=3, quiet=0.5
    )
    return Response(200) if said.startswith(b"HTTP/1.1 101") and b"got" in said else Response(0, repr(said))


def upgrade_to_http2(machine: AttackedMachine) -> Response:
    """An engine that gave in would take whole requests that nobody has judged."""
    own = machine.made(plain_body(Cmd=["sleep", "100"]))
    machine.ask("POST", f"/containers/{own}/start")
    made = machine.ask("POST", f"/containers/{own}/exec", b'{"Cmd": ["cat"], "AttachStdin": true}')
    headers = (
        "Upgrade: h2c",
        "Connection: Upgrade, HTTP2-Settings",
        "HTTP2-Settings: AAMAAABkAAQAAP__",
        "Content-Length: 2",
    )
    start = head("POST", f"/exec/{json.loads(made.message)['Id']}/start", *headers) + "{}"
    said = machine.attacker.wire(machine.daemon.socket, start.encode(), PREFACE, seconds=3, quiet=0.5)
    return Response(200) if SETTINGS not in said and b"h2c" not in said else Response(0, repr(said))


def preface_of_http2(machine: AttackedMachine) -> Response:
    """HTTP/2 leads to the calls of the daemon's own, and never to the engine."""
    said = machine.attacker.wire(machine.daemon.socket, PREFACE, seconds=3, quiet=0.3)
    return Response(200) if b"HTTP/1.1" not in said else Response(0, repr(said))


def many_connections(count: int, first: bytes) -> How:
    """Held until the oracle has asked whether others are served."""
    code = """
limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
held = []
for _ in range(count):
    try:
        s = socket.socket(socket.AF_UNIX)
        held.append(s)
        s.settimeout(5)
        s.connect(path)
        s.sendall(first.encode())
    except OSError:
        break
answer = len(held)
"""

    def how(machine: AttackedMachine) -> Response:
        names = {"count": count, "path": str(machine.daemon.socket), "first": first.decode()}
        return Response(200, machine.attacker.python(code, **names))

    return how


def endless_chunk(machine: AttackedMachine) -> Response:
    begun = head("POST", "/containers/create", "Transfer-Encoding: chunked") + "ffffffffffffffffffffff\r\n"
    told = machine.send(begun.encode() + b"a" * 100)
    return Response(200) if told.status in {0, 400} else Response(0, str(told))


def pipelined_flood(machine: AttackedMachine) -> Response:
    """Ten thousand requests in one go, whose answers nobody reads for a while."""
    one = head("GET", "/containers/json").encode()
    told = last_answer(machine.attacker.wire(machine.daemon.socket, one * 2000, seconds=20, quiet=1))
    return Response(200) if told.status in {200, 429, 0} else told


ATTACKS = [
    Attack(
        "http-two-lengths",
        CONTAINERS,
        sends(head("POST", "/containers/x/start", "Content-Length: 0", "Content-Length: 80") + SMUGGLED),
        refused=NOT_HTTP,
    ),
    Attack(
        "http-length-and-chunks",
        CONTAINERS,
        sends(
            head("POST", "/containers/create", "Content-Length: 5", "Transfer-Encoding: chunked")
            + "0\r\n\r\n"
            + SMUGGLED
        ),
        refused="both a length and a transfer encoding",
        on=BOTH,
    ),
    Attack(
        "http-chunks-spelled-otherwise",
        CONTAINERS,
        sends(head("POST", "/containers/create", "Transfer-Encoding: xchunked") + SMUGGLED),
        refused=NOT_HTTP,
    ),
    Attack(
        "http-chunks-twice",
        CONTAINERS,
        sends(head("POST", "/containers/create", "Transfer-Encoding: chunked, chunked") + SMUGGLED),
        refused=NOT_HTTP,
    ),
    Attack(
        "http-chunks-of-http-1-0",
        CONTAINERS,
        sends("POST /containers/create HTTP/1.0\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
        refused="knows no transfer encoding",
    ),
    Attack(
        "http-chunk-without-end",
        AVAILABLE,
        endless_chunk,
        harmless="the connection is cut",
    ),
    Attack(
        "http-length-with-a-sign",
        CONTAINERS,
        sends(head("POST", "/containers/create", "Content-Length: +2") + "{}"),
        refused=NOT_HTTP,
    ),
    Attack(
        "http-space-before-a-colon",
        CONTAINERS,
        sends(head("POST", "/containers/create", "Content-Length : 2") + "{}" + SMUGGLED),
        refused=NOT_HTTP,
    ),
    Attack(
        "http-folded-length",
        CONTAINERS,
        sends("GET /_ping HTTP/1.1\r\nHost: x\r\nX: y\r\n Content-Length: 200\r\n\r\n" + SMUGGLED),
        refused=GONE,
    ),
    Attack(
        "http-body-smuggled-behind-a-get",
        CONTAINERS,
        sends(head("GET", "/_ping", "Content-Length: 0") + SMUGGLED),
        refused=GONE,
        on=BOTH,
    ),
    Attack(
        "http-absolute-target", CONTAINERS, asks("GET", "http://docker/containers/{box}/json"), refused=GONE
    ),
    Attack("http-slash-by-percent", CONTAINERS, asks("GET", "/containers%2f{box}%2fjson"), refused=GONE),
    Attack(
        "http-slashes-doubled", CONTAINERS, asks("GET", "//containers//{box}//json"), refused=GONE, on=BOTH
    ),
    Attack("http-path-with-dots", ROOT, asks("POST", "/containers/../build"), refused=NO_PATH, on=BOTH),
    Attack("http-path-with-dots-by-percent", ROOT, asks("POST", "/containers/%2e%2e/build"), refused=NO_PATH),
    Attack(
        "http-path-with-dots-by-percent-twice",
        CONTAINERS,
        asks("GET", "/containers/%252e%252e%252f{box}/json"),
        refused="o such",
    ),
    Attack(
        "http-path-with-a-zero-byte", CONTAINERS, asks("GET", "/containers/{box}%00/json"), refused=NO_PATH
    ),
    Attack(
        "http-path-with-a-broken-percent",
        CONTAINERS,
        asks("GET", "/containers/{box}%2/json"),
        refused=NO_PATH,
    ),
    Attack(
        "http-path-with-a-line-end",
        CONTAINERS,
        asks("GET", "/containers/x%0d%0aX:%20y/json"),
        refused=NO_PATH,
    ),
    Attack(
        "http-path-that-goes-on-in-the-query",
        CONTAINERS,
        asks("GET", "/images/x/json?/../../containers/{box}/json"),
        refused="o such image",
    ),
    Attack("http-version-twice", ROOT, asks("POST", "/v1.41/v1.41/build"), refused="is not served"),
    Attack(
        "http-version-of-no-number",
        CONTAINERS,
        asks("GET", "/v1.41.0/containers/{box}/json"),
        refused="is not served",
    ),
    Attack(
        "http-method-in-small-letters", ROOT, asks("delete", "/containers/{box}"), refused="is not served"
    ),
    Attack(
        "http-method-overridden",
        ROOT,
        asks("GET", "/containers/{box}/json", X_HTTP_Method_Override="DELETE"),
        refused=GONE,
    ),
    Attack(
        "http-connect-method",
        ROOT,
        sends("CONNECT docker:80 HTTP/1.1\r\nHost: docker\r\nConnection: close\r\n\r\n"),
        refused=NO_PATH,
    ),
    Attack(
        "http-smuggled-behind-a-failed-upgrade",
        CONTAINERS,
        sends(
            head("POST", "/containers/{box}/attach?stream=1", "Upgrade: tcp", "Connection: Upgrade")
            + SMUGGLED
        ),
        refused=GONE,
        on=BOTH,
    ),
    Attack(
        "http-smuggled-behind-a-failed-program",
        CONTAINERS,
        sends(
            head("POST", "/exec/{exec}/start", "Upgrade: tcp", "Connection: Upgrade", "Content-Length: 2")
            + "{}"
            + SMUGGLED
        ),
        refused="o such",
    ),
    Attack(
        "http-pipelined-behind-an-attach",
        CONTAINERS,
        behind_an_attach,
        harmless="it is the input of the caller's own program",
        on=BOTH,
    ),
    Attack(
        "http-upgrade-to-http2",
        ROOT,
        upgrade_to_http2,
        harmless="the engine is asked for a plain stream",
        on=BOTH,
    ),
    Attack(
        "http-preface-of-http2",
        ROOT,
        preface_of_http2,
        harmless="it leads to the daemon's own calls, which know the caller",
    ),
    Attack(
        "http-head-of-a-megabyte",
        AVAILABLE,
        sends(head("GET", "/_ping", "X: " + "a" * (1 << 20))),
        refused="not proper HTTP",
    ),
    Attack(
        "http-thousands-of-headers",
        AVAILABLE,
        sends(head("GET", "/_ping", *(f"X-{n}: {n}" for n in range(20_000)))),
        refused="e",
    ),
    Attack(
        "http-head-that-never-ends",
        AVAILABLE,
        many_connections(100, b"GET /_ping HTTP/1.1\r\nX"),
        harmless="others are served meanwhile",
    ),
    Attack(
        "http-body-that-never-comes",
        AVAILABLE,
        many_connections(
            100, b"POST /containers/create HTTP/1.1\r\nHost: x\r\nContent-Length: 4000000\r\n\r\n{"
        ),
        harmless="others are served meanwhile",
    ),
    Attack(
        "http-connections-without-end",
        AVAILABLE,
        many_connections(3000, b""),
        harmless="others are served meanwhile",
    ),
    Attack(
        "http-pipelined-flood",
        AVAILABLE,
        pipelined_flood,
        harmless="its answers wait for the reader, and others do not",
    ),
]
