"""The mapping and the sequence that are never changed, beside a dictionary and a list that are."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gpushared.domain.model import persistent_sorted_list
from gpushared.domain.model.persistent_map import PersistentMap
from gpushared.domain.model.persistent_sorted_list import PersistentSortedList

KEYS = st.integers(0, 400)
CHANGES = st.lists(st.tuples(st.booleans(), KEYS, st.integers()), max_size=120)


@given(st.dictionaries(KEYS, st.integers()), CHANGES)
def test_a_persistent_map_is_a_dictionary_whose_earlier_selves_stay(
    first: dict[int, int], changes: list[tuple[bool, int, int]]
) -> None:
    """Whatever is put in or taken out later."""
    mapping, model = PersistentMap(first), dict(first)
    before: list[tuple[PersistentMap[int, int], dict[int, int]]] = []
    for puts, key, value in changes:
        before.append((mapping, dict(model)))
        if puts:
            mapping, model[key] = mapping.put(key, value), value
        else:
            mapping = mapping.drop(key)
            model.pop(key, None)
    for one, its_model in [*before, (mapping, model)]:
        assert dict(one) == its_model
        assert len(one) == len(its_model)
        assert all((key in one) == (key in its_model) for key in range(0, 400, 7))


@given(st.sets(st.tuples(KEYS, KEYS)), st.lists(st.tuples(st.booleans(), KEYS, KEYS), max_size=120))
def test_a_persistent_sorted_list_is_a_sorted_list_whose_earlier_selves_stay(
    first: set[tuple[int, int]], changes: list[tuple[bool, int, int]]
) -> None:
    """With chunks so small that they are split and emptied."""
    usual, persistent_sorted_list.CHUNK = persistent_sorted_list.CHUNK, 4
    try:
        waiting, model = PersistentSortedList(first), set(first)
        before = []
        for puts, one, other in changes:
            before.append((waiting, sorted(model)))
            if puts:
                waiting = waiting.put((one, other))
                model.add((one, other))
            else:
                waiting = waiting.drop((one, other))
                model.discard((one, other))
        for found, its_model in [*before, (waiting, sorted(model))]:
            assert list(found) == its_model
            assert found.first() == (its_model[0] if its_model else None)
            assert (len(found), bool(found)) == (len(its_model), bool(its_model))
            assert all(item in found for item in its_model)
            assert all(
                list(found.since((key,))) == [one for one in its_model if one >= (key,)]
                for key in range(0, 401, 100)
            )
    finally:
        persistent_sorted_list.CHUNK = usual
