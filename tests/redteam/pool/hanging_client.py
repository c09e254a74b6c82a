"""A docker client by bare HTTP: SOCKET HOW. It asks for both GPUs of a node, and waits for the answer.

``waits`` as docker does; ``half`` says first that it sends no more; ``floods`` goes on sending behind its
request for as long as somebody takes it, so that its end stands behind all of that.
"""

from __future__ import annotations

import json
import socket
import sys

from tests.bed import parts

MANY = bytes(1 << 20)


def request() -> bytes:
    asked = {"Image": parts.BUSYBOX_IMAGE, "Cmd": ["true"], "Labels": {"gpushare.gpu": "2"}}
    body = json.dumps({**asked, "HostConfig": {"NetworkMode": "none"}}).encode()
    head = (
        "POST /v1.41/containers/create HTTP/1.1\r\nHost: docker\r\nUser-Agent: Docker-Client/28\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def main(path: str, how: str) -> None:
    with socket.socket(socket.AF_UNIX) as sock:
        sock.connect(path)
        sock.sendall(request())
        if how == "half":
            sock.shutdown(socket.SHUT_WR)
        while how == "floods":
            sock.sendall(MANY)
        while data := sock.recv(65536):
            sys.stdout.write(data.decode(errors="replace"))
            sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
