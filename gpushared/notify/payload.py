"""Write a notification as JSON for programs."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from hashlib import sha256
from typing import Any

from gpushared.domain.model.notification import Notification

VERSION = 1
ID_LENGTH = 32
FOR_OWNER_ONLY = ("container", "image")


@dataclass(frozen=True, slots=True)
class Origin:
    """Say where notifications come from. ``day`` returns a moment in the time of day."""

    name: str
    simulated: Callable[[], bool]
    day: Callable[[float], float]


def payload_of(event: Notification, origin: Origin) -> dict[str, Any]:
    """Return the fields of a notification for its owner. The same event always gets the same id."""
    identity = sha256(f"{origin.name}\n{event.key}".encode()).hexdigest()[:ID_LENGTH]
    ends_at = None if event.ends_at is None else round(origin.day(event.ends_at), 3)
    return {
        "version": VERSION,
        "id": identity,
        "kind": str(event.kind),
        "at": round(origin.day(event.at), 3),
        "text": event.text,
        "lines": list(event.lines),
        "from": origin.name,
        "simulated": origin.simulated(),
        "node": event.node or None,
        "lease": event.lease or None,
        "job": event.job or None,
        "owner": event.owner or None,
        "project": event.project or None,
        "class": event.lease_class or None,
        "gpus": [asdict(part) for part in event.gpus],
        "ends_at": ends_at,
        "outcome": event.outcome or None,
        "exit_code": event.exit_code,
        "container": event.container or None,
        "image": event.image or None,
    }


def for_receiver(body: str, *, is_owner: bool) -> dict[str, Any]:
    """Return the fields of a stored notification; the names of container and image are for its owner."""
    fields: dict[str, Any] = json.loads(body)
    return fields if is_owner else fields | dict.fromkeys(FOR_OWNER_ONLY)


def to_text(fields: dict[str, Any]) -> str:
    return json.dumps(fields, separators=(",", ":"), ensure_ascii=True)
