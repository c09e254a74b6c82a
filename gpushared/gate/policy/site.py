"""What a site may decide about confined callers."""

from __future__ import annotations

from dataclasses import dataclass

HOME = "~"


@dataclass(frozen=True, slots=True)
class Policy:
    """``~`` in ``bind_prefixes`` is the caller's home; ``lowest_port`` is the first to publish on.

    ``gangs_on_host_network``: the parts of jobs on several nodes may have the machine's own network.
    """

    bind_prefixes: tuple[str, ...] = (HOME,)
    pids_limit: int = 4096
    lowest_port: int = 1024
    gangs_on_host_network: bool = False
