"""A coordinator's loop follows the clock that people set."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from gpushared.domain.jobs.job import Queued
from tests.pool.pools import REQUEST, SECONDS, coordinator


@pytest.mark.parametrize("ahead", [3600.0, 3600.5])
async def test_a_job_is_placed_when_the_clock_is_set_beyond_its_begin_though_nothing_else_happens(
    ahead: float,
) -> None:
    async with coordinator() as pool:
        await pool.join()
        later = replace(REQUEST, begin_at=pool.clock.now() + 3600.0)
        job = await pool.submit(1, request=later)
        assert isinstance(job.state, Queued)
        pool.clock.set_day(ahead)
        async with asyncio.timeout(SECONDS):
            while pool.loop.state.ahead_seconds != ahead:
                await pool.loop.changed(SECONDS)
        await pool.until_placed(1)
