"""Write leases as JSON, and read them back."""

from __future__ import annotations

from gpushared.domain.model.lease import Lease
from gpushared.records import from_json, to_json


def lease_to_json(lease: Lease) -> str:
    """Return the lease without its story, as ASCII. Raises RecordError for a time that is no number.

    The story has a table of its own: a lease that changes state must not rewrite all of it.
    """
    return to_json(Lease, lease)


def lease_from_json(text: str) -> Lease:
    """Return the lease with an empty story. Raises RecordError."""
    return from_json(Lease, text)
