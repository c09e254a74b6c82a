"""The tables of fields: what is on none is never sent, at no depth, whoever asks.

It is dropped, and refused where the engine is newer than the tables and may read it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushared.domain.model.errors import PermissionRefused, RequestError
from gpushared.gate.api.field_kinds import OLDEST, Field, FieldKind, Table, Version, fit, respelled
from gpushared.gate.api.fields import (
    AUTH_TABLE,
    CONNECT_TABLE,
    CREATE_TABLE,
    EXEC_SPELLINGS,
    EXEC_START_TABLE,
    EXEC_TABLE,
    NETWORK_TABLE,
    NEWEST,
    UPDATE_TABLE,
    VOLUME_CREATE_TABLE,
)
from gpushared.gate.policy.admission import RULES

TABLES = {
    "create": CREATE_TABLE,
    "update": UPDATE_TABLE,
    "exec": EXEC_TABLE,
    "exec-start": EXEC_START_TABLE,
    "network": NETWORK_TABLE,
    "connect": CONNECT_TABLE,
    "volume": VOLUME_CREATE_TABLE,
    "auth": AUTH_TABLE,
}


def places(table: Table, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Field | None]]:
    """Every object in a body by the fields that lead to it."""
    yield path, None
    for name, field in table.items():
        yield (*path, name), field
        if field.table is not None:
            yield from (
                (inner, one) for inner, one in places(field.table, (*path, name)) if inner != (*path, name)
            )


def wrapped(table: Table, path: tuple[str, ...], value: Any) -> Any:
    """A body with ``value`` at the end of the path, in lists and objects by name as the kinds have it."""
    if not path:
        return value
    field = table[path[0]]
    inner = wrapped(field.table, path[1:], value) if field.table is not None and path[1:] else value
    match field.kind if field.table is not None else None:
        case FieldKind.RECORDS:
            inner = [inner]
        case FieldKind.RECORD_BY_NAME:
            inner = {"x": inner}
        case FieldKind.RECORDS_BY_NAME:
            inner = {"x": [inner]}
    return {path[0]: inner}


OBJECTS = [
    pytest.param(table, path, id=".".join((name, *path)))
    for name, table in TABLES.items()
    for path, field in places(table)
    if field is None or field.table is not None
]
VALUES = [
    pytest.param(table, path, field, id=".".join((name, *path)))
    for name, table in TABLES.items()
    for path, field in places(table)
    if field is not None and field.table is None
]
WRONG: dict[FieldKind, list[Any]] = {
    FieldKind.FLAG: [0, 1, "true", []],
    FieldKind.WHOLE: ["1", True, 1.0, [], 2**64],
    FieldKind.TEXT: [1, True, [], {}],
    FieldKind.TEXTS: ["x", {}, [1], [None], 1],
    FieldKind.WORDS: [{}, [1], 1],
    FieldKind.TEXT_LISTS: ["x", ["x"], [[1]]],
    FieldKind.PAIRS: ["x", [], {"x": 1}],
    FieldKind.NAMES: ["x", [], {"x": 1}, {"x": "y"}],
    FieldKind.SIZE: [[1], [1, 2, 3], ["1", "2"], [-1, 2], "x"],
}


NOTHING_OF_OURS: list[Any] = ["new", 0, False, {"Privileged": True}, [{"PathOnHost": "/dev/kmsg"}]]


@pytest.mark.parametrize(("table", "path"), OBJECTS)
def test_a_field_that_nobody_knows_is_dropped_with_all_that_it_holds(
    table: Table, path: tuple[str, ...]
) -> None:
    for value in NOTHING_OF_OURS:
        dropped: list[str] = []
        fitted = fit(wrapped(table, path, {"Brand": value}), table, dropped=dropped)
        assert fitted == wrapped(table, path, {})
        assert [name.rpartition(".")[2] for name in dropped] == ["Brand"]


@pytest.mark.parametrize(("table", "path"), OBJECTS)
def test_a_field_that_a_newer_engine_may_know_is_refused(table: Table, path: tuple[str, ...]) -> None:
    with pytest.raises(PermissionRefused, match="Brand is no field that gpushared knows"):
        fit(wrapped(table, path, {"Brand": "new"}), table)


ALIKE = {"s": "sSſ", "k": "kKK"}  # noqa: RUF001 - the letters that fold to s and k are the point


@given(
    st.sampled_from([(table, path) for table in TABLES.values() for path, field in places(table) if field]),
    st.data(),
)
def test_what_the_engine_would_take_for_a_field_is_never_dropped(
    place: tuple[Table, tuple[str, ...]], data: st.DataObject
) -> None:
    """It compares names without regard to case, in all of Unicode."""
    table, path = place
    name = path[-1]
    letters = [data.draw(st.sampled_from(ALIKE.get(c.lower(), c.lower() + c.upper()))) for c in name]
    spelled = "".join(letters)
    if spelled == name:
        return
    with pytest.raises(RequestError, match="is not a field"):
        fit(wrapped(table, path[:-1], {spelled: None}), table, dropped=[])


def test_names_that_are_dropped_are_short_and_printable() -> None:
    dropped: list[str] = []
    fit({"a" * 5000: 1, "new\nline": 1}, CREATE_TABLE, dropped=dropped)
    assert max(map(len, dropped)) < 300
    assert all(name.isprintable() for name in dropped)


def test_a_field_in_the_spelling_of_a_client_is_the_field() -> None:
    """The spelling is aiodocker's; of two the engine takes the last."""
    assert respelled({"Cmd": [], "detachKeys": ""}, EXEC_SPELLINGS) == {"Cmd": [], "DetachKeys": ""}
    for body in ({"detachKeys": "", "DetachKeys": "a"}, {"DetachKeys": "a", "detachKeys": ""}):
        with pytest.raises(RequestError, match="stands there twice"):
            respelled(body, EXEC_SPELLINGS)


@pytest.mark.parametrize(("table", "path"), OBJECTS)
def test_a_null_of_a_field_that_nobody_knows_is_left_out(table: Table, path: tuple[str, ...]) -> None:
    """Old clients send nulls of fields that engines have long dropped."""
    assert fit(wrapped(table, path, {"Brand": None}), table) == wrapped(table, path, {})


@pytest.mark.parametrize(("table", "path", "field"), VALUES)
def test_a_field_in_other_letters_is_refused(table: Table, path: tuple[str, ...], field: Field) -> None:
    assert field.table is None
    spelled = path[-1].swapcase()
    with pytest.raises(RequestError, match=f"it is spelled .*{path[-1]}|is not a field"):
        fit(wrapped(table, path[:-1], {spelled: None}), table)


@pytest.mark.parametrize(("table", "path", "field"), VALUES)
def test_a_value_of_another_kind_is_refused(table: Table, path: tuple[str, ...], field: Field) -> None:
    """The engine would refuse it, or make something else of it."""
    for value in WRONG.get(field.kind, []):
        with pytest.raises(RequestError, match=f"{path[-1]} is not"):
            fit(wrapped(table, path, value), table)


@pytest.mark.parametrize(("table", "path", "field"), VALUES)
def test_null_is_always_allowed(table: Table, path: tuple[str, ...], field: Field) -> None:
    assert field.table is None
    body = wrapped(table, path, None)
    assert fit(body, table) == body


VERSIONS: list[tuple[str, Version, Version | None]] = [
    ("HostConfig.DeviceRequests", (1, 40), None),
    ("HostConfig.CgroupnsMode", (1, 41), None),
    ("HostConfig.Annotations", (1, 43), None),
    ("HostConfig.Umask", (1, 56), None),
    ("HostConfig.DiskQuota", OLDEST, (1, 39)),
    ("HostConfig.Capabilities", (1, 40), (1, 40)),
    ("HostConfig.MaskedPaths", (1, 38), None),
    ("HostConfig.ReadonlyPaths", (1, 38), None),
    ("HostConfig.DeviceCgroupRules", (1, 28), None),
    ("HostConfig.KernelMemory", OLDEST, (1, 41)),
    ("HostConfig.KernelMemoryTCP", (1, 40), (1, 51)),
    ("HostConfig.Mounts.ImageOptions", (1, 48), None),
    ("HostConfig.Mounts.BindOptions.CreateMountpoint", (1, 42), None),
    ("HostConfig.Mounts.VolumeOptions.Subpath", (1, 45), None),
    ("HostConfig.Mounts.TmpfsOptions.Options", (1, 46), None),
    ("HostConfig.Mounts.Consistency", (1, 28), None),
    ("HostConfig.Mounts.BindOptions.NonRecursive", (1, 40), None),
    ("HostConfig.Mounts.BindOptions.ReadOnlyForceRecursive", (1, 44), None),
    ("NetworkingConfig.EndpointsConfig.DriverOpts", (1, 32), None),
    ("NetworkingConfig.EndpointsConfig.DNSNames", (1, 44), None),
    ("NetworkingConfig.EndpointsConfig.GwPriority", (1, 48), None),
    ("Healthcheck.StartInterval", (1, 44), None),
    ("MacAddress", OLDEST, (1, 51)),
]


@pytest.mark.parametrize(("name", "since", "until"), VERSIONS)
def test_a_field_is_there_in_the_versions_that_describe_it_and_in_no_other(
    name: str, since: Version, until: Version | None
) -> None:
    path = tuple(name.split("."))
    with_it = wrapped(CREATE_TABLE, path, None)
    without = wrapped(CREATE_TABLE, path[:-1], {})
    for minor in range(OLDEST[1], NEWEST[1] + 2):
        left = fit(with_it, CREATE_TABLE, (1, minor))
        is_there = since[1] <= minor <= (until or (1, 99))[1]
        # What leads there may be younger than the oldest version itself.
        parents = fit(without, CREATE_TABLE, (1, minor))
        assert left == (with_it if is_there else parents), minor


def test_what_an_object_by_name_holds_beside_its_name_is_left_out() -> None:
    """The engine reads nothing there."""
    assert fit({"Volumes": {"/x": {"anything": 1}}}, CREATE_TABLE) == {"Volumes": {"/x": {}}}


def test_each_rule_judges_a_field() -> None:
    judged = (field for table in TABLES.values() for _, field in places(table) if field is not None)
    named = {field.rule.partition("; ")[0].partition(" ")[0] for field in judged if field.rule}
    assert named == RULES.keys() | {"unset", "one-of", "at-most", "nested"}
