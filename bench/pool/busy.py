"""A coordinator with a hundred thousand queued jobs: what submitting takes, and how fast they are placed."""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

from pool import Members, Pool, members, pool_of
from quiet import costs, machine, wait_for_all

from gpushared.client.pipeline import AsyncPool, JobRequest
from gpushared.client.pool_calls import PoolClient
from gpushared.domain.model.errors import LimitReached

WORKERS = Path(__file__).with_name("workers.py")
PEOPLE = 20
AT_ONCE = 5000
"""Jobs of an array."""
SUBMITS = 200


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=100)
    parser.add_argument("--processes", type=int, default=2, help="in which the nodes are simulated")
    parser.add_argument("--queued", type=int, default=100_000)
    parser.add_argument("--job-seconds", type=float, default=4.0, help="how long each job runs, on average")
    parser.add_argument("--seconds", type=float, default=30.0, help="how long it is measured")
    parser.add_argument("--warm-up", type=float, default=15.0)
    words = parser.parse_args()
    print(machine())
    with pool_of(words.nodes, settled=True) as pool:
        pool.start()
        asyncio.run(fill(pool, words.queued))
        with members(
            pool, min(words.processes, words.nodes), WORKERS, "--seconds", str(words.job_seconds)
        ) as groups:
            wait_for_all(groups)
            time.sleep(words.warm_up)
            placing(pool, groups, words.seconds)
            asyncio.run(submitting(pool, "while jobs are placed"))
        restart(pool)
        print(machine())


async def fill(pool: Pool, queued: int) -> None:
    """While no node is there yet."""
    began, files = time.perf_counter(), access(pool)
    numbers = f"0-{min(AT_ONCE, queued) - 1}"
    for number in range(0, queued, AT_ONCE):
        person = number // AT_ONCE % PEOPLE
        async with client(pool, files, person) as calls:
            await _patiently(calls.submit_array, request(person), numbers)
    seconds = time.perf_counter() - began
    print(
        f"{queued} jobs of {PEOPLE} people queued in {seconds:.0f} s: {queued / seconds:.0f}/s, {costs(pool)}"
    )
    await submitting(pool, f"{queued} jobs wait")


async def submitting(pool: Pool, when: str) -> None:
    """One job after the other, each durable before it is answered."""
    taken = []
    async with client(pool, access(pool), 0) as calls:
        for _ in range(SUBMITS):
            began = time.perf_counter()
            await _patiently(calls.submit, request(0))
            taken.append(time.perf_counter() - began)
    print(f"submit, {when}: {spread(taken)}")


async def _patiently(call: Callable[..., Awaitable[object]], *words: object) -> None:
    """Repeat a call, as a user would, while the coordinator has too much to do."""
    while True:
        try:
            await call(*words)
        except LimitReached:
            await asyncio.sleep(0.2)
        else:
            return


def placing(pool: Pool, groups: Sequence[Members], seconds: float) -> None:
    """What the nodes were told to do, and did."""
    for group in groups:
        group.told()
    before, began = pool.usage.cpu_times(), time.perf_counter()
    time.sleep(seconds)
    told: list[dict[str, Any]] = [group.told() for group in groups]
    wall, after = time.perf_counter() - began, pool.usage.cpu_times()
    used = after.user + after.system - before.user - before.system
    count = {key: sum(one[key] for one in told) for key in ("placed", "ended", "refused", "running")}
    if not count["placed"]:
        raise SystemExit("no node was told anything:\n" + (pool.home / "members.log").read_text()[-2000:])
    print(
        f"{wall:.0f} s: {count['placed'] / wall:.0f} jobs/s placed, {count['ended'] / wall:.0f}/s ended, "
        f"{count['refused']} refused; {count['running']} of {8 * len(pool.names)} GPUs in use; "
        f"{used / wall * 100:.0f} % of a core, {costs(pool)}"
    )
    print(f"from a free GPU to the next order for it: {spread([s for one in told for s in one['idle']])}")


def restart(pool: Pool) -> None:
    """Killed, and started again with all that it had."""
    pool.kill()
    began = time.perf_counter()
    pool.start()
    print(f"killed, and serving again {time.perf_counter() - began:.1f} s after its start; {costs(pool)}")


def access(pool: Pool) -> list[Path]:
    """A token for each of the people, once."""
    files = [pool.home / f"token-{number}" for number in range(PEOPLE)]
    if not files[0].exists():
        admin = PoolClient(str(pool.home / "r/gpushared-pool.sock"))
        (pool.home / "anchors.pem").write_bytes(admin.anchors())
        for number, file in enumerate(files):
            file.write_text(admin.create_api_token(person=f"p{number}").token)
    return files


def client(pool: Pool, files: Sequence[Path], person: int) -> AsyncPool:
    address = f"127.0.0.1:{pool.users_port}"
    return AsyncPool(address, ca_file=pool.home / "anchors.pem", token_file=files[person])


def request(person: int) -> JobRequest:
    """Each person's jobs are of a kind of their own."""
    return JobRequest("busybox", ["true"], gpu=1, time=f"{person + 1}h", env={"WHAT": "x" * 200})


def spread(seconds: Sequence[float]) -> str:
    ordered = sorted(seconds)
    parts = (f"p{part} {ordered[int(len(ordered) * part / 100)] * 1000:.1f}" for part in (50, 90, 99))
    return f"{', '.join(parts)}, most {ordered[-1] * 1000:.1f} ms of {len(ordered)}" if ordered else "none"


if __name__ == "__main__":
    main()
