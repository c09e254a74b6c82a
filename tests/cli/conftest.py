"""The stand-in daemon, the real command line, and a program that records how docker would be called."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.process import Gpushare
from tests.cli.standin import StandIn

CREATE = Path(__file__).with_name("create.py")


@pytest.fixture
def standin() -> Iterator[StandIn]:
    with tempfile.TemporaryDirectory(prefix="gs-") as folder:  # short: unix socket paths have 107 bytes
        server = StandIn(Path(folder) / "d.sock")
        yield server
        server.close()


@pytest.fixture
def gpushare(standin: StandIn, tmp_path: Path) -> Gpushare:
    return Gpushare(standin.host, tmp_path)


@pytest.fixture
def docker_recorder(gpushare: Gpushare, tmp_path: Path) -> Path:
    """A program in docker's place that writes down how it was called; it is not docker.

    It exits with 7 on ``run``, and with the code in the file ``pull-code`` on ``pull``. Where the words of
    ``run`` are only to be read, it asks for a container, or exits with the code in the file ``refusal``.
    """
    folder = tmp_path / "bin"
    folder.mkdir()
    record = tmp_path / "record"
    program = folder / "docker"
    program.write_text(
        "#!/bin/sh\n"
        'case "$1 $DOCKER_HOST" in "run "*/gpushare-words-*/docker.sock)\n'
        f"  if [ -e {tmp_path}/refusal ]; then echo 'docker: no' >&2; exit $(cat {tmp_path}/refusal); fi\n"
        f"  exec {sys.executable} -S {CREATE} ;;\n"
        "esac\n"
        f'for word in "$@"; do printf "%s\\n" "$word"; done >> {record}.$1\n'
        f"env > {record}.$1.env\n"
        f'if [ "$1" = pull ]; then exit $(cat {tmp_path}/pull-code 2>/dev/null || echo 0); fi\n'
        f"if [ -e {tmp_path}/script ]; then . {tmp_path}/script; fi\n"
        "exit 7\n"
    )
    program.chmod(0o755)
    gpushare.environ["PATH"] = f"{folder}:{gpushare.environ['PATH']}"
    return record
