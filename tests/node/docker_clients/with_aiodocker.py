"""A container's life with aiodocker.

    with_aiodocker.py UID SOCKET IMAGE NAME LABEL PROGRAM

It becomes that user, and prints what it saw as JSON.
"""

import asyncio
import json
import os
import sys
from typing import Any

import aiodocker
from aiodocker.containers import DockerContainer


async def run(container: DockerContainer, *command: str) -> tuple[int, str]:
    made = await container.exec(command)
    out = b""
    async with made.start() as stream:
        while message := await stream.read_out():
            out += message.data
    return (await made.inspect())["ExitCode"], out.decode()


async def answered(container: DockerContainer, line: str) -> str:
    made = await container.exec(["sh", "-c", "read line; echo $line"], stdin=True)
    async with made.start() as stream:
        await stream.write_in(f"{line}\n".encode())
        message = await stream.read_out()
    assert message is not None
    return message.data.decode()


async def resized(container: DockerContainer) -> bool:
    made = await container.exec(["sleep", "100"], tty=True)
    async with made.start() as stream:
        # The program is there once the stream is.
        await stream._init()  # nothing public opens it without reading
        await made.resize(h=20, w=90)
    await container.resize(h=30, w=100)
    return True


def become(uid: int) -> None:
    """Late, because others may not read what is imported."""
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)


async def main(socket: str, image: str, name: str, label: str, program: str) -> dict[str, Any]:
    key, _, value = label.partition("=")
    config: dict[str, Any] = {
        "Image": image,
        "Cmd": ["sh", "-c", program],
        "Env": ["WORD=from outside"],
        "Labels": {key: value},
        "Tty": True,
        "HostConfig": {"NetworkMode": "none", "Memory": 64 << 20},
    }
    async with aiodocker.Docker(f"unix://{socket}") as docker:
        container = await docker.containers.create(config, name=name)
        try:
            await container.start()
            seen: dict[str, Any] = {
                "up": await run(
                    container, "sh", "-c", "until [ -e /tmp/up ]; do sleep 0.05; done; echo $WORD; exit 3"
                ),
                "answered": await answered(container, "said"),
                "resized": await resized(container),
            }
            await container.rename(f"{name}-2")
            seen["renamed"] = (await container.show())["Name"] == f"/{name}-2"
            await container.restart(t=0)
            await container.kill(signal="SIGUSR1")
            seen["running"] = (await container.show())["State"]["Running"]
            await run(container, "sh", "-c", "until [ -e /tmp/up ]; do sleep 0.05; done")
            await container.stop(t=20)
            seen["code"] = (await container.wait())["StatusCode"]
            listed = await docker.containers.list(all=True, filters={"label": [label]})
            seen["listed"] = container.id in {one.id for one in listed}
            volumes: Any = docker.volumes  # not annotated
            volume = await volumes.create({"Name": name, "Labels": {"a": "b"}})
            await volume.delete()
        finally:
            await container.delete(force=True, v=True)
    return seen


if __name__ == "__main__":
    become(int(sys.argv[1]))
    print(json.dumps(asyncio.run(main(*sys.argv[2:]))))  # noqa: T201 - what the test reads
