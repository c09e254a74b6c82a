"""A container's life with the Docker SDK for Python.

    with_docker_py.py UID SOCKET IMAGE NAME LABEL PROGRAM

It becomes that user, and prints what it saw as JSON.
"""

import json
import os
import sys
from typing import Any

import docker


def become(uid: int) -> None:
    """Late, because others may not read what is imported."""
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)


def main(socket: str, image: str, name: str, label: str, program: str) -> dict[str, Any]:
    key, _, value = label.partition("=")
    client = docker.DockerClient(f"unix://{socket}", timeout=60)
    container = client.containers.create(
        image,
        ["sh", "-c", program],
        name=name,
        environment={"WORD": "from outside"},
        labels={key: value},
        tty=True,
        network_mode="none",
        mem_limit="64m",
    )
    try:
        container.start()
        up = container.exec_run(["sh", "-c", "until [ -e /tmp/up ]; do sleep 0.05; done; echo $WORD; exit 3"])
        output: Any = up.output
        seen: dict[str, Any] = {"up": [up.exit_code, output.decode()]}
        made = client.api.exec_create(container.id, ["sleep", "100"], tty=True)["Id"]
        client.api.exec_start(made, detach=True, tty=True)
        client.api.exec_resize(made, height=20, width=90)
        container.resize(30, 100)
        seen["resized"] = True
        container.rename(f"{name}-2")
        container.reload()
        seen["renamed"] = container.name == f"{name}-2"
        container.restart(timeout=0)
        container.kill(signal="SIGUSR1")
        container.reload()
        seen["running"] = container.status == "running"
        container.exec_run(["sh", "-c", "until [ -e /tmp/up ]; do sleep 0.05; done"])
        container.stop(timeout=20)
        seen["code"] = container.wait()["StatusCode"]
        seen["listed"] = container in client.containers.list(all=True, filters={"label": label})
        client.volumes.create(name, labels={"a": "b"}).remove()
    finally:
        container.remove(force=True, v=True)
        client.close()
    return seen


if __name__ == "__main__":
    become(int(sys.argv[1]))
    print(json.dumps(main(*sys.argv[2:])))  # noqa: T201 - what the test reads
