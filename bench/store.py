"""Compare a pool's stores: SQLite, etcd of one member, etcd of three members, all on this machine, in turns.

Measured are one transaction of the store; a transaction of a hundred records beside an event loop that is busy in
passes of 3 ms; and a submission to a real coordinator until it is accepted: on its unix socket, one after the other.

    PYTHONPATH=. .venv/bin/python bench/store.py
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import contextlib
import http.client
import json
import signal
import socket
import tempfile
import time
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any, NoReturn

from common import ms, percentile, print_conditions

from gpushared.daemon.process import new_polite_loop
from gpushared.ports.job_store import JobStore, Transaction
from gpushared.storage.etcd.access import EtcdAccess
from gpushared.storage.etcd.store import EtcdStore
from gpushared.storage.job_store import SqliteStore
from tests.bed.etcd import EtcdCluster
from tests.pool.processes import CoordinatorProcess

TURN = 20
"""Measure so many in one turn, then the next store: what else the machine does meets all of them."""
BODY = b"x" * 2000
MANY = 100
Seconds = dict[str, list[float]]
PASS_SECONDS = 0.003


async def commits(stores: dict[str, JobStore], rounds: int, records: int = 1) -> dict[str, list[float]]:
    seconds: dict[str, list[float]] = {name: [] for name in stores}
    epochs = {name: await store.lead() for name, store in stores.items()}
    for number in range(rounds):
        for name, store in stores.items():
            for at in range(TURN):
                began = time.perf_counter()
                keys = [f"job/{number:06d}-{at:03d}-{record:03d}" for record in range(records)]
                await store.commit(Transaction(epochs[name], dict.fromkeys(keys, BODY)))
                seconds[name].append(time.perf_counter() - began)
    for store in stores.values():
        await store.close()
    return seconds


async def beside_a_busy_loop(work: Coroutine[Any, Any, Seconds]) -> Seconds:
    """Do the work while the event loop has something to do in each pass, as a coordinator's has at work."""

    async def keep_busy() -> NoReturn:
        while True:
            until = time.perf_counter() + PASS_SECONDS
            while time.perf_counter() < until:
                sum(range(50))
            await asyncio.sleep(0)

    busy = asyncio.create_task(keep_busy())
    try:
        return await work
    finally:
        busy.cancel()


def submit(coordinator: CoordinatorProcess, request_id: str) -> float:
    """Seconds until the job is accepted."""
    body = base64.b64encode(b'{"Image": "busybox"}').decode()
    fields = {"request_id": request_id, "lease": {"gpu": "0.1"}, "image": "busybox", "create_body": body}
    connection = http.client.HTTPConnection("coordinator", timeout=30)
    connection.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.sock.connect(str(coordinator.directory / "r/gpushared-pool.sock"))
    with contextlib.closing(connection):
        began = time.perf_counter()
        connection.request("POST", "/gpushare.v1.Jobs/Submit", json.dumps(fields | {"pool": True}))
        answer = json.loads(connection.getresponse().read())
        took = time.perf_counter() - began
    assert "job_ids" in answer, answer
    return took


def submissions(urls: dict[str, str], rounds: int) -> dict[str, list[float]]:
    seconds: dict[str, list[float]] = {name: [] for name in urls}
    with contextlib.ExitStack() as stack:
        running = {}
        for name, url in urls.items():
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="gss-"))
            made = CoordinatorProcess(Path(folder), config=f'[store]\nurl = "{url}"\nprefix = "/submit/"\n')
            stack.callback(made.dispose)
            made.start()
            stack.callback(made.end, signal.SIGTERM)
            running[name] = made
        for number in range(rounds):
            for name, coordinator in running.items():
                seconds[name] += [submit(coordinator, f"{number}-{at}") for at in range(TURN)]
    return seconds


def table(what: str, seconds: dict[str, list[float]]) -> None:
    base = percentile(seconds["sqlite"], 50)
    for name, found in seconds.items():
        p50, p99 = percentile(found, 50), percentile(found, 99)
        print(f"{what:10} {name:12} p50 {ms(p50)}  p99 {ms(p99)}  p50 is {p50 / base:.2f} times SQLite's")


@contextlib.contextmanager
def clusters() -> Iterator[dict[str, EtcdCluster]]:
    with contextlib.ExitStack() as stack:
        made = {}
        for count in (1, 3):
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gss-")))
            made[f"etcd of {count}"] = cluster = EtcdCluster(folder, count)
            stack.callback(cluster.dispose)
            cluster.start()
        yield made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=25)
    rounds = parser.parse_args().rounds
    print_conditions()
    with tempfile.TemporaryDirectory(prefix="gss-") as folder, clusters() as made:

        def stores(name: str) -> dict[str, JobStore]:
            found: dict[str, JobStore] = {"sqlite": SqliteStore(Path(folder, f"{name}.db"))}
            return found | {
                each: EtcdStore(EtcdAccess(one.endpoints), f"/{name}/") for each, one in made.items()
            }

        async def one() -> Seconds:
            return await commits(stores("one"), rounds)

        async def many() -> Seconds:
            return await beside_a_busy_loop(commits(stores("many"), rounds, MANY))

        for what, work in (("commit", one), ("busy", many)):
            with asyncio.Runner(loop_factory=new_polite_loop) as runner:
                table(what, runner.run(work()))
        urls = {"sqlite": ""} | {name: f"etcd://{','.join(one.endpoints)}" for name, one in made.items()}
        table("submit", submissions(urls, rounds))


if __name__ == "__main__":
    main()
