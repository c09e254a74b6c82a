"""Requests as clients send them, and as those send them who try to be read in two ways."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

from hypothesis import strategies as st

BODY = {"Image": "x", "Cmd": ["true"], "HostConfig": {"NetworkMode": "none"}}
HIDDEN = b"POST /v1.41/containers/create HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}"

PLAIN_METHODS = ["GET", "POST", "PUT", "DELETE", "HEAD"]
METHODS = [*PLAIN_METHODS, "PATCH", "OPTIONS", "CONNECT", "TRACE", "get", "PRI", "G\tET", ""]
TARGETS = [
    "/_ping",
    "/info",
    "/containers/json",
    "/containers/json?all=1",
    "/v1.41/containers/json",
    "/v1.41/v1.24/containers/json",
    "/v1.41//containers///json",
    "//docker/containers/json",
    "http://docker/v1.41/info",
    "http:///info",
    "/containers/create",
    "/v1.41/containers/create?name=a&name=b",
    "/containers/mine/start",
    "/containers/mine/start?HostConfig=x",
    "/containers/other/start",
    "/containers/mine/attach?stream=1",
    "/containers/mine/wait",
    "/containers/mine/exec",
    "/containers/mine/archive?path=/tmp",
    "/containers/mine/../create",
    "/containers/mine%2fstart",
    "/containers/%6dine/start",
    "/containers/m%69ne%2F..%2Fother/start",
    "/containers/mine%00/start",
    "/containers/mine%0d%0aX:y/start",
    "/containers/mine\\..\\create",
    "/containers/mine;a=b/start",
    "/containers/mine/start#x",
    "/containers/mine/start?%0d%0aHost:%20x",
    "/containers/mine/start?a=%zz",
    "/containers/mine/start?a=1;b=2",
    "/containers/mine/start?detachKeys=%c3%28",
    "/exec/" + "e" * 64 + "/start",
    "/exec/" + "e" * 64 + "/resize?h=1&w=2",
    "/images/create?fromImage=x",
    "/images/load",
    "/build?t=x",
    "/networks/net",
    "/networks/create",
    "/networks/net/connect",
    "/volumes/create",
    "/volumes/vol",
    "/session",
    "/swarm/init",
    "/gpushare.v1.Leases/List",
    "/gpushare.v1.Leases/../../info",
    "*",
    "",
    "/",
    "/%2e%2e/info",
    "/INFO",
    "/info/",
    "/info HTTP/1.1\r\nX: y",
    "/inf\xe9",
]
HEADERS = [
    "Host: other",
    "Connection: close",
    "Connection: keep-alive",
    "Connection: Upgrade",
    "Connection: content-length, host",
    "Connection: x-registry-auth",
    "Upgrade: tcp",
    "Upgrade: h2c",
    "Upgrade: websocket",
    "HTTP2-Settings: AAMAAABkAAQAAP__",
    "Expect: 100-continue",
    "Expect: 200-ok",
    "TE: trailers",
    "Trailer: X-Late",
    "Keep-Alive: timeout=5",
    "Proxy-Connection: keep-alive",
    "Transfer_Encoding: chunked",
    "Content_Length: 5",
    "Transfer-Encoding: identity",
    "Transfer-Encoding:\tchunked",
    "Transfer-Encoding: xchunked",
    "Transfer-Encoding : chunked",
    " Transfer-Encoding: chunked",
    "X: y\r\n Transfer-Encoding: chunked",
    "X: y\r\n\tfolded",
    "X: y\nTransfer-Encoding: chunked",
    "X: y\rTransfer-Encoding: chunked",
    "X: \x00",
    "X\x00: y",
    "X Y: z",
    ": empty",
    "no colon",
    "Content-Encoding: gzip",
    "Content-Type: application/json",
    "Content-Type: application/x-www-form-urlencoded",
    "Content-Type: multipart/form-data; boundary=x",
    "Content-Type: text/plain",
    "Content-Type: application/json; charset=utf-16",
    "X-HTTP-Method-Override: DELETE",
    "X-Registry-Auth: e30=",
    "X-Own: é",
    "User-Agent: Docker-Client/20.10 (linux)",
]
BODIES = [
    json.dumps(BODY).encode(),
    b"",
    b"{}",
    b"null",
    b"[]",
    b"{}{}",
    b"\xef\xbb\xbf{}",
    b'{"Image":"x","Image":"y"}',
    b'{"Image":"x","image":"y"}',
    b'{"Image":"x","HO\\u017fTCONFIG":{}}',
    b'{"Image":"x","Ho\xc5\xbftConfig":{"Privileged":true}}',
    b'{"Image":"x"}\x00',
    b'{"Image":"x"} {"HostConfig":{"Privileged":true}}',
    b'{"Image":"\\ud800"}',
    b'{"Image":"x","HostConfig":{"Memory":1e400}}',
    b'{"Image":"x","HostConfig":{"Memory":-0,"NanoCpus":1.0}}',
    b'{"Image":"x","HostConfig":{"Memory":' + b"9" * 5000 + b"}}",
    b'{"a":' * 100 + b"1" + b"}" * 100,
    b"Image=x&HostConfig=y",
    b"path=/etc",
    b"\x1f\x8b\x08\x00",
    b'{"Detach":false,"Tty":false}',
    b"x" * 70_000,
    HIDDEN,
]
CODED = "Transfer-Encoding: chunked"
END = b"0\r\n\r\n"
FRAMINGS: dict[str, Callable[[bytes], tuple[list[str], bytes]]] = {
    "length": lambda body: ([_length(body)], body),
    "none": lambda _: ([], b""),
    "unannounced": lambda body: ([], body),
    "chunked": lambda body: ([CODED], _chunk(body) + END),
    "small chunks": lambda body: ([CODED], b"".join(map(_chunk, _sevens(body[:700]))) + END),
    "short": lambda body: ([f"Content-Length: {len(body) // 2}"], body),
    "long": lambda body: ([f"Content-Length: {len(body) + 9}"], body),
    "both": lambda body: ([_length(body), CODED], _chunk(body) + END),
    "twice": lambda body: ([_length(body), f"Content-Length: {len(body) + 1}"], body),
    "plus": lambda body: ([f"Content-Length: +{len(body)}"], body),
    "trailers": lambda body: ([CODED], _chunk(body) + b"0\r\nX-Late: y\r\nContent-Length: 3\r\n\r\n"),
    "extension": lambda body: ([CODED], b"%x;a=b\r\n%b\r\n0;c\r\n\r\n" % (len(body), body)),
}
"""Headers, and the bytes after the head."""
VERSIONS = ["HTTP/1.0", "HTTP/1.2", "HTTP/2.0", "http/1.1", "", "HTTP/1.1 "]
NOISE = [b"\r\n", b"\n", b" ", b":", b"\x00", b"\r\n\r\n"]


def _length(body: bytes) -> str:
    return f"Content-Length: {len(body)}"


def _sevens(body: bytes) -> Iterator[bytes]:
    for at in range(0, len(body), 7):
        yield body[at : at + 7]


def _chunk(body: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(body), body) if body else b""


@st.composite
def requests(draw: st.DrawFn) -> bytes:
    """One request, with as many oddities as come together."""
    method = draw(st.sampled_from(PLAIN_METHODS) | st.sampled_from(METHODS))
    target = draw(st.sampled_from(TARGETS))
    version = draw(st.just("HTTP/1.1") | st.just("HTTP/1.1") | st.sampled_from(VERSIONS))
    framing = draw(st.sampled_from(["length", "none"]) | st.sampled_from(sorted(FRAMINGS)))
    own, rest = FRAMINGS[framing](draw(st.sampled_from(BODIES)))
    headers = ["Host: docker", *draw(st.lists(st.sampled_from(HEADERS), max_size=3)), *own]
    headers = draw(st.permutations(headers)) if draw(st.booleans()) else headers
    end = draw(st.just("\r\n") | st.just("\r\n") | st.sampled_from(["\n", "\r", "\r\r\n"]))
    head = end.join([f"{method} {target} {version}", *headers, "", ""])
    return head.encode("latin-1", "replace") + rest


@st.composite
def streams(draw: st.DrawFn) -> bytes:
    """What one client sends: a few requests one behind the other, some bytes of it turned into others."""
    raw = b"".join(draw(st.lists(requests(), min_size=1, max_size=3)))
    if draw(st.booleans()):
        raw += HIDDEN
    for _ in range(draw(st.integers(0, 2))):
        at = draw(st.integers(0, min(len(raw), 400)))
        cut = draw(st.integers(0, 3))
        put = draw(st.binary(max_size=3) | st.sampled_from(NOISE))
        raw = raw[:at] + put + raw[at + cut :]
    return raw
