"""The light named tuples are those of ``typing``."""

from __future__ import annotations

import pickle
import typing

import pytest

from gpushared import light


class Light(light.NamedTuple):
    """A record."""

    name: str
    size: int = 2

    @property
    def twice(self) -> int:
        return 2 * self.size


class Typed(typing.NamedTuple):
    """A record."""

    name: str
    size: int = 2

    @property
    def twice(self) -> int:
        return 2 * self.size


def test_a_light_record_behaves_as_a_named_tuple_of_typing() -> None:
    light_one, typed = Light("a", size=3), Typed("a", size=3)
    assert tuple(light_one) == tuple(typed) == ("a", 3)
    assert repr(light_one).replace("Light", "Typed") == repr(typed)
    assert (light_one.twice, light_one._replace(size=1), light_one._asdict()) == (
        6,
        ("a", 1),
        typed._asdict(),
    )
    assert (Light("b").size, Light.__doc__, Light.__module__) == (2, Typed.__doc__, Typed.__module__)
    assert pickle.loads(pickle.dumps(light_one)) == light_one
    with pytest.raises(TypeError):
        Light()  # type: ignore[call-arg]  # that is the point
