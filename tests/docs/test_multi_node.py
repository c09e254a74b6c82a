"""The pages on jobs name what a job's container is told, and their entry scripts start what they say."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from gpushared.domain.jobs.attempt_log import Attempt
from gpushared.domain.jobs.job import AttemptState, JobSpec, Owner
from gpushared.domain.jobs.protocol import Gang
from gpushared.domain.model.lease import AttemptKey, JobId
from gpushared.domain.model.request import Request
from gpushared.node.jobs.job_containers import environment_of, labels_of, launcher_defaults

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "multi-node.md"
SCRIPTS = {
    name: text
    for text in re.findall(r"^```sh\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    for name in re.findall(r"^# (\S+\.sh) PROGRAM", text, re.MULTILINE)
}
RECORD = '#!/bin/sh\necho "$(basename "$0") $*" >>"$RECORD"\n'
PROGRAMS = {
    "torchrun": RECORD,
    "ray": RECORD,
    "dask": RECORD,
    "train": '#!/bin/sh\necho "train $* at $RAY_ADDRESS$DASK_SCHEDULER_ADDRESS" >>"$RECORD"\nexit 7\n',
    # Asked whether the head is there: first it is, then it is gone.
    "python3": '#!/bin/sh\n[ ! -e "$RECORD.asked" ] && : >"$RECORD.asked"\n',
}
TORCH = "--nnodes=2 --node-rank={rank} --nproc-per-node={gpus} --master-addr=10.0.0.1 --master-port=23456"
C10D = (
    "--nnodes=2 --nproc-per-node={gpus} --local-addr={own} --rdzv-id=j.1 --rdzv-backend=c10d "
    "--rdzv-conf=is_host={host} --rdzv-endpoint=10.0.0.1:23456"
)
WORKER = (
    "dask worker tcp://10.0.0.1:23456 --host {own} --nworkers {gpus} --nthreads 1 --no-dashboard "
    "--death-timeout 60"
)
HEAD_ALONE = "--include-dashboard=false --disable-usage-stats"
RAY = "--num-gpus={gpus}"
STARTED = {
    ("torchrun-static.sh", 0): [f"torchrun {TORCH} train --epochs 3"],
    ("torchrun-static.sh", 1): [f"torchrun {TORCH} train --epochs 3"],
    ("torchrun-c10d.sh", 0): [f"torchrun {C10D} train --epochs 3"],
    ("torchrun-c10d.sh", 1): [f"torchrun {C10D} train --epochs 3"],
    ("ray.sh", 0): [
        f"ray start --head --node-ip-address={{own}} --port=23456 {RAY} {HEAD_ALONE}",
        "train --epochs 3 at 10.0.0.1:23456",
        "ray stop --force",
    ],
    ("ray.sh", 1): [
        f"ray start --address=10.0.0.1:23456 --node-ip-address={{own}} {RAY} --disable-usage-stats",
        "ray stop --force",
    ],
    ("dask.sh", 0): [
        "dask scheduler --host 10.0.0.1 --port 23456 --no-dashboard",
        WORKER,
        "train --epochs 3 at tcp://10.0.0.1:23456",
    ],
    ("dask.sh", 1): [WORKER],
}
EXIT_CODES = {("ray.sh", 0): 7, ("dask.sh", 0): 7}
"""That of the program, where the script waits for it to end."""
GANG = Gang(("10.0.0.1", "10.0.0.2"), 0, 23456, (2, 4))
REFERENCE = Path(__file__).parents[2] / "docs" / "reference" / "environment.md"


def told(rank: int) -> dict[str, str]:
    """As the node tells it, with what it tells of the lease."""
    spec = JobSpec(Request(), Owner("ada@lab", "ada"), body="{}")
    facts = Gang(GANG.hosts, rank, GANG.port, GANG.gpus)
    attempt = Attempt(AttemptKey(JobId("j"), 1), AttemptState.RUNNING, 1, 1.0, spec=spec, facts=facts)
    return {
        **environment_of(attempt),
        **launcher_defaults(attempt),
        "GPUSHARE_GPU_COUNT": str(GANG.gpus[rank]),
    }


def test_all_of_them_are_tried() -> None:
    assert {name for name, _ in STARTED} == set(SCRIPTS)


@pytest.mark.parametrize(("name", "rank"), STARTED)
def test_a_script_starts(name: str, rank: int, tmp_path: Path) -> None:
    for program, text in PROGRAMS.items():
        (tmp_path / program).write_text(text)
        (tmp_path / program).chmod(0o755)
    record = tmp_path / "record"
    done = subprocess.run(
        ["sh", "-c", SCRIPTS[name], name, "train", "--epochs", "3"],
        env={**told(rank), "PATH": f"{tmp_path}:/usr/bin:/bin", "RECORD": str(record)},
        capture_output=True, text=True, timeout=30, check=False,
    )  # fmt: skip
    facts = {"rank": rank, "own": GANG.hosts[rank], "gpus": GANG.gpus[rank]}
    expected = [line.format(**facts, host=str(rank == 0).lower()) for line in STARTED[name, rank]]
    assert done.stderr == ""
    # Some of it is started in the background.
    assert sorted(record.read_text().splitlines()) == sorted(expected)
    assert done.returncode == EXIT_CODES.get((name, rank), 0)


def test_each_is_named_with_what_it_means() -> None:
    body = '{"HostConfig": {"NetworkMode": "host"}}'
    spec = JobSpec(Request(), Owner("ada@lab", "ada"), body=body, array=JobId("a"), index=7)
    gang = Gang(("10.0.0.1", "127.0.0.1"), 1, 29500, (1, 1))
    key = AttemptKey(JobId("a_7"), 1)
    attempt = Attempt(key, AttemptState.RUNNING, 1, 1.0, spec=spec, facts=gang)
    section = REFERENCE.read_text().partition("## For the container of a job")[2].partition("\n## ")[0]
    words = {*environment_of(attempt), *launcher_defaults(attempt), *labels_of(attempt)}
    named = set(re.findall(r"`([A-Za-z_.]+)`", section))
    other = {"torchrun", "GPUSHARE_GPU_COUNT", *(word for word in named if word.startswith("SLURM_"))}
    assert named - other == words
