"""Check the options of ``ps`` that a confined caller gives to ``docker top``.

The engine runs the machine's ``ps`` as root with the client's options, and keeps the lines whose column PID
names a process of the container. So the column PID must hold the PID. Some options would break that: a column
may get any title (``-o ppid=PID``), and a column before it may hold blanks, so that its words would be read
as the PID.
"""

from __future__ import annotations

import re

from gpushared.domain.model.errors import PermissionRefused

COLUMNS = r"pid(,[a-z_%]+)*"
UNIX = r"-[AadefFjlLyTHmcw]+"
BSD = r"[auxfjlvsmcwSH]+"
ARGUMENTS = re.compile(rf"(({UNIX}|{BSD}|-aux|(-[Aae]*o|[ax]*o) ?{COLUMNS})( |$))*")


def check_ps(arguments: str) -> None:
    """Raise ``PermissionRefused`` for options that could show more than the container's own processes."""
    if not ARGUMENTS.fullmatch(arguments):
        raise PermissionRefused(
            f"`ps {arguments}` is not for you",
            hint="try -ef, aux, or -o with pid as its first column and columns without titles",
        )
