"""Nodes that will not have a job, whatever is free there, and what they said."""

from __future__ import annotations

from dataclasses import replace
from itertools import zip_longest

from gpushared.domain.jobs.model import Ending, Job, NodeName
from gpushared.domain.jobs.orders import name_of

NAMED = 3
MAX_KEPT = 500
"""Characters of what a node said: it is kept with the job."""


def refused(job: Job, node: NodeName, ending: Ending) -> Job:
    """The job, which is not offered to that node again."""
    said = replace(ending, reason=ending.reason[:MAX_KEPT], hint=ending.hint[:MAX_KEPT])
    return replace(job, refused_by=(*job.refused_by, node), refusals=(*job.refusals, said))


def told(job: Job) -> str:
    """Return the nodes' reasons for refusing the job, as a part of a sentence; return "" if none gave one."""
    both = list(zip_longest(job.refused_by, job.refusals))
    said = [
        f"{name_of(node)} will not have it" + (f": {ending.reason}" if ending and ending.reason else "")
        for node, ending in both[:NAMED]
    ]
    more = f"; nor will {len(both) - NAMED} more" if len(both) > NAMED else ""
    return "; ".join(said) + more


def hint(job: Job) -> str:
    """Return the hint for the first refusal that has one."""
    return next((ending.hint for ending in job.refusals if ending.hint), "")
