"""What is typed at a terminal, and the signals that a client passes on, do the same on both ways."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Coroutine

import pytest

from tests.gate.docker import Docker
from tests.gate.terminal import WAIT_SECONDS, terminal
from tests.parity.pairs import Pair

Act = Callable[[Docker, str], Coroutine[None, None, list[object]]]
SHELL = ("run", "--rm", "-it", "--network", "none", "--name")


async def resized(docker: Docker, name: str) -> list[object]:
    async with terminal(docker, *SHELL, name, docker.image, "sh") as screen:
        screen.type(b"echo is=$((40+2))\n")
        await screen.until(b"is=42")
        async with screen.sized(33, 99):
            screen.type(b"until [ \"$(stty size)\" = '33 99' ]; do sleep 0.05; done; echo re'sized'\n")
            await screen.until(b"resized")
        screen.type(b"exit 7\n")
        return [await screen.end()]


async def interrupted(docker: Docker, name: str) -> list[object]:
    """Control-C goes to the program in front, not to the client; it is in front once it speaks itself."""
    async with terminal(docker, *SHELL, name, docker.image, "sh") as screen:
        screen.type(b"sh -c 'echo is=$((40+2)); exec sleep 600'; echo code=$?\n")
        await screen.until(b"is=42\r\n")
        screen.type(b"\x03")
        screen.type(b"echo over=$((40+3))\n")
        await screen.until(b"over=43")
        screen.type(b"exit 3\n")
        return [await screen.end()]


async def detached_and_attached(docker: Docker, name: str) -> list[object]:
    words = ("run", "-it", "--network", "none", "--detach-keys", "ctrl-x,y", "--name", name)
    async with terminal(docker, *words, docker.image, "sh") as first:
        first.type(b"HERE=still; echo is=$((40+2))\n")
        await first.until(b"is=42")
        first.type(b"\x18y")
        left = await first.end()
    async with terminal(docker, "attach", name) as second:
        second.type(b"echo $HERE=there\n")
        await second.until(b"still=there")
        second.type(b"exit 6\n")
        return [left, await second.end()]


async def joined(docker: Docker, name: str) -> list[object]:
    await docker("run", "-d", "--init", "--network", "none", "--name", name, docker.image, "sleep", "600")
    words = ("exec", "-it", "-e", "A=b", "-w", "/tmp", name, "sh")
    async with terminal(docker, *words) as screen:
        async with screen.sized(20, 70):
            screen.type(b"until [ \"$(stty size)\" = '20 70' ]; do sleep 0.05; done; echo $A=$PWD; exit 5\n")
            await screen.until(b"b=/tmp")
        return [await screen.end()]


def signalled(number: signal.Signals, *options: str) -> Act:
    async def act(docker: Docker, name: str) -> list[object]:
        traps = "trap 'echo int; exit 8' INT; trap 'echo term; exit 9' TERM"
        script = f"{traps}; echo ready; while :; do sleep 0.1; done"
        words = (
            "run",
            "--rm",
            "--network",
            "none",
            "--name",
            name,
            *options,
            docker.image,
            "sh",
            "-c",
            script,
        )
        process = await docker.start(*words)
        assert process.stdout is not None
        assert await process.stdout.readline() == b"ready\n"
        process.send_signal(number)
        async with asyncio.timeout(WAIT_SECONDS):
            out, err = await process.communicate()
        return [process.returncode, out, err]

    return act


def ended(*command: str) -> Act:
    async def act(docker: Docker, name: str) -> list[object]:
        words = (*SHELL[:-1], "--name", name, "--init", docker.image, *command)
        async with terminal(docker, *words) as screen:
            return [await screen.end()]

    return act


async def followed(docker: Docker, name: str) -> list[object]:
    """Logs are followed to the end, and the container waited for, by others than whoever types.

    What an attach shows after its input's end is left out: directly too, it is all or nothing by chance.
    """
    script = "read line; seq 1000; echo got $line; exit 4"
    await docker("run", "-di", "--network", "none", "--name", name, docker.image, "sh", "-c", script)
    follower, waiter = await docker.start("logs", "-f", name), await docker.start("wait", name)
    attached = await docker("attach", name, stdin=b"more\n")
    async with asyncio.timeout(WAIT_SECONDS):
        logs, waited = await asyncio.gather(follower.communicate(), waiter.communicate())
    return [attached.code, logs, waited, follower.returncode]


OUTPUT = b"".join(b"%d\n" % number for number in range(1, 1001)) + b"got more\n"
ACTS: dict[str, tuple[Act, list[object]]] = {
    "a terminal is resized": (resized, [7]),
    "a program is interrupted": (interrupted, [3]),
    "detach keys leave it running, and attach finds it as it was": (detached_and_attached, [0, 6]),
    "exec on a terminal": (joined, [5]),
    "SIGTERM": (signalled(signal.SIGTERM), [9, b"term\n", b""]),
    "SIGINT": (signalled(signal.SIGINT), [8, b"int\n", b""]),
    "killed": (ended("sh", "-c", "kill -KILL $$"), [137]),
    "terminated": (ended("sh", "-c", "kill -TERM $$"), [143]),
    "followed": (followed, [4, (OUTPUT, b""), (b"4\n", b""), 0]),
}


@pytest.mark.parametrize("name", ACTS)
async def test_what_is_typed_and_signalled_has_the_same_end(pair: Pair, name: str) -> None:
    act, expected = ACTS[name]
    direct, gate = await asyncio.gather(
        *(act(side.docker, f"{pair.mark}-{side.name}") for side in pair.sides)
    )
    assert direct == expected
    assert gate == expected
