"""Lines for journald, as its own socket gets them."""

from __future__ import annotations

import socket
from pathlib import Path

from gpushared.daemon.systemd import Journald, encoded


def test_an_entry_is_written_as_journald_reads_it() -> None:
    """Values with line breaks go with their length: nobody adds fields by what he is called."""
    entry = encoded({"MESSAGE": "one\nGPUSHARE_UID=0", "GPUSHARE_UID": "1000"})
    assert entry == b"MESSAGE\n\x12\0\0\0\0\0\0\0one\nGPUSHARE_UID=0\nGPUSHARE_UID=1000\n"


def test_a_line_is_there_at_once_or_refused_at_once(tmp_path: Path) -> None:
    """A journald that is away, or takes no more, holds nobody up."""
    path = tmp_path / "socket"
    sender = Journald(path)
    assert not sender.send({"MESSAGE": "away"})
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as journald:
        journald.bind(str(path))
        sent = 0
        while sender.send({"MESSAGE": str(sent)}):
            sent += 1
        assert sent > 0
        assert journald.recv(100) == b"MESSAGE=0\n"
        assert sender.send({"MESSAGE": "room again"})
    sender.close()
