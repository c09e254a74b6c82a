"""How what a batch of steps writes is cut into transactions."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gpushared.jobs.job_records import Changes, cut
from gpushared.ports.job_store import MAX_OPERATIONS, MAX_TRANSACTION_BYTES

values = st.one_of(st.none(), st.integers(0, 200_000).map(bytes))
changes: st.SearchStrategy[Changes] = st.dictionaries(
    st.integers(0, 300).map(lambda number: f"k/{number}"), values, min_size=1, max_size=4
)
steps = st.lists(st.lists(changes, max_size=60), max_size=12)


@given(steps)
def test_all_is_written_in_order_and_each_transaction_is_one_that_a_store_takes(
    batch: list[list[Changes]],
) -> None:
    chunks = cut(batch)
    written: dict[str, bytes | None] = {}
    for chunk in chunks:
        transaction = chunk.transaction(epoch=1)
        transaction.check()
        written |= chunk.changes
        assert sum(map(len, transaction.puts.values())) <= MAX_TRANSACTION_BYTES
    expected: dict[str, bytes | None] = {}
    for step in batch:
        for one in step:
            expected |= one
    assert written == expected
    assert chunks[-1].concludes == len(batch)
    assert [chunk.concludes for chunk in chunks] == sorted(chunk.concludes for chunk in chunks)


@given(steps)
def test_what_a_chunk_concludes_is_written_with_it(batch: list[list[Changes]]) -> None:
    written: dict[str, bytes | None] = {}
    for chunk in cut(batch):
        written |= chunk.changes
        for step in batch[: chunk.concludes]:
            for one in step:
                assert one.keys() <= written.keys()


@given(st.lists(changes, min_size=1, max_size=12))
def test_a_step_that_fits_is_not_divided(step: list[Changes]) -> None:
    filler: list[Changes] = [{f"f/{number}": b"" for number in range(MAX_OPERATIONS)}]
    assert len(cut([filler, step])) <= 1 + len(cut([step]))
    assert len(cut([[], [], []])) == 1


def test_changes_of_one_record_are_one_operation() -> None:
    again: list[list[Changes]] = [[{"job/a": b"%d" % number}] for number in range(1000)]
    (chunk,) = cut(again)
    assert dict(chunk.changes) == {"job/a": b"999"}
