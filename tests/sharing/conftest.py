from __future__ import annotations

import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.sharing import daemons


@pytest.fixture
def runtime_dir() -> Iterator[Path]:
    """A short path, as the sockets in it need; every daemon that still serves in it is ended."""
    path = Path(tempfile.mkdtemp(prefix="gs-", dir="/tmp"))
    yield path
    for pid in daemons.serving_under(path):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    shutil.rmtree(path)
