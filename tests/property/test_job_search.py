"""Jobs found by what people call them, as a plain walk over all jobs would find them."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushared.domain.jobs.coordinator import restore
from gpushared.domain.jobs.coordinator_rules import PoolRules
from gpushared.domain.jobs.coordinator_state import PoolDraft, PoolState
from gpushared.domain.jobs.job import (
    Ended,
    Job,
    JobSpec,
    Owner,
    Queued,
    Succeeded,
)
from gpushared.domain.model.errors import NotFound, RequestError
from gpushared.domain.model.lease import JobId
from gpushared.domain.model.persistent_map import PersistentMap
from gpushared.domain.model.persistent_sorted_list import PersistentSortedList
from gpushared.domain.model.request import Request
from gpushared.jobs import job_search
from gpushared.jobs.job_search import Archive
from gpushared.testing import MemoryStore

ADA, BOB = Owner("ada@lab", "ada"), Owner("bob@lab", "bob")
EVE = Owner("eve@lab", "eve", admin=True)
IDS = [JobId(text) for text in ("aaab", "aaac", "aaad_1", "aaad_2", "aaae", "bbbb_1", "bbbb_2", "x")]
NAMES = ["", "", "a", "b", "job-aaab"]
WORDS = [*IDS, "a", "b", "c", "job-aaab", "job-aaac", "job-x", "job-", "aaa", "aaad", "bbbb", "bbbb_", "ccc"]
OVER = Ended(1.0, Succeeded())
CHANGES = st.lists(
    st.tuples(st.sampled_from(IDS), st.sampled_from([ADA, BOB]), st.sampled_from(NAMES), st.booleans()),
    max_size=20,
)


def job_of(number: int, name: JobId, owner: Owner, called: str, *, over: bool) -> Job:
    spec = JobSpec(Request(), owner, image="busybox", name=called)
    state = replace(OVER, at=float(number)) if over else Queued(0.0)
    return Job(name, number, spec, 0.0, state, "")


def changed(state: PoolState, changes: list[tuple[JobId, Owner, str, bool]]) -> PoolState:
    """Jobs that come, are somebody else's or called otherwise after all, and end."""
    for number, (name, owner, called, over) in enumerate(changes):
        if name in state.ended:
            continue
        draft = PoolDraft(state, float(number))
        draft.put(job_of(number, name, owner, called, over=over))
        state = draft.finish().state
    return state


def walked(state: PoolState, word: str, owner: Owner) -> JobId | None:
    """What the word means; None for several. Raises NotFound."""
    jobs = {**state.jobs, **state.ended}
    mine = [job for job in jobs.values() if owner.may_see_jobs_of(job.spec.owner)]
    if word in jobs:
        found = [job for job in mine if job.id == word]
    elif found := [job for job in mine if word == (job.spec.name or f"job-{job.id}")]:
        going = [job for job in found if not isinstance(job.state, Ended)]
        found = going or [max(found, key=lambda job: job.sequence)]
    elif len(word) >= job_search.SHORTEST_BEGINNING and word.isalnum():
        found = [job for job in mine if job.id.startswith(word)]
    if not found:
        raise NotFound("none")
    return found[0].id if len(found) == 1 else None


def looked_up(state: PoolState, word: str, owner: Owner) -> JobId | None:
    try:
        return asyncio.run(job_search.find(state, Archive(MemoryStore()), word, owner)).id
    except RequestError as error:
        if isinstance(error, NotFound):
            raise
        return None


@given(CHANGES, st.sampled_from([ADA, BOB, EVE]), st.integers(1, 9))
def test_what_a_word_means_is_what_a_walk_over_all_jobs_would_find(
    changes: list[tuple[JobId, Owner, str, bool]], owner: Owner, kept: int
) -> None:
    state = changed(restore(PoolRules(ended_kept=kept), epoch=1, now=0.0), changes)
    for word in WORDS:
        try:
            expected = walked(state, word, owner)
        except NotFound:
            with pytest.raises(NotFound):
                looked_up(state, word, owner)
        else:
            assert looked_up(state, word, owner) == expected
    again = restore(state.rules, epoch=2, jobs=[*state.jobs.values(), *state.ended.values()], now=0.0)
    assert (state.ids, state.names) == (again.ids, again.names)


@pytest.mark.parametrize("owner", [ADA, EVE])
@pytest.mark.parametrize(
    "word", ["0000000000", "zzz", "nothing", "job-0000000000", "aaa", "run", "aaaaaaaaaa"]
)
def test_nothing_is_sought_among_all_jobs(monkeypatch: pytest.MonkeyPatch, owner: Owner, word: str) -> None:
    """Whether it is there or not: of three thousand jobs a few are looked at."""
    jobs = [
        job_of(
            number, JobId(f"aaaaaaaaaa_{number}"), BOB if number % 3 else ADA, "run", over=number % 100 != 0
        )
        for number in range(3000)
    ]
    state = restore(PoolRules(), epoch=1, now=0.0, jobs=jobs)
    looked_at: list[object] = []
    since = PersistentSortedList.since

    def counted(line: PersistentSortedList[tuple[object]], start: tuple[object]) -> object:
        for item in since(line, start):
            looked_at.append(item)
            yield item

    monkeypatch.setattr(PersistentSortedList, "since", counted)
    monkeypatch.setattr(PersistentMap, "__iter__", lambda _: pytest.fail("all of it is walked through"))
    try:
        looked_up(state, word, owner)
    except NotFound:
        assert word not in {"aaa", "run", "aaaaaaaaaa"}
    assert len(looked_at) < 50
