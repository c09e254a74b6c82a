"""Measure the time from a submit to the answer of the chosen node, on an idle pool, everything durable on the way.

A program submits to the coordinator over TLS; the coordinator writes the job, places it, writes that, and
tells a real node over its link, which writes its record and answers; the program hears of it over a stream.
The jobs are places without a container of their own, so that no engine is in the figure.
"""

from __future__ import annotations

import argparse
import asyncio
import time

import grpc
from busy import spread
from pool import Pool
from quiet import machine
from real import real_pool

from gpushared.api.v1 import jobs_pb2, jobs_pb2_grpc, leases_pb2
from gpushared.client.pipeline.pool_address import find_pool
from gpushared.client.pool_calls import PoolClient

ANSWERED = {"preparing", "waiting", "reserved", "running"}
PERSON = "nobody@b"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=200)
    parser.add_argument("--engine", default="/var/run/docker.sock")
    words = parser.parse_args()
    print(machine())
    with real_pool(words.engine) as (pool, _, __):
        asyncio.run(measure(pool, words.jobs))
    print(machine())


async def measure(pool: Pool, jobs: int) -> None:
    """One after the other; each is cancelled before the next."""
    admin = PoolClient(str(pool.home / "r/gpushared-pool.sock"))
    anchors, token = pool.home / "anchors.pem", pool.home / "token"
    anchors.write_bytes(admin.anchors())
    token.write_text(admin.create_api_token(person=PERSON).token)
    door = find_pool(f"127.0.0.1:{pool.users_port}", ca_file=anchors, token_file=token)
    assert door.credentials is not None
    kept, answered, reserved = [], [], []
    async with grpc.aio.secure_channel(door.target, door.credentials, door.options) as channel:
        calls = jobs_pb2_grpc.JobsStub(channel)
        for number in range(jobs + 10):
            times = await one(calls, door.metadata(), f"hop-{number}")
            if number >= 10:
                for values, seconds in zip((kept, answered, reserved), times, strict=True):
                    values.append(seconds)
    print(f"submitted and kept:                  {spread(kept)}")
    print(f"submitted, placed and accepted:      {spread(answered)}")
    print(f"the same until its lease is granted: {spread(reserved)}")


async def one(
    calls: jobs_pb2_grpc.JobsStub, metadata: tuple[tuple[str, str], ...], name: str
) -> tuple[float, float, float]:
    """Seconds until it is kept, until its node answered, and until it has its lease."""
    request = jobs_pb2.SubmitRequest(
        request_id=name, lease=leases_pb2.LeaseRequest(gpu="0.25"), pool=True, node="b", interactive=True
    )
    began = time.perf_counter()
    answer = await calls.Submit(request, metadata=metadata)
    kept, answered = time.perf_counter() - began, 0.0
    job = jobs_pb2.JobRef(job_id=answer.job_ids[0])
    async for view in calls.Watch(job, metadata=metadata):
        state = view.parts[0].state if view.parts else ""
        if state in ANSWERED and not answered:
            answered = time.perf_counter() - began
        if state == "reserved":
            break
        if view.state in {"failed", "cancelled"}:
            raise SystemExit(f"{view.state}: {view.reason}")
    reserved = time.perf_counter() - began
    await calls.Cancel(jobs_pb2.CancelJobRequest(job_id=job.job_id, grace_seconds=0), metadata=metadata)
    async for _ in calls.Watch(job, metadata=metadata):
        pass
    return kept, answered, reserved


if __name__ == "__main__":
    main()
