"""(o) What open pages cost the daemon, and how soon a change is on them: 8 simulated GPUs, 64 leases of containers.

Pages are streams in a process of their own. Every few seconds a lease comes and goes, with and without pages.
All figures are of one run, each with pages beside the same without.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import multiprocessing
import os
import random
import selectors
import socket
import statistics
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from multiprocessing.connection import Connection as Pipe
from pathlib import Path
from types import SimpleNamespace
from typing import cast
from urllib.parse import quote

import psutil
from common import BIN, Bench, daemon, ms, need, percentile, print_conditions
from lease_cycle import Connection
from metrics import figures

from gpushared.api.v1 import gpus_pb2, leases_pb2
from gpushared.domain.model.request import Caller
from gpushared.net.http_server import Exchange, Routes
from gpushared.net.loopback import LoopbackGate
from gpushared.net.revisions import Revisions
from gpushared.net.unary_json import JsonApi, Unary
from gpushared.node.runtime.loop import Loop
from gpushared.node.services.views import Views
from gpushared.web.stream import EventStreams

HOST = "127.0.0.1:8642"
UPGRADE = b"GET /gpushare.web/browser HTTP/1.1\r\nHost: x\r\nUpgrade: gpushare-browser\r\nConnection: Upgrade\r\n\r\n"
FRONT_PAGE = {"leases": ["Leases/List", {}], "gpus": ["Gpus/List", {}], "node": ["Node/Status", {}]}
"""The front page of a machine watches this."""
FIRST_UID = 61100
GPUS = 8
RESTLESS = 8
"""So many of the leases use another part of the memory in each sample."""
MIB = 1024**2


def request(path: str, head: str, body: bytes = b"") -> tuple[socket.socket, bytes]:
    """Send a browser's request on a connection of its own; the connection, and the head of the answer."""
    channel = socket.socket(socket.AF_UNIX)
    channel.settimeout(60)
    channel.connect(path)
    channel.sendall(UPGRADE)
    _until(channel, b"\r\n\r\n")
    length = f"Origin: http://{HOST}\r\nContent-Length: {len(body)}\r\n" if body else ""
    channel.sendall(f"{head}\r\nHost: {HOST}\r\n{length}\r\n".encode() + body)
    return channel, _until(channel, b"\r\n\r\n")


def _until(channel: socket.socket, end: bytes) -> bytes:
    read = b""
    while not read.endswith(end):
        read += channel.recv(1)
    return read


def cookie_of(path: str, code: str) -> str:
    head = "POST /login HTTP/1.1\r\nContent-Type: application/json"
    channel, answer = request(path, head, json.dumps({"code": code}).encode())
    channel.close()
    lines = answer.decode().split("\r\n")
    return next(line for line in lines if line.lower().startswith("set-cookie:")).split(": ")[1].split(";")[0]


def open_stream(path: str, cookie: str) -> socket.socket:
    watch = quote(json.dumps(FRONT_PAGE))
    head = f"GET /stream?watch={watch} HTTP/1.1\r\nCookie: {cookie}\r\nSec-Fetch-Site: same-origin"
    channel, answer = request(path, head)
    if b" 200 " not in answer.split(b"\r\n")[0]:
        raise SystemExit(f"no stream: {answer!r}")
    return channel


def read_pages(path: str, users: int, pages_of_user: int, pipe: Pipe) -> None:
    """Open pages as these many users, say so, read until the other end says stop, and tell the bytes."""
    selector, size = selectors.DefaultSelector(), 0
    for number in range(users):
        os.setegid(FIRST_UID + number)
        os.seteuid(FIRST_UID + number)
        cookie = cookie_of(path, str(Connection(path).call("Web/Link")["code"]))
        for _ in range(pages_of_user):
            selector.register(open_stream(path, cookie), selectors.EVENT_READ)
        os.seteuid(0)
        os.setegid(0)
    pipe.send("open")
    while not pipe.poll():
        for key, _ in selector.select(0.2):
            assert isinstance(key.fileobj, socket.socket)
            size += len(key.fileobj.recv(1 << 20))
    pipe.send(size)


@contextmanager
def pages(path: str, users: int, pages_of_user: int) -> Iterator[list[int]]:
    """Have pages open in the block; afterwards the list has the bytes that they got."""
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    reader = context.Process(target=read_pages, args=(path, users, pages_of_user, theirs))
    reader.start()
    theirs.close()  # so that its end is noticed
    ours.recv()
    size: list[int] = []
    try:
        yield size
    finally:
        ours.send("stop")
        size.append(int(ours.recv()))
        reader.join()


@contextmanager
def changes(path: str, every_seconds: float) -> Iterator[None]:
    """Let a lease come and go, again and again, as long as the block runs."""
    is_over = threading.Event()

    def change() -> None:
        connection = Connection(path)
        while not is_over.wait(every_seconds):
            lease = connection.call("Leases/Request", gpu="0.01")
            if not is_over.wait(1):
                connection.call("Leases/Release", lease_id=lease["id"])

    thread = threading.Thread(target=change)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def cpu_percent(process: psutil.Process, seconds: float) -> float:
    """The daemon's part of a core over this time."""
    before, begin = process.cpu_times(), time.perf_counter()
    time.sleep(seconds)
    after, wall = process.cpu_times(), time.perf_counter() - begin
    return (after.user + after.system - before.user - before.system) / wall * 100


def measure_cost(bench: Bench, words: argparse.Namespace) -> None:
    process, seconds, rounds = psutil.Process(bench.pid), words.seconds, words.rounds
    with changes(bench.socket, words.change_seconds):
        for users, count in (map(int, kind.split("x")) for kind in words.pages):
            without, with_pages, sizes = [], [], []
            for _ in range(rounds):
                without.append(cpu_percent(process, seconds))
                with pages(bench.socket, users, count) as size:
                    time.sleep(2)  # the first answers are whole
                    with_pages.append(cpu_percent(process, seconds))
                sizes += size
            cost = statistics.median(b - a for a, b in zip(without, with_pages, strict=True))
            print(
                f"{users * count} pages of {users} users: {cost:+.2f} % of a core "
                f"(without {_list(without)}, with {_list(with_pages)}), "
                f"{sum(sizes) / rounds / (seconds + 2) / users / count / 1024:.1f} kB/s a page"
            )


def _list(values: Sequence[float]) -> str:
    return ", ".join(f"{one:.2f}" for one in values)


def measure_delay(bench: Bench, count: int) -> None:
    """From the request for a change to its event on a page."""
    connection = Connection(bench.socket)
    cookie = cookie_of(bench.socket, str(connection.call("Web/Link")["code"]))
    channel, seconds = open_stream(bench.socket, cookie), []
    text = b""
    while b'"name": "leases"' not in text:
        text += channel.recv(1 << 20)
    for _ in range(count):
        time.sleep(0.3 + random.random())
        begin = time.perf_counter()
        lease = str(connection.call("Leases/Request", gpu="0.01")["id"])
        text = b""
        while lease.encode() not in text:
            text = text[-100:] + channel.recv(1 << 20)
        seconds.append(time.perf_counter() - begin)
        connection.call("Leases/Release", lease_id=lease)
    print(f"change to page: p50 {ms(percentile(seconds, 50))}  p95 {ms(percentile(seconds, 95))} ({count})")


def fill(bench: Bench, image: str, leases: int) -> list[str]:
    """Start containers, as many on each GPU, whose processes use it."""
    names = [f"gsb-{os.getpid()}-{number}" for number in range(leases)]
    for name in names:
        words = [BIN / "gpushare", "run", "-d", "--gpu", "0.1", "--name", name, "--network", "none", image]
        subprocess.run([*words, "sleep", "3600"], env=bench.environ, check=True, capture_output=True)
    docker, connection = need("docker"), Connection(bench.socket)
    inspected = subprocess.run(
        [docker, "inspect", "-f", "{{.Name}} {{.State.Pid}}", *names],
        check=True,
        capture_output=True,
        text=True,
    )
    pids = {name.removeprefix("/"): int(pid) for name, pid in map(str.split, inspected.stdout.splitlines())}
    listed = connection.call("Leases/List")["leases"]
    assert isinstance(listed, list)
    for index in range(GPUS):
        here = [one for one in listed if one["grants"] and one["grants"][0]["gpu_index"] == index]
        processes = [
            {"pid": pids[one["container_name"]], "memory_bytes": str((number + 1) * 100 * MIB)}
            for number, one in enumerate(here)
        ]
        connection.call("Simulation/Change", gpu_index=index, processes=processes)
    return names


class PagesAlone:
    """Streams over a state and samples that are made up, without the rest of a daemon."""

    def __init__(self) -> None:
        known = figures()
        self.state, self.sample, self._used = known.state, known.sample, itertools.count()
        self.views = Views(
            cast("Loop", SimpleNamespace(state=self.state, now=lambda: 1000.0)), simulated=True
        )
        self.revisions = Revisions()
        calls = {
            "gpushare.v1.Leases/List": Unary(leases_pb2.ListLeasesRequest, self._leases),
            "gpushare.v1.Gpus/List": Unary(gpus_pb2.ListGpusRequest, self._gpus),
        }
        self.streams = EventStreams(JsonApi(calls), self.revisions)

    async def _leases(self, _: object, caller: Caller) -> leases_pb2.ListLeasesResponse:
        leases = [self.views.lease(one, caller, self.sample) for one in self.state.leases.values()]
        return leases_pb2.ListLeasesResponse(leases=leases)

    async def _gpus(self, _: object, __: Caller) -> gpus_pb2.ListGpusResponse:
        return gpus_pb2.ListGpusResponse(gpus=self.views.gpus(self.sample))

    async def serve(self, exchange: Exchange) -> None:
        await self.streams.serve(exchange, exchange.caller, exchange.target.partition(b"?")[2].decode())

    def take_sample(self) -> None:
        """Take a sample with other figures of all GPUs, and of the memory of some leases."""
        readings = {
            gpu: replace(one, power_watts=float(next(self._used)))
            for gpu, one in self.sample.readings.items()
        }
        used = {
            lease: next(self._used) if number < RESTLESS else GPUS
            for number, lease in enumerate(self.state.leases)
        }
        self.sample = replace(self.sample, at=self.sample.at + 0.25, readings=readings, used_bytes=used)
        self.revisions.sampled()

    async def cost(self, users: int, count: int, seconds: float, every_seconds: float) -> float:
        """Percent of a core: a sample four times a second, a change of the state every so many seconds."""
        gate = LoopbackGate()
        gate.serve(Routes(json=self.streams.live.calls.answer, docker=self.serve))
        callers = [Caller(1000 + number, 1000, f"user{number}") for number in range(users)]
        ends = [gate.socket_as(caller) for caller in callers for _ in range(count)]
        watch = quote(json.dumps({"leases": FRONT_PAGE["leases"], "gpus": FRONT_PAGE["gpus"]}))
        reader = multiprocessing.get_context("fork").Process(target=drain, args=(ends,))
        reader.start()
        for end in ends:
            end.send(f"GET /stream?watch={watch} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
            end.close()
        await asyncio.sleep(3)
        begin, begun = time.process_time(), time.perf_counter()
        for turn in range(int(seconds * 4)):
            await asyncio.sleep(begun + turn / 4 - time.perf_counter())
            self.take_sample()
            if turn % int(every_seconds * 4) == 0:
                self.revisions.state_changed()
        cost = (time.process_time() - begin) / (time.perf_counter() - begun) * 100
        reader.kill()
        await gate.close()
        await self.streams.close()
        return cost


def drain(ends: Sequence[socket.socket]) -> None:
    """Read all that comes, for ever."""
    selector = selectors.DefaultSelector()
    for end in ends:
        selector.register(end, selectors.EVENT_READ)
    while True:
        for key, _ in selector.select():
            assert isinstance(key.fileobj, socket.socket)
            if not key.fileobj.recv(1 << 20):
                selector.unregister(key.fileobj)


def measure_pages_alone(kinds: Sequence[str], seconds: float, every_seconds: float) -> None:
    for users, count in (map(int, kind.split("x")) for kind in kinds):
        cost = asyncio.run(PagesAlone().cost(users, count, seconds, every_seconds))
        print(f"{users * count} pages of {users} users, without the rest of a daemon: {cost:.2f} % of a core")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--image", default="gpushared-test/busybox")
    parser.add_argument("--pages", nargs="+", default=["4x13", "1x16", "20x1"], help="users x pages of each")
    parser.add_argument("--alone", action="store_true", help="no daemon and no containers")
    parser.add_argument("--leases", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--change-seconds", type=float, default=10.0)
    parser.add_argument("--changes", type=int, default=60)
    words = parser.parse_args()
    print_conditions()
    # A change of a lease has about three revisions: two of the request and its grant, and one of its end.
    measure_pages_alone(words.pages, words.seconds, words.change_seconds / 3)
    if words.alone:
        return
    with daemon(f"h100:{GPUS}") as bench:
        Path(bench.socket).parent.parent.chmod(0o755)  # other users have pages, too
        names = fill(bench, words.image, words.leases)
        try:
            measure_cost(bench, words)
            measure_delay(bench, words.changes)
        finally:
            subprocess.run([need("docker"), "rm", "--force", *names], check=False, capture_output=True)


if __name__ == "__main__":
    main()
