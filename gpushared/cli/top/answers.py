"""Ask the daemon for all that the view shows, and choose what of it is shown."""

from __future__ import annotations

import os
import pwd
from collections.abc import Mapping

from gpushared.client import Client, Gpu, GpuList, Lease, LeaseList
from gpushared.client.jobs import Jobs
from gpushared.light import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from typing import Any

    from gpushared.api.v1.history_messages import RecentUse
    from gpushared.api.v1.messages import NodeList

    Trends = Mapping[str, tuple[float | None, ...]]

TREND_MINUTES = 20


class Scope(NamedTuple):
    """Limit the view: the pool instead of the node, one node of the pool, only the caller's own leases."""

    pool: bool = False
    node: str = ""
    mine: bool = False


class Answers(NamedTuple):
    """Hold what the daemon answered, and when. ``trends``: the use of each GPU in each of the last minutes."""

    gpus: GpuList
    leases: LeaseList
    nodes: NodeList | None = None
    at: float = 0.0
    trends: Mapping[str, tuple[float | None, ...]] = {}
    recent: RecentUse | None = None
    recent_trouble: str = ""

    @property
    def simulated(self) -> bool:
        return self.gpus.simulated or self.leases.simulated

    def to_json(self) -> dict[str, Any]:
        """Return all answers for programs, with the names of the listings' JSON."""
        nodes = {} if self.nodes is None else {"nodes": [node.to_json() for node in self.nodes.nodes]}
        return {
            "schema": "gpushare.top/1",
            "at": self.at,
            "simulated": self.simulated,
            "node": self.gpus.node,
            "troubles": list(self.gpus.troubles),
            "notices": list(dict.fromkeys((*self.gpus.notices, *self.leases.notices))),
            "gpus": [{**gpu.to_json(), "node": gpu.node or self.gpus.node} for gpu in self.gpus.gpus],
            "leases": [lease.to_json() for lease in self.leases.leases],
            "unmanaged": [process.to_json() for process in self.leases.unmanaged],
            **nodes,
        }


def ask(client: Client, scope: Scope, now: float) -> Answers:
    """Return what the daemon answers now. Raises the errors of ``Client``."""
    gpus, leases = client.gpus(pool=scope.pool), client.leases(pool=scope.pool)
    nodes = Jobs(client).nodes() if scope.pool else None
    return narrowed(Answers(gpus, leases, nodes, now), scope)


def narrowed(answers: Answers, scope: Scope) -> Answers:
    """Return the answers without the GPUs, leases and nodes outside of the scope."""
    gpus, leases, nodes = answers.gpus, answers.leases, answers.nodes
    if scope.node:
        gpus.gpus = tuple(gpu for gpu in gpus.gpus if gpu.node == scope.node)
        leases.leases = tuple(lease for lease in leases.leases if lease.node in {"", scope.node})
        leases.unmanaged = tuple(process for process in leases.unmanaged if process.node == scope.node)
        if nodes is not None:
            nodes.nodes = tuple(node for node in nodes.nodes if node.name == scope.node)
    if scope.mine:
        leases.leases = tuple(lease for lease in leases.leases if _is_mine(lease, scope))
        leases.unmanaged = ()
    return answers


def _is_mine(lease: Lease, scope: Scope) -> bool:
    """Return True for the caller's own lease. In a pool the numbers of users differ from node to node."""
    if not scope.pool:
        return lease.owner_uid == os.getuid()
    return lease.owner.partition("@")[0] == _user_name()


def _user_name() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())


def gpu_key(gpu: Gpu) -> str:
    """Return a key that no other GPU of the answer has."""
    return f"{gpu.node}/{gpu.uuid}"


class UseByMinute:
    """Keep the mean use of each GPU in each of the last minutes: from the history, then from what is seen."""

    def __init__(self) -> None:
        self._sums: dict[str, dict[int, tuple[float, int]]] = {}

    def take(self, answers: Answers) -> None:
        minute = int(answers.at // 60)
        for gpu in answers.gpus.gpus:
            if gpu.utilization_ratio is not None:
                of_gpu = self._sums.setdefault(gpu_key(gpu), {})
                total, count = of_gpu.get(minute, (0.0, 0))
                of_gpu[minute] = total + gpu.utilization_ratio, count + 1
                for old in [past_minute for past_minute in of_gpu if past_minute <= minute - TREND_MINUTES]:
                    del of_gpu[old]

    def take_history(self, recent: RecentUse) -> None:
        """Take the minutes before this program began; ``recent`` has steps of a minute."""
        for gpu in recent.gpus:
            of_gpu = self._sums.setdefault(f"/{gpu.uuid}", {})
            for step in gpu.steps:
                if step.use_ratio is not None:
                    of_gpu.setdefault(int(step.at // 60), (step.use_ratio, 1))

    def trends(self, now: float) -> Trends:
        """Return for each GPU the last minutes, the present one at the end; None for one that nobody saw."""
        newest = int(now // 60)
        return {
            key: tuple(
                None if (seen := of_gpu.get(minute)) is None else seen[0] / seen[1]
                for minute in range(newest - TREND_MINUTES + 1, newest + 1)
            )
            for key, of_gpu in self._sums.items()
        }
