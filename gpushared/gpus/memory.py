"""How much of a GPU's memory may be leased."""

from __future__ import annotations

from gpushared.domain.gpu import MIB

MPS_RESERVE_BYTES = 300 * MIB
"""What an MPS server may hold on a GPU itself: an estimate on the safe side, not a measured figure.

It depends on driver and GPU; whoever measures it hands the figure to the adapter's constructor.
"""


def leasable_bytes(total_bytes: int, reserved_bytes: int, mps_reserve_bytes: int) -> int:
    """The total less what the driver and an MPS server hold, rounded down to whole MiB, at least 0."""
    return max(0, total_bytes - reserved_bytes - mps_reserve_bytes) // MIB * MIB
