"""The fork server of the tests: a file or a socket that its programs leave open does not go unnoticed."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.node import fork_server

SECONDS = 60


@pytest.mark.parametrize(("ending", "left"), [("", True), (".close()", False)])
def test_a_socket_that_a_program_leaves_open_fails_its_test(tmp_path: Path, ending: str, left: bool) -> None:
    program, log = tmp_path / "program.py", tmp_path / "log"
    program.write_text(f"import socket\nsocket.socket(){ending}\n")
    with log.open("wb") as output:
        process = fork_server.start([sys.executable, str(program)], os.environ, output)
        assert process.wait(SECONDS) == 0
    if left:
        with pytest.raises(AssertionError, match="unclosed <socket"):
            fork_server.check_nothing_left_open(log)
    else:
        fork_server.check_nothing_left_open(log)
