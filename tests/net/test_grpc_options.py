"""gRPC takes options by their names, and says nothing about a name that it does not know."""

from __future__ import annotations

import ast
import re
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("gpushared", "tests", "bench", "examples")
_NAME = re.compile(r"grpc\.[a-z0-9_.]+")
_SOCKET = ".sock"
"""Names of sockets look alike."""
UNKNOWN = ("http2.min_recv_ping_interval_without_data_ms", "keepalive_time", "keepalive_time_msx")
"""Without the first word, so that they are no options of this file."""


def used() -> dict[str, set[str]]:
    """Each option that a program names, with the files that do."""
    found: dict[str, set[str]] = {}
    for path in (path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_bytes())):
            word = node.value if isinstance(node, ast.Constant) else None
            if isinstance(word, str) and _NAME.fullmatch(word) and not word.endswith(_SOCKET):
                found.setdefault(word, set()).add(str(path.relative_to(ROOT)))
    return found


@pytest.fixture(scope="module")
def core() -> bytes:
    """The compiled core of gRPC, which holds the name of every option that it reads."""
    spec = find_spec("grpc._cython.cygrpc")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).read_bytes()


def is_known(core: bytes, name: str) -> bool:
    """As a whole word; what lies before it in the file may be anything."""
    return re.search(re.escape(name.encode()) + rb"(?![\w.])", core) is not None


def test_the_core_of_grpc_knows_every_option_that_the_project_sets(core: bytes) -> None:
    options = used()
    assert "gpushared/net/call_checks.py" in options["grpc.keepalive_time_ms"]
    assert {name: files for name, files in options.items() if not is_known(core, name)} == {}


@pytest.mark.parametrize("name", UNKNOWN)
def test_a_name_that_the_core_does_not_know_is_found_out(core: bytes, name: str) -> None:
    assert not is_known(core, f"grpc.{name}")
