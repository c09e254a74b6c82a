"""The attacker: a program that gives up root for good and then does what it is told, one JSON line each.

A process of its own with nothing of root's left, so that the kernel and the daemon see what they would see of
any local user. Standard library only: it runs where the tests' own packages may not be read.
"""

from __future__ import annotations

import base64
import json
import os
import resource
import socket
import subprocess
import sys
import traceback
from typing import Any

READ_BYTES = 65536
LONGEST_BYTES = 8 << 20
Json = dict[str, Any]
_NAMES: Json = {"os": os, "resource": resource, "socket": socket, "subprocess": subprocess}


def become(uid: int) -> None:
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)
    os.chdir("/")


def wire(order: Json) -> Json:
    """Send pieces on one connection, then read to its end, or until it is silent for ``quiet`` seconds."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as channel:
        channel.settimeout(order["seconds"])
        channel.connect(order["path"])
        said = b""
        for piece in order["pieces"]:
            try:
                channel.sendall(base64.b64decode(piece))
            except (BrokenPipeError, ConnectionResetError):
                break  # the answer may be there all the same
        try:
            while (data := channel.recv(READ_BYTES)) and len(said) < LONGEST_BYTES:
                said += data
                channel.settimeout(order["quiet"])
        except (TimeoutError, ConnectionResetError):
            pass
    return {"said": base64.b64encode(said).decode()}


def command(order: Json) -> Json:
    done = subprocess.run(
        order["words"],
        input=base64.b64decode(order["stdin"]),
        capture_output=True,
        timeout=order["seconds"],
        check=False,
        env=order["environment"],
    )
    return {
        "code": done.returncode,
        "out": base64.b64encode(done.stdout).decode(),
        "err": base64.b64encode(done.stderr).decode(),
    }


def python(order: Json) -> Json:
    """Run lines that may leave something in ``answer``; names stay from one order to the next."""
    _NAMES.update(order["names"], answer="")
    exec(order["code"], _NAMES)
    return {"answer": str(_NAMES["answer"])}


def main() -> None:
    become(int(sys.argv[1]))
    ways = {"wire": wire, "command": command, "python": python}
    for line in sys.stdin:
        order = json.loads(line)
        try:
            answer = ways[order["do"]](order)
        except Exception:  # noqa: BLE001 - whatever it was, the test is told
            answer = {"failed": traceback.format_exc()}
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
