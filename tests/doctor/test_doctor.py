"""Looks are shared: many callers do not keep the machine busy, and none is forgotten."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import pytest

from gpushared.doctor.checks import FRESH_SECONDS, Doctor
from gpushared.doctor.machine_facts import DoctorFacts
from gpushared.domain.model.checkup import CheckOutcome, Status
from tests.doctor.healthy import HEALTHY


def is_well(results: Iterable[CheckOutcome]) -> bool:
    return all(result.finding.status is not Status.FAILED for result in results)


class CountingProbe:
    """Looks at the healthy machine when it is allowed to."""

    def __init__(self) -> None:
        self.looks = 0
        self.allowed = asyncio.Event()
        self.error: Exception | None = None

    async def look(self) -> DoctorFacts:
        self.looks += 1
        await self.allowed.wait()
        if self.error is not None:
            raise self.error
        return HEALTHY


async def test_callers_at_once_share_one_look() -> None:
    probe = CountingProbe()
    doctor = Doctor(probe)
    callers = [asyncio.create_task(doctor.examine()) for _ in range(20)]
    await asyncio.sleep(0)
    probe.allowed.set()
    assert all(is_well(results) for results in await asyncio.gather(*callers))
    await doctor.examine()
    assert probe.looks == 1


async def test_a_caller_who_leaves_does_not_take_the_look_away_from_others() -> None:
    probe = CountingProbe()
    doctor = Doctor(probe)
    leaving, staying = (asyncio.create_task(doctor.examine()) for _ in range(2))
    await asyncio.sleep(0)
    leaving.cancel()
    probe.allowed.set()
    assert is_well(await staying)
    assert probe.looks == 1


async def test_a_look_that_is_no_longer_fresh_is_taken_again(monkeypatch: pytest.MonkeyPatch) -> None:
    probe = CountingProbe()
    probe.allowed.set()
    doctor = Doctor(probe)
    await doctor.examine()
    doctor._done_at -= 2 * FRESH_SECONDS
    await doctor.examine()
    assert probe.looks == 2


async def test_a_look_that_failed_is_not_kept() -> None:
    probe = CountingProbe()
    probe.allowed.set()
    probe.error = RuntimeError("a bug")
    doctor = Doctor(probe)
    with pytest.raises(RuntimeError):
        await doctor.examine()
    probe.error = None
    assert is_well(await doctor.examine())
