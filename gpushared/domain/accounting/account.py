"""Define the figures of accounting, as sums of whole numbers that add up in any order.

The unit of the sums is permille-milliseconds of a GPU, and MiB-milliseconds of memory, so sums over leases,
hours and nodes agree with the sums over their parts. Ratios and hours are derived at the end only.
``docs/explanation/accounting.md`` has the same definitions for people.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

PERMILLE_MS_PER_GPU_HOUR = 1000 * 3_600_000
MIB_MS_PER_GIB_HOUR = 1024 * 3_600_000


@dataclass(frozen=True, slots=True)
class Account:
    """Sum the held parts of GPUs, and their use.

    ``held_...`` counts all that was held, seen or not. A minute of a lease on a GPU is *active* if a kernel of
    the lease ran in it, and *idle* if none did; time without a sample is neither. ``used_permille_ms`` is the
    held compute times the part of the time in which kernels ran. ``memory_seen_mib_ms`` is the held memory in
    the time for which ``memory_used_mib_ms`` is known.
    """

    held_permille_ms: int = 0
    held_mib_ms: int = 0
    active_permille_ms: int = 0
    idle_permille_ms: int = 0
    used_permille_ms: int = 0
    too_big_permille_ms: int = 0
    memory_seen_mib_ms: int = 0
    memory_used_mib_ms: int = 0

    def __add__(self, other: Account) -> Account:
        return Account(*(getattr(self, name) + getattr(other, name) for name in _NAMES))

    @property
    def gpu_hours(self) -> float:
        """Return the hours of a whole GPU: share times hours, the shares as held."""
        return self.held_permille_ms / PERMILLE_MS_PER_GPU_HOUR

    @property
    def memory_gib_hours(self) -> float:
        return self.held_mib_ms / MIB_MS_PER_GIB_HOUR

    @property
    def idle_hours(self) -> float:
        """Return the GPU hours of minutes in which the lease held the GPU and ran no kernel."""
        return self.idle_permille_ms / PERMILLE_MS_PER_GPU_HOUR

    @property
    def too_big_hours(self) -> float:
        """Return the part of the active GPU hours whose memory the lease never used."""
        return self.too_big_permille_ms / PERMILLE_MS_PER_GPU_HOUR

    @property
    def well_used_hours(self) -> float:
        """Return the active GPU hours without what was too big."""
        return (self.active_permille_ms - self.too_big_permille_ms) / PERMILLE_MS_PER_GPU_HOUR

    @property
    def unseen_hours(self) -> float:
        """Return the held GPU hours for which there is no sample: nobody knows if they were used."""
        unseen = self.held_permille_ms - self.active_permille_ms - self.idle_permille_ms
        return max(0, unseen) / PERMILLE_MS_PER_GPU_HOUR

    @property
    def use_of_held_ratio(self) -> float | None:
        """Return the part of the held time in which kernels ran, weighted by GPU hours; None if unseen."""
        seen = self.active_permille_ms + self.idle_permille_ms
        return self.used_permille_ms / seen if seen else None

    @property
    def memory_of_held_ratio(self) -> float | None:
        """Return the part of the held memory that was used on average; None if unseen."""
        return self.memory_used_mib_ms / self.memory_seen_mib_ms if self.memory_seen_mib_ms else None


_NAMES = tuple(field.name for field in fields(Account))


def too_big_permille_ms(active_permille_ms: int, held_mib: float, peak_mib: int | None) -> int:
    """Return the part of the active time that is too big: held minus peak, of held. An unknown peak is none."""
    if peak_mib is None or held_mib <= 0:
        return 0
    return round(active_permille_ms * max(0.0, 1 - peak_mib / held_mib))


def percentile(sorted_values: list[float], ratio: float) -> float:
    """Return the value below which ``ratio`` of the values lie, by the nearest rank; values must not be empty."""
    rank = max(1, -(-len(sorted_values) * round(ratio * 1000) // 1000))
    return sorted_values[rank - 1]
