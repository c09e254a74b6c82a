"""Machines as the daemon describes them, for pictures of ``gpushare top``; ``NOW`` is when they are looked at."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from gpushared.api.v1.history_messages import RecentUse
from gpushared.api.v1.messages import NodeList
from gpushared.cli.top.answers import TREND_MINUTES, Answers
from gpushared.client import GpuList, LeaseList

NOW = 1_764_000_300.0
GIB = 1024**3
TOTAL, LEASABLE = 80 * GIB, 79 * GIB
USERS = ("alice", "bob", "carol", "dave")
HOSTILE = "x\x1b]0;owned\x07\x1b[2J\x1b[31m\r\n\t\u202eevil\u200b"
WIDE = "研究者さん", "José🚀", "e\u0301toile"

Json = dict[str, Any]


def gpu(index: int, count: int | None = None, **said: object) -> Json:
    """A GPU that ``count`` leases hold a quarter of each."""
    count = index % 4 if count is None else count
    used = count * 20 * GIB
    return {
        "uuid": f"GPU-{index:04}",
        "index": index,
        "label": str(index),
        "name": "NVIDIA H100 80GB HBM3",
        "mode": "shared" if used else "free",
        "memory_total_bytes": str(TOTAL),
        "memory_leasable_bytes": str(LEASABLE),
        "memory_used_bytes": str(used * 3 // 4),
        "memory_free_bytes": str(LEASABLE - used),
        "compute_free_permille": 1000 - used * 1000 // TOTAL,
        "utilization_ratio": count * 0.3,
        "temperature_celsius": 30 + index,
        "power_watts": 70.0 + 100 * count,
        "leases": count,
        "sharing": "mps",
        "sampled_at": NOW - 1,
        **said,
    }


def lease(number: int, *, gpu: int = 0, **said: object) -> Json:
    return {
        "id": f"l-{number:04}",
        "state": "active",
        "owner": USERS[number % len(USERS)],
        "owner_uid": str(1000 + number % len(USERS)),
        "asks": "0.25",
        "class": "train",
        "isolation": "shared",
        "grants": [
            {
                "gpu_uuid": f"GPU-{gpu:04}",
                "gpu_index": gpu,
                "gpu_label": str(gpu),
                "gpu_name": "NVIDIA H100 80GB HBM3",
                "memory_bytes": str(20 * GIB),
                "compute_permille": 250,
            }
        ],
        "memory_used_bytes": str(15 * GIB),
        "memory_wall": "mps-client",
        "container_id": f"{number:064}",
        "container_name": f"trainer-{number}",
        "image": "registry.lab/pytorch:2.9",
        "created_at": NOW - 3700,
        "since": NOW - 3600,
        "expires_at": NOW + 1800 + number,
        **said,
    }


def waiting(number: int, position: int, length: int) -> Json:
    return {
        **lease(number),
        "state": "queued",
        "grants": [],
        "asks": "2",
        "memory_used_bytes": None,
        "memory_wall": "",
        "container_id": "",
        "created_at": NOW - 125,
        "since": NOW - 125,
        "expires_at": 0,
        "waiting": {
            "position": position,
            "queue_length": length,
            "reason": "resources",
            "text": "needs 2 whole GPUs; 1 of 8 is free; alice holds GPU 3 until 14:05",
            "start_from": NOW + 600,
            "start_to": NOW + 1500,
        },
    }


def answers(
    gpus: Sequence[Json],
    leases: Sequence[Json],
    *,
    simulated: bool = False,
    nodes: Json | None = None,
    troubles: Sequence[str] = (),
    unmanaged: Sequence[Json] = (),
    recent: Json | None = None,
) -> Answers:
    return Answers(
        GpuList({"gpus": gpus, "node": "gpu-a", "simulated": simulated, "troubles": troubles}),
        LeaseList({"leases": leases, "unmanaged": unmanaged}),
        None if nodes is None else NodeList(nodes),
        NOW - 2,
        {f"{one.get('node', '')}/{one['uuid']}": trend(one) for one in gpus},
        None if recent is None else RecentUse(recent),
    )


def trend(one: Json) -> tuple[float | None, ...]:
    """A use that goes up and down around the present one, and was not seen before."""
    use, index = one["utilization_ratio"] or 0.0, one["index"]
    waves = [math.sin(minute * (1 + index % 3) / 3 + index) for minute in range(5, TREND_MINUTES)]
    return (*[None] * 5, *(max(0.0, min(1.0, use * (1 + wave / 2))) for wave in waves))


HELD = (0, 0, 0, 1, 1, 2, 3, 3, 5)
"""The GPU that each lease of the busy machine holds a quarter of."""


def busy() -> Answers:
    """Eight GPUs; one is sick, one has a process without a lease; two wait."""
    drained = {"reason": "fell off the bus (XID 79)", "since": NOW - 7300, "by": "gpushared", "sick": True}
    gpus = [gpu(index, HELD.count(index)) for index in range(7)]
    lost = {"trouble": drained["reason"], "utilization_ratio": None, "memory_used_bytes": None}
    gpus.append(
        gpu(7, 0, mode="unhealthy", drained=drained, temperature_celsius=None, power_watts=None, **lost)
    )
    leases = [lease(number, gpu=index) for number, index in enumerate(HELD)]
    leases[2] = lease(2, gpu=0, idle_since=NOW - 1900)
    leases[3] = lease(3, gpu=1, state="suspended", memory_used_bytes=None)
    leases += [waiting(20, 1, 2), waiting(21, 2, 2)]
    stray = {"pid": 4711, "user": "erin", "gpu_index": 5, "gpu_uuid": "GPU-0005", "command": "python"}
    return answers(gpus, leases, unmanaged=[{**stray, "memory_bytes": str(3 * GIB)}])


def empty() -> Answers:
    return answers([gpu(0)], [])


def big() -> Answers:
    return answers(
        [gpu(index) for index in range(16)],
        [lease(number, gpu=number % 16) for number in range(190)]
        + [waiting(200 + number, number + 1, 10) for number in range(10)],
    )


def wide() -> Answers:
    return answers(
        [gpu(index) for index in range(2)],
        [lease(number, owner=name, container_name=f"{name}-box") for number, name in enumerate(WIDE)],
    )


def hostile() -> Answers:
    """Every name that somebody else chose, and every sentence, is an attack on the terminal."""
    return answers(
        [gpu(0, name=HOSTILE, trouble=HOSTILE, mode=HOSTILE, label=HOSTILE)],
        [
            lease(
                1, owner=HOSTILE, container_name=HOSTILE, image=HOSTILE, memory_wall=HOSTILE, state=HOSTILE
            ),
            {**waiting(2, 1, 1), "owner": HOSTILE, "asks": HOSTILE, "container_name": HOSTILE},
        ],
        troubles=[HOSTILE],
        unmanaged=[{"pid": 1, "user": HOSTILE, "command": HOSTILE, "memory_bytes": "1", "gpu_uuid": HOSTILE}],
        recent=recent(HOSTILE),
    )


def recent(first: str = "alice") -> Json:
    """The last 70 minutes of two GPUs: alice, then bob and alice together; the second was never held."""
    begin = NOW // 600 * 600 - 3600
    steps = [{"at": begin + 60 * minute, "use_ratio": minute / 100} for minute in range(64)]
    holdings = [
        {"owner": first, "lease": "l-1", "since": begin, "until": begin + 1500, "share_permille": 500},
        {"owner": "bob", "lease": "l-2", "since": begin + 1200, "until": NOW, "share_permille": 750},
        {"owner": first, "lease": "l-3", "since": begin + 2400, "until": NOW, "share_permille": 250},
    ]
    return {
        "gpus": [
            {"uuid": "GPU-0000", "label": "0", "name": "H100", "steps": steps, "holdings": holdings},
            {"uuid": "GPU-0001", "label": "1", "name": "H100"},
        ],
        "step_seconds": 60,
        "since": begin,
        "until": NOW,
    }


def pool() -> Answers:
    nodes = {
        "pool": "lab",
        "nodes": [
            {
                "name": name,
                "presence": presence,
                "heard_at": NOW - heard,
                "silent_since": NOW - heard if heard > 15 else 0,
                "running": 2,
                "waiting": 1,
                "gpus": [
                    {"id": f"GPU-{name}", "index": 0, "name": "NVIDIA H100", "free_compute_permille": 500}
                ],
            }
            for name, presence, heard in (("a", "ready", 1), ("b", "unknown", 95))
        ],
    }
    gpus = [gpu(number, node=name) for name in ("a", "b") for number in range(2)]
    leases = [
        lease(1, gpu=1, node="a", job_id="k3m9x0p2qa"),
        lease(2, gpu=0, node="b"),
        {**waiting(3, 1, 1), "id": "k3m9x0p2qb", "job_id": "k3m9x0p2qb"},
    ]
    return answers(gpus, leases, nodes=nodes)
