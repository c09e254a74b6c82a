"""A file system of a user's own, as fusermount makes it: mounted by root, served by the user."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gpushared.gate.mounts import kernel
from tests.gate.serving import ALICE

SERVER = Path(__file__).with_name("fuse_server.py")
DEVICE = Path("/dev/fuse")
_LIBC = ctypes.CDLL(None, use_errno=True)


class Fuse:
    """One mount, with the file ``file`` in it."""

    def __init__(self, place: Path, server: subprocess.Popen[bytes]) -> None:
        assert server.stdin is not None
        assert server.stdout is not None
        self.place = place
        self._server = server
        self._told, self._said = server.stdin, server.stdout

    def fall_silent(self) -> None:
        """From now on whoever asks anything of it waits, and can be killed only once ``end`` was called."""
        self._told.write(b"be silent\n")
        self._told.flush()
        assert self._said.readline() == b"silent\n"

    def end(self) -> None:
        """All who wait hear that the file system is gone."""
        self._server.kill()
        self._server.wait()

    def begin(self) -> None:
        """Wait until it answers."""
        assert self._said.readline() == b"serving\n"

    def close(self) -> None:
        self.end()
        self._told.close()
        self._said.close()
        kernel.detach(str(self.place))


@contextmanager
def fuse(place: Path, *, uid: int = ALICE.uid, allow_other: bool = False) -> Iterator[Fuse]:
    """``allow_other``: root may look into it too, as where /etc/fuse.conf says user_allow_other."""
    connection = os.open(DEVICE, os.O_RDWR)
    try:
        options = f"fd={connection},rootmode=40000,user_id={uid},group_id={uid}"
        options += ",allow_other" if allow_other else ""
        flags = kernel.MS_NOSUID | kernel.MS_NODEV
        if _LIBC.mount(b"users-own", os.fsencode(place), b"fuse", flags, options.encode()):
            raise OSError(ctypes.get_errno(), "mount of a FUSE file system")
        command = [sys.executable, "-I", str(SERVER), str(connection), str(uid), "served"]
        pipe = subprocess.PIPE
        server = subprocess.Popen(command, pass_fds=[connection], stdin=pipe, stdout=pipe)
    finally:
        os.close(connection)
    served = Fuse(place, server)
    try:
        served.begin()
        yield served
    finally:
        served.close()
