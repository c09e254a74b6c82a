"""A pipeline on a pool: each part of the work is a job, on whichever node has room.

    export GPUSHARE_POOL=dgx GPUSHARE_POOL_CA=lab.pem GPUSHARE_POOL_TOKEN_FILE=token
    python examples/pipeline.py [NAME]

On a machine of the pool it needs none of the variables. Run again under the same NAME, it goes on with the
jobs that it has, instead of submitting them twice.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Sequence

from gpushared.client.pipeline import Job, JobRequest, Pool
from gpushared.domain.model.errors import GpushareError

PARTS = 8
HOUR_SECONDS = 3600
# Part 5 is the large one, as there always is: it needs half a GPU.
WORK = """
if [ "$GPUSHARE_ARRAY_INDEX" = 5 ] && [ "$GPUSHARE_COMPUTE_PERCENT" -lt 50 ]; then
  echo "part $GPUSHARE_ARRAY_INDEX does not fit" >&2
  exit 9
fi
for step in 1 2 3; do
  echo "part $GPUSHARE_ARRAY_INDEX, step $step"
  sleep 1
done
"""


def work_on(pool: Pool, name: str, numbers: str, gpu: str) -> list[Job]:
    """Runs these parts, shows what the first one writes, and comes back when all are over."""
    request = JobRequest("busybox", ["sh", "-c", WORK], gpu=gpu, time="1h")
    array = pool.submit_array(request, numbers, request_id=f"{name}/{gpu}")
    print(f"array {array.array_id}: {len(array.job_ids)} jobs, each with {gpu} of a GPU")
    for piece in pool.logs(array.job_ids[0], follow=True):
        print(piece.decode(errors="replace"), end="")
    return pool.wait_all(array.job_ids, timeout_seconds=HOUR_SECONDS)


def failed_ones(jobs: Sequence[Job]) -> list[Job]:
    """Return the jobs that did not succeed, and print the reason of each."""
    failed = [job for job in jobs if job.state != "succeeded"]
    for job in failed:
        print(f"{job.id} {job.state}: {job.reason}")
    return failed


def show_where(jobs: Sequence[Job]) -> None:
    """Print how many jobs each node ran."""
    nodes = Counter(part.node for job in jobs for part in job.parts)
    print("done:", ", ".join(f"{count} on {node}" for node, count in sorted(nodes.items())))


def run(name: str) -> int:
    """Everything once, and what failed once more with a larger part of a GPU."""
    with Pool() as pool:
        for node in pool.nodes().nodes:
            print(f"node {node.name} is {node.presence}: {', '.join(gpu.name for gpu in node.gpus)}")
        jobs = work_on(pool, name, f"0-{PARTS - 1}", "0.25")
        failed = failed_ones(jobs)
        if failed:
            numbers = ",".join(str(job.array_index) for job in failed)
            again = work_on(pool, name, numbers, "0.5")
            failed = failed_ones(again)
            jobs = [job for job in jobs if job.state == "succeeded"] + again
        show_where(jobs)
        return 1 if failed else 0


def main() -> int:
    name = sys.argv[1] if len(sys.argv) > 1 else f"example-{os.getpid()}"
    try:
        return run(name)
    except GpushareError as error:
        print(f"pipeline: {error.message}", file=sys.stderr)
        if error.hint:
            print(f"  hint: {error.hint}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
