"""Two daemons at one socket: the second one leaves again and has touched nothing."""

from __future__ import annotations

import pytest

from tests.node.conftest import NewDaemon
from tests.node.daemon import DaemonProcess

pytestmark = pytest.mark.docker


def test_a_second_daemon_leaves_what_the_first_one_made(daemon: DaemonProcess, new_daemon: NewDaemon) -> None:
    """Its journal knows none of those leases: it would clear their directories and MPS daemons away."""
    theirs = daemon.runtime_dir / "leases" / "l-first" / "mps"
    theirs.mkdir(parents=True)
    second = new_daemon(engine=daemon.engine)
    second.runtime_dir = daemon.runtime_dir
    second.launch()
    assert second.wait() == 2
    assert f"another gpushared serves {daemon.socket}" in second.text()
    assert theirs.is_dir()
    assert daemon.call("Node/Status")["version"]
