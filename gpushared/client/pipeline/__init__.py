"""Use a pool of nodes from programs: submit jobs, follow them, read their output.

There are synchronous and asyncio twins.

    from gpushared.client.pipeline import JobRequest, Pool

    with Pool() as pool:                          # GPUSHARE_POOL and the like, or this machine's node
        job = pool.submit(JobRequest("busybox", ["echo", "hello"], gpu="0.25"))
        print(pool.wait(job).state)

Importing this module imports gRPC. Errors are those of ``gpushared.domain.model.errors``.
"""

from gpushared.api.v1.messages import (
    Job,
    JobExplanation,
    JobPart,
    JobStoryEntry,
    NodeList,
    PoolGpu,
    PoolNode,
    SubmitAnswer,
)
from gpushared.client.http import ConnectionLost
from gpushared.client.pipeline.async_pool import AsyncPool
from gpushared.client.pipeline.job_request import JobRequest, Mount
from gpushared.client.pipeline.pool_steps import JobWarning
from gpushared.client.pipeline.sync_pool import Pool
from gpushared.domain.model.errors import NeverFits, TimedOut

__all__ = [
    "AsyncPool",
    "ConnectionLost",
    "Job",
    "JobExplanation",
    "JobPart",
    "JobRequest",
    "JobStoryEntry",
    "JobWarning",
    "Mount",
    "NeverFits",
    "NodeList",
    "Pool",
    "PoolGpu",
    "PoolNode",
    "SubmitAnswer",
    "TimedOut",
]
