"""A coordinator that is down for a minute while its nodes work: what is lost, and how the nodes come back."""

from __future__ import annotations

import argparse
import asyncio
import time
from collections import Counter
from collections.abc import Sequence

from busy import WORKERS, access, client, placing, request
from pool import Members, Pool, members, pool_of
from quiet import costs, machine, wait_for_all


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=50)
    parser.add_argument("--processes", type=int, default=2, help="in which the nodes are simulated")
    parser.add_argument("--jobs", type=int, default=600, help="more than the nodes have GPUs")
    parser.add_argument("--job-seconds", type=float, default=45.0, help="how long each job runs, on average")
    parser.add_argument("--away", type=float, default=60.0, help="how long the coordinator is killed")
    words = parser.parse_args()
    print(machine())
    with pool_of(words.nodes, settled=True) as pool:
        pool.start()
        with members(
            pool, min(words.processes, words.nodes), WORKERS, "--seconds", str(words.job_seconds)
        ) as groups:
            wait_for_all(groups)
            began = time.monotonic()
            jobs = asyncio.run(submit(pool, words.jobs))
            time.sleep(10)
            placing(pool, groups, 1.0)
            kill(pool, groups, words.away)
            asyncio.run(judge(pool, jobs))
            refused = sum(group.told()["refused"] for group in groups)
            print(f"the nodes refused {refused} orders for want of room")
            print(f"all over {time.monotonic() - began:.0f} s after they were submitted")
    print(machine())


async def submit(pool: Pool, jobs: int) -> Sequence[str]:
    async with client(pool, access(pool), 0) as calls:
        return (await calls.submit_array(request(0), f"0-{jobs - 1}")).job_ids


def kill(pool: Pool, groups: Sequence[Members], seconds: float) -> None:
    """As by the loss of its power; and how the nodes come back."""
    pool.kill()
    time.sleep(seconds)
    pool.start()
    served = time.time()
    back = [at - served for at in wait_for_all(list(groups))]
    print(f"down for {seconds:.0f} s; {len(back)} nodes back within {max(back):.1f} s, {costs(pool)}")
    print("nodes that came back, by the second:")
    for second, count in sorted(Counter(map(int, back)).items()):
        print(f"  {second:3} s {'#' * count} {count}")


async def judge(pool: Pool, jobs: Sequence[str]) -> None:
    """Each job was run once and to its end."""
    async with client(pool, access(pool), 0) as calls:
        over = await calls.wait_all(jobs)
    states = Counter(job.state for job in over)
    more = sum(job.attempt - 1 for job in over)
    print(f"{len(over)} jobs: {dict(states)}, with {more} attempts more than one each")


if __name__ == "__main__":
    main()
