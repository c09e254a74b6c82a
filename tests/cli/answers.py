"""Answers as the daemon writes them."""

from __future__ import annotations

from typing import Any


def lease(**said: object) -> dict[str, Any]:
    """A lease as the daemon writes it: 64-bit integers as strings, defaults left out."""
    return {
        "id": "l-7f3k",
        "state": "active",
        "owner_uid": "1000",
        "owner": "alice",
        "asks": "0.25",
        "class": "train",
        "isolation": "shared",
        "created_at": 1000.5,
        "since": 1000.5,
        "token": "t1",
        **said,
    }


GRANT = {
    "gpu_uuid": "GPU-aaaa",
    "gpu_name": "H100",
    "memory_bytes": str(20 * 1024**3),
    "compute_permille": 250,
}
QUEUED = lease(
    state="queued",
    waiting={
        "position": 3,
        "queue_length": 5,
        "reason": "resources",
        "text": "needs 24 GiB on one GPU; best is GPU 1 with 11 GiB free",
    },
)
RESERVED = lease(state="reserved", grants=[GRANT], token="t9")
