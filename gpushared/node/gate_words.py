"""Read the gate's answers to calls of the daemon itself."""

from __future__ import annotations

import json

from gpushared.domain.model.errors import TimedOut, Unavailable

UNAVAILABLE, GATEWAY_TIMEOUT = 503, 504


def message_of(status: int, body: bytes) -> str:
    """Return the message of a refusal by the engine or by the gate."""
    try:
        told = json.loads(body)
    except ValueError:
        told = None
    message = told.get("message") if isinstance(told, dict) else None
    text = str(message or f"the Docker engine answered {status}").strip()
    return text.encode(errors="replace").decode()  # JSON may have halves of surrogate pairs


def check_away(status: int, body: bytes) -> None:
    """Raise ``Unavailable`` or ``TimedOut`` for an answer that says that the engine is away."""
    if status == UNAVAILABLE:
        raise Unavailable(message_of(status, body))
    if status == GATEWAY_TIMEOUT:
        raise TimedOut(message_of(status, body))
