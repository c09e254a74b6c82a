"""The bytes that one end of a tunnel keeps: whatever is asked again is what was sent."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushared.pool.tunnels.kept_bytes import SMALL_BYTES, KeptBytes, SentBytes

STEPS = st.lists(
    st.tuples(
        st.sampled_from([0, 1, 7, SMALL_BYTES - 1, SMALL_BYTES, SMALL_BYTES + 1]),
        st.integers(0, 4 * SMALL_BYTES),
        st.integers(0, 4 * SMALL_BYTES),
        st.integers(1, 2 * SMALL_BYTES),
    ),
    max_size=8,
)


@given(steps=STEPS)
def test_bytes_are_as_if_all_that_came_were_one_string(steps: list[tuple[int, int, int, int]]) -> None:
    """Pieces come, some of them are acknowledged, and others are asked for again."""
    counted = KeptBytes()
    kept, whole, begin = SentBytes(counted), b"", 0
    for number, (size, acknowledged, wanted, most) in enumerate(steps):
        data = bytes([number]) * (size - 1) + b"!" if size else b""
        kept.append(data)
        whole += data
        kept.forget(acknowledged)
        begin = max(begin, min(acknowledged, len(whole)))
        place = max(begin, wanted)
        assert b"".join(kept.since(place, most)) == whole[place : place + most]
        assert (kept.begin, kept.end, len(kept), counted.bytes) == (
            begin,
            len(whole),
            len(whole) - begin,
            len(whole) - begin,
        )


def test_single_bytes_are_joined() -> None:
    """A terminal sends many before the first acknowledgement."""
    kept = SentBytes(KeptBytes())
    for _ in range(3 * SMALL_BYTES):
        kept.append(b"x")
    assert len(kept.since(0, len(kept))) == 3


@pytest.mark.parametrize("size", [SMALL_BYTES + 1, 8 * SMALL_BYTES])
def test_large_bytes_are_passed_on_without_a_copy(size: int) -> None:
    kept, data = SentBytes(KeptBytes()), bytes(size)
    kept.append(data)
    assert kept.since(0, size)[0] is data
