"""Specs of lease devices as files."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from gpushared.domain.model.errors import EngineUnavailable, RequestError
from gpushared.domain.model.lease import ComputeCap, MemoryWall, Walls
from gpushared.engine.cdi import LeaseSpecs, qualified_name
from gpushared.ports import EditMount, Edits, Hook

EDITS = Edits(
    gpus=(),
    walls=Walls(MemoryWall.NONE, ComputeCap.NONE),
    env={"A": "1", "B": 'two words, "quoted"\nand a line'},
    env_defaults={"XLA_FLAGS": "x"},
    mounts=(EditMount("/run/x", "/x"), EditMount("/run/y", "/y", read_only=False)),
    devices=("/dev/null",),
)


def test_a_spec_holds_the_edits_of_one_lease(tmp_path: Path) -> None:
    """In the words of the format, in a file that names vendor, class and device."""
    LeaseSpecs(tmp_path).write("l-7f3k", EDITS)
    spec = json.loads((tmp_path / "gpushare.io-lease-l-7f3k.json").read_text())
    assert spec["kind"] == "gpushare.io/lease"
    [device] = spec["devices"]
    assert device["name"] == "l-7f3k"
    assert device["containerEdits"] == {
        "env": ["A=1", 'B=two words, "quoted"\nand a line'],
        "mounts": [
            {"hostPath": "/run/x", "containerPath": "/x", "options": ["ro", "nosuid", "nodev", "bind"]},
            {"hostPath": "/run/y", "containerPath": "/y", "options": ["rw", "nosuid", "nodev", "bind"]},
        ],
        "deviceNodes": [{"path": "/dev/null", "permissions": "rw"}],
    }
    assert qualified_name("l-7f3k") == "gpushare.io/lease=l-7f3k"


def test_a_hook_runs_before_the_program_does(tmp_path: Path) -> None:
    """As the format names it: the one that runs when the container's cgroup exists; with a time limit."""
    hook = Hook("/bin/sh", ("sh", "-c", "true"), ("A=1",), timeout_seconds=7)
    LeaseSpecs(tmp_path).write("l-1", replace(EDITS, hooks=(hook,)))
    spec = json.loads((tmp_path / "gpushare.io-lease-l-1.json").read_text())
    assert spec["devices"][0]["containerEdits"]["hooks"] == [
        {
            "hookName": "createRuntime",
            "path": "/bin/sh",
            "args": ["sh", "-c", "true"],
            "env": ["A=1"],
            "timeout": 7,
        }
    ]


def test_writing_again_replaces_and_leaves_nothing_else(tmp_path: Path) -> None:
    """The rename leaves no temporary file, which would pile up over the leases of a year."""
    specs = LeaseSpecs(tmp_path)
    specs.write("l-1", EDITS)
    specs.write("l-1", replace(EDITS, env={"A": "2"}))
    [file] = tmp_path.iterdir()
    assert '"A=2"' in file.read_text()


def test_the_directory_is_made_when_it_is_needed(tmp_path: Path) -> None:
    """After a boot there is no /var/run/cdi."""
    LeaseSpecs(tmp_path / "run" / "cdi").write("l-1", EDITS)
    assert LeaseSpecs(tmp_path / "run" / "cdi").names() == ("l-1",)


def test_a_directory_that_does_not_exist_holds_no_specs(tmp_path: Path) -> None:
    """Neither listing nor removing needs it."""
    specs = LeaseSpecs(tmp_path / "none")
    assert specs.names() == ()
    specs.remove("l-1")


def test_specs_move_with_their_content(tmp_path: Path) -> None:
    """They may have been written before the engine could say where it reads them."""
    old = LeaseSpecs(tmp_path / "a")
    old.write("l-1", EDITS)
    text = (tmp_path / "a" / "gpushare.io-lease-l-1.json").read_text()
    new = old.in_directory(tmp_path / "b")
    assert (old.names(), new.names()) == ((), ("l-1",))
    assert (tmp_path / "b" / "gpushare.io-lease-l-1.json").read_text() == text
    assert new.in_directory(tmp_path / "b").names() == ("l-1",)


@pytest.mark.parametrize(
    "name", ["", "../../etc/passwd", "a/b", "-a", "a-", ".a", "a b", "a=b", "a,b", "l-ü", "a\n", "a" * 129]
)
def test_a_name_that_is_no_device_name_touches_no_file(tmp_path: Path, name: str) -> None:
    """Device names come back from labels, which anybody with access to the engine can write."""
    specs = LeaseSpecs(tmp_path)
    with pytest.raises(RequestError, match="cannot name a device"):
        specs.write(name, EDITS)
    with pytest.raises(RequestError, match="cannot name a device"):
        specs.remove(name)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "edits",
    [
        replace(EDITS, env={"A B": "1"}),
        replace(EDITS, env={"A=B": "1"}),
        replace(EDITS, env={"A": "1\0"}),
        replace(EDITS, mounts=(EditMount("run/x", "/x"),)),
        replace(EDITS, mounts=(EditMount("/run/x", "x"),)),
        replace(EDITS, devices=("null",)),
        replace(EDITS, env={}, mounts=(), devices=()),
        replace(EDITS, hooks=(Hook("sh", ("sh",)),)),
        replace(EDITS, hooks=(Hook("/bin/sh", ("sh", "\0")),)),
    ],
    ids=[
        "blank in a name",
        "= in a name",
        "zero byte",
        "source",
        "target",
        "device",
        "no edits",
        "hook",
        "zero byte in a hook",
    ],
)
def test_edits_that_an_engine_would_refuse_are_not_written(tmp_path: Path, edits: Edits) -> None:
    """A spec that cannot be read would fail the container's start with a riddle."""
    with pytest.raises(RequestError):
        LeaseSpecs(tmp_path).write("l-1", edits)
    assert list(tmp_path.iterdir()) == []


def test_a_directory_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    """Here a file stands in its place."""
    (tmp_path / "cdi").touch()
    with pytest.raises(EngineUnavailable, match=f"{tmp_path}/cdi"):
        LeaseSpecs(tmp_path / "cdi").write("l-1", EDITS)


def test_a_failed_write_leaves_no_trace(tmp_path: Path) -> None:
    """A directory where the spec belongs makes the rename fail; the temporary file goes."""
    (tmp_path / "gpushare.io-lease-l-1.json" / "x").mkdir(parents=True)
    with pytest.raises(EngineUnavailable):
        LeaseSpecs(tmp_path).write("l-1", EDITS)
    assert [path.name for path in tmp_path.iterdir()] == ["gpushare.io-lease-l-1.json"]
