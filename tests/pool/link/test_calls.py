"""Calls of a node's users to the coordinator, as the coordinator understands them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import pytest

from gpushared.api.v1 import jobs_pb2
from gpushared.domain.model.errors import LimitReached, PermissionRefused, Unavailable
from gpushared.domain.model.request import Caller
from gpushared.pool.member import coordinator_calls as module
from gpushared.pool.member.coordinator_calls import CoordinatorCalls
from gpushared.pool.member.dial import Dial
from gpushared.pool.member.enrolment import Enrolment
from tests.pool.trust.coordinator import Coordinator, coordinator

ADA = Caller(1000, 1000, "ada")
NEVER = 1000.0


@pytest.fixture
async def pool(tmp_path: Path) -> AsyncIterator[Coordinator]:
    async with coordinator(tmp_path / "pool") as serving:
        yield serving


async def calls_of(pool: Coordinator, folder: Path, realm: str = "n1") -> tuple[CoordinatorCalls, Dial]:
    enrolment = Enrolment(folder, time.time)
    await enrolment.join(pool.address, await pool.token("n1"), "n1")
    dial = Dial(
        enrolment.addresses, enrolment.credentials, enrolment.server_name(), lambda: enrolment.version
    )
    calls = CoordinatorCalls(
        dial.shared_channel,
        enrolment.asserter,
        lambda caller: f"{caller.name}@{realm}",
        lambda _: (),
        time.time,
    )
    return calls, dial


async def test_a_call_is_made_in_the_name_of_the_user_who_asks(pool: Coordinator, tmp_path: Path) -> None:
    calls, dial = await calls_of(pool, tmp_path / "n1")
    answer = await calls.call("Cancel", jobs_pb2.CancelJobRequest(job_id="0123456789"), ADA, 20.0)
    assert answer.owner == "ada@n1 as ada@n1"
    await dial.close()


async def test_what_the_coordinator_refuses_is_refused_here(pool: Coordinator, tmp_path: Path) -> None:
    """Here that a node speaks for users who are not its own."""
    calls, dial = await calls_of(pool, tmp_path / "n1", realm="elsewhere")
    with pytest.raises(PermissionRefused):
        await calls.call("Cancel", jobs_pb2.CancelJobRequest(job_id="0123456789"), ADA, 20.0)
    await dial.close()


async def test_a_coordinator_that_is_away_is_said_to_be(pool: Coordinator, tmp_path: Path) -> None:
    calls, dial = await calls_of(pool, tmp_path / "n1")
    nobody = Dial(lambda: ("127.0.0.1:1",), dial._credentials, "x")
    calls._channel = nobody.shared_channel
    with pytest.raises(Unavailable, match="the pool's coordinator does not answer"):
        await calls.call("Get", jobs_pb2.JobRef(job_id="0123456789"), ADA, 20.0)
    await nobody.close()
    await dial.close()


async def test_calls_to_a_coordinator_that_fell_silent_are_given_up(
    pool: Coordinator, tmp_path: Path
) -> None:
    """Else each would wait for its own time to be over; calls that come later are made as before."""
    calls, dial = await calls_of(pool, tmp_path / "n1")
    watched = calls.stream("Watch", jobs_pb2.JobRef(job_id="j"), ADA)
    assert (await anext(watched)).owner == "ada@n1"
    waits = asyncio.create_task(calls.call("Wait", jobs_pb2.WaitJobRequest(job_id="j"), ADA, NEVER))
    await pool.jobs.waits.wait()
    calls.give_up()
    with pytest.raises(Unavailable, match="it fell silent"):
        await waits
    with pytest.raises(Unavailable, match="it fell silent"):
        await anext(watched)
    answer = await calls.call("Cancel", jobs_pb2.CancelJobRequest(job_id="j"), ADA, 20.0)
    assert answer.owner == "ada@n1 as ada@n1"
    await dial.close()


async def test_a_call_that_its_caller_gives_up_ends_as_any_task(pool: Coordinator, tmp_path: Path) -> None:
    calls, dial = await calls_of(pool, tmp_path / "n1")
    waits = asyncio.create_task(calls.call("Wait", jobs_pb2.WaitJobRequest(job_id="j"), ADA, NEVER))
    await pool.jobs.waits.wait()
    waits.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waits
    assert calls._under_way == set()
    await dial.close()


async def test_calls_share_a_connection_until_the_certificate_is_renewed(
    pool: Coordinator, tmp_path: Path
) -> None:
    """Then the next call has another, and those that were under way end by themselves."""
    enrolment = Enrolment(tmp_path / "n1", time.time)
    await enrolment.join(pool.address, await pool.token("n1"), "n1")
    dial = Dial(
        enrolment.addresses, enrolment.credentials, enrolment.server_name(), lambda: enrolment.version
    )
    first = await dial.shared_channel()
    assert await dial.shared_channel() is first
    await enrolment.renew()
    assert await dial.shared_channel() is not first
    await dial.close()


async def test_calls_that_begin_together_share_a_connection_too(pool: Coordinator, tmp_path: Path) -> None:
    """Or all but the last would be left open, with nobody to close them."""
    _, dial = await calls_of(pool, tmp_path / "n1")
    channels = await asyncio.gather(*(dial.shared_channel() for _ in range(8)))
    assert len({id(channel) for channel in channels}) == 1
    await dial.close()


async def test_one_user_leaves_the_connection_to_the_others(
    pool: Coordinator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever is still waited for counts, of each user alone; afterwards there is room again."""
    monkeypatch.setattr(module, "MAX_CALLS_PER_USER", 1)
    calls, dial = await calls_of(pool, tmp_path / "n1")
    ask = partial(calls.call, "Cancel", jobs_pb2.CancelJobRequest(job_id="0123456789"))
    first = asyncio.create_task(ask(ADA, 20.0))
    await asyncio.sleep(0)
    with pytest.raises(LimitReached, match="ada waits for 1 answers"):
        await ask(ADA, 20.0)
    assert (await ask(Caller(1001, 1001, "bob"), 20.0)).owner == "bob@n1 as bob@n1"
    await first
    await ask(ADA, 20.0)
    await dial.close()
