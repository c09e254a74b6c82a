"""Measure what one user's flood does to another's containers: create, start and wait through the gate, in turns.

    .venv/bin/python bench/gate/flood.py [--rounds 15] [--engine SOCKET] [--image IMAGE] [FLOOD...]

Needs root, because both users are made by setuid, a Docker engine and an image in it. The flood's own process
is as nice as can be: what is measured is the daemon and the engine, not who wins the processor.
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
import json
import multiprocessing
import os
import socket
import statistics
import sys
import time
from collections.abc import Awaitable, Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[1]))
from common import daemon

ATTACKER, NEIGHBOUR = 64001, 64002
WARM_SECONDS = 2.0
LIST = b"GET /containers/json HTTP/1.1\r\nHost: x\r\n\r\n"
Flood = Callable[[str, str], Awaitable[None]]


# --- the neighbour -------------------------------------------------------------------------------------


class _Http(http.client.HTTPConnection):
    def __init__(self, path: str) -> None:
        super().__init__("docker", timeout=120)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect(self._path)


def ask(path: str, method: str, target: str, body: object = None) -> Any:
    connection = _Http(path)
    try:
        sent = None if body is None else json.dumps(body)
        connection.request(method, target, sent, {"Content-Type": "application/json"} if sent else {})
        answer = connection.getresponse()
        said = answer.read()
        if answer.status >= http.client.BAD_REQUEST:
            raise SystemExit(f"{method} {target}: {answer.status} {said.decode()}")
        return json.loads(said) if said else None
    finally:
        connection.close()


def one_run(path: str, image: str) -> float:
    """Seconds of create, start and wait."""
    begin = time.perf_counter()
    body = {"Image": image, "Cmd": ["true"], "HostConfig": {"NetworkMode": "none"}}
    name = ask(path, "POST", "/containers/create", body)["Id"]
    ask(path, "POST", f"/containers/{name}/start")
    ask(path, "POST", f"/containers/{name}/wait")
    seconds = time.perf_counter() - begin
    ask(path, "DELETE", f"/containers/{name}?force=1")
    return seconds


# --- the floods ----------------------------------------------------------------------------------------


async def lists(path: str, _: str) -> None:
    """500 connections that list containers as fast as they are answered."""
    await asyncio.gather(*(_again(path, LIST) for _ in range(500)))


async def bodies(path: str, _: str) -> None:
    """50 connections that send create bodies of 4 MiB, most of it tiny values."""
    body = b'{"Image":"x","Env":[' + b'"",' * 1_390_000 + b'""]}'
    await asyncio.gather(*(_again(path, _post("/containers/create", body)) for _ in range(50)))


async def parsed(path: str, _: str) -> None:
    """200 connections that send create bodies as long and full as are just parsed."""
    body = b'{"Image":"x","Env":[' + b'"",' * 9_900 + b'"' + b"x" * 900_000 + b'"]}'
    await asyncio.gather(*(_again(path, _post("/containers/create", body)) for _ in range(200)))


async def pieces(path: str, _: str) -> None:
    """200 connections that send bodies in chunks of a byte."""
    head = b"POST /containers/create HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    await asyncio.gather(*(_again(path, head + b"1\r\n \r\n" * 100_000 + b"0\r\n\r\n") for _ in range(200)))


async def calls(path: str, _: str) -> None:
    """500 connections that make unary JSON calls."""
    await asyncio.gather(*(_again(path, _post("/gpushare.v1.Leases/List", b"{}")) for _ in range(500)))


async def half_open(path: str, _: str) -> None:
    """1000 connections that begin a request and never end it, made anew when they are given up."""
    await asyncio.gather(
        *(_again(path, b"GET /containers/json HTTP/1.1\r\nHost:", gaps=0.01) for _ in range(1000))
    )


async def refusals(path: str, image: str) -> None:
    """200 connections whose creates are refused, after their mounts were looked at."""
    host = {"NetworkMode": "none", "Binds": ["/nowhere/at/all:/x"]}
    body = json.dumps({"Image": image, "HostConfig": host}).encode()
    await asyncio.gather(*(_again(path, _post("/containers/create", body)) for _ in range(200)))


async def names(path: str, _: str) -> None:
    """500 connections that ask for containers that are not there."""
    raw = b"GET /containers/nobodys/json HTTP/1.1\r\nHost: x\r\n\r\n"
    await asyncio.gather(*(_again(path, raw) for _ in range(500)))


FLOODS: dict[str, Flood] = {
    flood.__name__: flood for flood in (lists, bodies, parsed, pieces, calls, half_open, refusals, names)
}


def _post(target: str, body: bytes) -> bytes:
    head = (
        f"POST {target} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
    )
    return f"{head}\r\n\r\n".encode() + body


async def _again(path: str, raw: bytes, gaps: float = 0.0) -> None:
    while True:
        try:
            reader, writer = await asyncio.open_unix_connection(path)
        except OSError:
            await asyncio.sleep(0.05)
            continue
        try:
            while True:
                writer.write(raw)
                await writer.drain()
                if not await _answer(reader):
                    break
        except (OSError, asyncio.IncompleteReadError, ValueError):
            pass
        writer.close()
        await asyncio.sleep(gaps)


async def _answer(reader: asyncio.StreamReader) -> bool:
    """Read one answer; whether the connection goes on."""
    head = (await reader.readuntil(b"\r\n\r\n")).lower()
    if b"transfer-encoding" in head:
        while size := int(await reader.readline(), 16):
            await reader.readexactly(size + 2)
        await reader.readline()
    else:
        await reader.readexactly(int(head.partition(b"content-length: ")[2].partition(b"\r\n")[0] or 0))
    return b"connection: close" not in head


# --- the measurement -----------------------------------------------------------------------------------


def _become(uid: int) -> None:
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)


def _flood(name: str, path: str, image: str) -> None:
    os.nice(19)
    _become(ATTACKER)
    asyncio.run(FLOODS[name](path, image))  # type: ignore[arg-type]  # it is a coroutine


def _measure(path: str, image: str, rounds: int, results: Connection) -> None:
    _become(NEIGHBOUR)
    results.send([one_run(path, image) for _ in range(rounds)])


def measured(path: str, image: str, rounds: int) -> list[float]:
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.Process(target=_measure, args=(path, image, rounds, theirs))
    process.start()
    theirs.close()
    try:
        seconds: list[float] = ours.recv()
    except EOFError:
        raise SystemExit("the neighbour failed") from None
    process.join()
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("floods", nargs="*", choices=[*FLOODS, []], help="default: all")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--image", default="gpushared-test/busybox")
    parser.add_argument("--engine", default="/var/run/docker.sock")
    words = parser.parse_args()
    with daemon(engine__socket=words.engine) as bench:
        for folder in (Path(bench.socket).parent, Path(bench.socket).parents[1]):
            folder.chmod(0o755)
        measured(bench.socket, words.image, 3)
        for name in words.floods or FLOODS:
            _compare(name, bench.socket, words.image, words.rounds)


def _compare(name: str, path: str, image: str, rounds: int) -> None:
    quiet = measured(path, image, rounds)
    flood = multiprocessing.Process(target=_flood, args=(name, path, image), daemon=True)
    flood.start()
    time.sleep(WARM_SECONDS)
    try:
        flooded = measured(path, image, rounds)
    finally:
        flood.kill()
        flood.join()
    before, during = statistics.median(quiet), statistics.median(flooded)
    print(
        f"{name:10} quiet {before * 1000:6.0f} ms  flooded {during * 1000:6.0f} ms"
        f"  (slowest {max(flooded) * 1000:6.0f} ms)  ratio {during / before:5.2f}",
        flush=True,
    )


if __name__ == "__main__":
    main()
