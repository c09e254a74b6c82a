"""The reference names every variable and label that a job's container gets."""

from __future__ import annotations

import re
from pathlib import Path

from gpushared.domain.jobs.attempt_log import Attempt
from gpushared.domain.jobs.job import AttemptState, JobSpec, Owner
from gpushared.domain.jobs.protocol import Gang
from gpushared.domain.model.lease import AttemptKey, JobId
from gpushared.domain.model.request import Request
from gpushared.node.jobs.job_containers import environment_of, labels_of, launcher_defaults

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "environment.md"


def test_each_is_named_with_what_it_means() -> None:
    body = '{"HostConfig": {"NetworkMode": "host"}}'
    spec = JobSpec(Request(), Owner("ada@lab", "ada"), body=body, array=JobId("a"), index=7)
    gang = Gang(("10.0.0.1", "127.0.0.1"), 1, 29500, (1, 1))
    key = AttemptKey(JobId("a_7"), 1)
    attempt = Attempt(key, AttemptState.RUNNING, 1, 1.0, spec=spec, facts=gang)
    section = PAGE.read_text().partition("## For the container of a job")[2].partition("\n## ")[0]
    words = {*environment_of(attempt), *launcher_defaults(attempt), *labels_of(attempt)}
    named = set(re.findall(r"`([A-Za-z_.]+)`", section))
    other = {"torchrun", "GPUSHARE_GPU_COUNT", *(word for word in named if word.startswith("SLURM_"))}
    assert named - other == words
