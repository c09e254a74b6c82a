"""What coordinators answer while things fail: who says that it leads, and since when."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Final

from gpushared.domain.model.errors import GpushareError
from tests.chaos.ha.machines import HaMachines
from tests.chaos.records import Violation, now

ASK_SECONDS: Final = 0.5
OVERLAP_SECONDS: Final = 1.0
"""A leader that was frozen may say once more that it leads, before it has looked at its clock."""


@dataclass(frozen=True, slots=True)
class Claim:
    """An answer that says that this coordinator leads; times of the question and of the answer."""

    host: str
    epoch: int
    asked: float
    told: float


class Watch:
    """Ask all coordinators again and again, until this is cancelled."""

    def __init__(self, machines: HaMachines) -> None:
        self._machines = machines
        self.claims: list[Claim] = []

    async def run(self) -> None:
        await asyncio.gather(*(self._ask(host) for host in self._machines.coordinators))

    async def _ask(self, host: str) -> None:
        while True:
            asked = now()
            try:
                status = await asyncio.to_thread(self._machines.ask, host, "PoolAdmin/Status")
            except GpushareError:
                status = {}
            # Before there were standbys, whoever answered led.
            if status and (status.get("role") or "leader") == "leader":
                self.claims.append(Claim(host, int(status.get("epoch", 0)), asked, now()))
            await asyncio.sleep(ASK_SECONDS)

    def led_by_another(self, host: str, epoch: int) -> float | None:
        """When another one than this first said that it leads, with a later epoch.

        A leader that does not know if it has written something leads on with a new epoch.
        """
        later = [claim for claim in self.claims if claim.epoch > epoch and claim.host != host]
        return min((claim.told for claim in later), default=None)

    def newest_epoch(self) -> int:
        return max((claim.epoch for claim in self.claims), default=0)


def false_claims(claims: list[Claim]) -> list[Violation]:
    """Find answers that say "I lead" although another one led already with a later epoch."""
    first: dict[int, Claim] = {}
    for claim in sorted(claims, key=lambda one: one.told):
        first.setdefault(claim.epoch, claim)
    found: dict[tuple[str, int], Violation] = {}
    for claim in claims:
        later = [one for one in first.values() if one.epoch > claim.epoch and one.host != claim.host]
        newer = min(later, key=lambda one: one.told, default=None)
        if newer is not None and claim.asked > newer.told + OVERLAP_SECONDS:
            what = (
                f"{claim.host} said at {claim.told:.2f} that it leads with epoch {claim.epoch}, and "
                f"{newer.host} led with {newer.epoch} since {newer.told:.2f}"
            )
            found.setdefault((claim.host, claim.epoch), Violation("two leaders", what))
    return list(found.values())
