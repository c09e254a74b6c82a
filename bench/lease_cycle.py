"""(b) Acquire and release a durable lease over the socket: latency and cycles per second.

Each cycle is two calls, each answered only after its transaction is on disk (SQLite, synchronous=FULL).
Clients are processes of their own with one kept-alive connection each.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import socket
import time

from common import daemon, ms, percentile

HEAD = b"POST /gpushare.v1.%s HTTP/1.1\r\nHost: gpushared\r\nContent-Length: %d\r\n\r\n"


class Connection:
    """One kept-alive connection with just enough HTTP."""

    def __init__(self, path: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(path)
        self._file = self._socket.makefile("rb")

    def call(self, name: str, **fields: object) -> dict[str, object]:
        body = json.dumps(fields).encode()
        self._socket.sendall(HEAD % (name.encode(), len(body)) + body)
        status = self._file.readline()
        length = 0
        while (line := self._file.readline()) not in (b"\r\n", b""):
            if line.lower().startswith(b"content-length:"):
                length = int(line.split(b":")[1])
        answer: dict[str, object] = json.loads(self._file.read(length))
        if b" 200 " not in status:
            raise SystemExit(f"{name}: {answer}")
        return answer


def client(path: str, cycles: int, start: object, out: object) -> None:
    connection = Connection(path)
    start.wait()  # type: ignore[attr-defined]  # a multiprocessing.Barrier has no public type
    seconds = []
    for _ in range(cycles):
        begin = time.perf_counter()
        lease = connection.call("Leases/Request", gpu="0.01")
        connection.call("Leases/Release", lease_id=lease["id"])
        seconds.append(time.perf_counter() - begin)
    out.put(seconds)  # type: ignore[attr-defined]  # the same


def measure(path: str, clients: int, cycles: int) -> None:
    context = multiprocessing.get_context("fork")
    start, out = context.Barrier(clients + 1), context.Queue()
    processes = [context.Process(target=client, args=(path, cycles, start, out)) for _ in range(clients)]
    for process in processes:
        process.start()
    start.wait()
    begin = time.perf_counter()
    seconds = [one for _ in processes for one in out.get()]
    wall = time.perf_counter() - begin
    for process in processes:
        process.join()
    p50, p99 = ms(percentile(seconds, 50)), ms(percentile(seconds, 99))
    print(f"lease cycle, {clients:2} clients: p50 {p50}  p99 {p99}  {len(seconds) / wall:7.0f} cycles/s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cycles", type=int, default=2000, help="in all, divided among the clients")
    words = parser.parse_args()
    with daemon(log__level="warning") as bench:
        measure(bench.socket, 1, words.cycles // 4)
        measure(bench.socket, 1, words.cycles)
        measure(bench.socket, 16, words.cycles // 16)


if __name__ == "__main__":
    main()
