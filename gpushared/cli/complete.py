"""Complete a word in a shell with the names that the daemon knows.

The daemon is asked once and not for long. If it does not answer, there is no completion and no message: the
user is in the middle of a line. Descriptions have no comma, at which the script for fish cuts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

import click
from click.shell_completion import CompletionItem

from gpushared.api.message import Message
from gpushared.api.v1.messages import Job, JobList, NodeList, PresetList
from gpushared.cli.text import printable
from gpushared.client import Client, GpuList, Lease, LeaseList, ProjectList
from gpushared.domain.model.errors import GpushareError

ANSWER_SECONDS = 0.5
Items = list[CompletionItem]
Completer = Callable[[click.Context, click.Parameter, str], Items]
_Answer = TypeVar("_Answer", bound=Message)


def _completer(items: Callable[[], Items], *, in_list: bool = False) -> Completer:
    """Offer the items that begin as the typed text; ``in_list``: as the last part of a list with commas."""

    def complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> Items:  # noqa: ARG001 - click's
        before, comma, prefix = incomplete.rpartition(",") if in_list else ("", "", incomplete)
        return [
            CompletionItem(f"{before}{comma}{item.value}", help=printable(item.help or "") or None)
            for item in items()
            if item.value.startswith(prefix)
        ]

    return complete


def _one_of(*values: str) -> Completer:
    return _completer(lambda: [*map(CompletionItem, values)])


def files(ctx: click.Context, param: click.Parameter, incomplete: str) -> Items:  # noqa: ARG001 - click's
    """Leave the text to the shell, which knows the files."""
    return [CompletionItem(incomplete, type="file")]


def _ask(kind: type[_Answer], call: str, **fields: object) -> _Answer:
    """Return the daemon's answer, an empty one if none comes in time."""
    try:
        client = Client()
        client.retries = None
        return kind(client.call(call, fields, ANSWER_SECONDS))
    except GpushareError:
        return kind({})


def _leases() -> tuple[Lease, ...]:
    return _ask(LeaseList, "Leases/List").leases


def _jobs(*, ended: bool = False) -> tuple[Job, ...]:
    return _ask(JobList, "Jobs/List", ended=ended).jobs


def _lease_items(leases: Iterable[Lease]) -> Items:
    """Offer each lease by its id, and by its container."""
    return [
        CompletionItem(name, help=f"{lease.asks} of {lease.owner} ({lease.state})")
        for lease in leases
        for name in (lease.id, lease.container_name)
        if name
    ]


def _job_items(jobs: Iterable[Job]) -> Items:
    """Offer each job by its id, and by its container."""
    return [
        CompletionItem(name, help=f"{job.asks} for {job.image} ({job.state})")
        for job in jobs
        for name in (job.id, job.name)
        if name
    ]


def _waiting() -> Items:
    leases = (lease for lease in _leases() if lease.waiting is not None)
    return _lease_items(leases) + _job_items(job for job in _jobs() if job.state == "queued")


def _containers() -> Items:
    return [
        CompletionItem(lease.container_name, help=lease.id) for lease in _leases() if lease.container_name
    ]


def _nodes() -> Items:
    return [
        CompletionItem(node.name, help=f"{len(node.gpus)} GPUs ({node.presence})")
        for node in _ask(NodeList, "Jobs/Nodes").nodes
    ]


def _gpus() -> Items:
    answer = _ask(GpuList, "Gpus/List")
    items = [CompletionItem(gpu.label or str(gpu.index), help=gpu.name) for gpu in answer.gpus]
    return [*items, CompletionItem("all", help="all GPUs of this node")] if items else []


def _presets() -> Items:
    answer = _ask(PresetList, "Node/Presets")
    return [CompletionItem(preset.name, help=preset.description) for preset in answer.presets]


def _projects() -> Items:
    """Complete projects; a user in no project is listed like one, and cannot be named."""
    return [
        CompletionItem(project.name, help=" ".join(project.users))
        for project in _ask(ProjectList, "Projects/List").projects
        if project.origin != "user"
    ]


leases = _completer(lambda: _lease_items(_leases()))
lease_list = _completer(lambda: _lease_items(_leases()), in_list=True)
jobs = _completer(lambda: _job_items(_jobs()))
job_list = _completer(lambda: _job_items(_jobs()), in_list=True)
waiting = _completer(_waiting)
outputs = _completer(lambda: _job_items(_jobs(ended=True)) + _lease_items(_leases()))
"""Complete jobs and leases that have a container, or had one."""
containers = _completer(_containers)
nodes = _completer(_nodes)
gpus_and_nodes = _completer(lambda: _gpus() + _nodes())
presets = _completer(_presets)
projects = _completer(_projects)
classes = _one_of("build", "train", "infer")
isolations = _one_of("shared", "separate", "exclusive", "mig")
listing_outputs = _one_of("table", "wide", "json", "jsonl", "csv", "ids", "columns=")
