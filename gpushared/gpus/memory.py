"""Compute how much of a GPU's memory may be leased."""

from __future__ import annotations

from gpushared.domain.model.gpu import MIB

MPS_RESERVE_BYTES = 300 * MIB
"""An MPS server itself may hold so much on a GPU: an estimate on the safe side, not a measured figure. The
true figure depends on driver and GPU; a caller who measures it hands it to the adapter's constructor."""


def leasable_bytes(total_bytes: int, reserved_bytes: int, mps_reserve_bytes: int) -> int:
    """Return the total less the driver's and an MPS server's part, rounded down to whole MiB, at least 0."""
    return max(0, total_bytes - reserved_bytes - mps_reserve_bytes) // MIB * MIB
