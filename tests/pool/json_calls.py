"""Calls of a coordinator in JSON over its unix socket, as administrators of its machine make them."""

from __future__ import annotations

import base64
import http.client
import json
import socket
from contextlib import closing
from pathlib import Path
from typing import Any, Final

CALL_SECONDS: Final = 60
BUSYBOX: Final = {
    "lease": {"gpu": "0.1"},
    "image": "busybox",
    "create_body": base64.b64encode(b'{"Image": "busybox"}').decode(),
    "pool": True,
}
"""The fields of a job that a test submits."""


class RefusedError(Exception):
    """The coordinator refused the call, and said why."""


def post(path: Path, call: str, **fields: Any) -> tuple[dict[str, Any], str]:
    """Return the answer, an error too, and how old the answer is by its header."""
    connection = http.client.HTTPConnection("coordinator", timeout=CALL_SECONDS)
    with closing(connection):
        connection.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.sock.settimeout(CALL_SECONDS)
        connection.sock.connect(str(path))
        connection.request("POST", f"/gpushare.v1.{call}", json.dumps(fields))
        response = connection.getresponse()
        return json.loads(response.read()), response.getheader("Gpushare-Age-Seconds", "")


def call(path: Path, name: str, **fields: Any) -> tuple[dict[str, Any], str]:
    """Do as ``post`` does; raise RefusedError for an error."""
    answer, age = post(path, name, **fields)
    if "code" in answer:
        raise RefusedError(f"{answer['message']}; {answer['details']}")
    return answer, age
