"""Which options of ``ps`` a confined caller may give to ``docker top``.

The engine runs the machine's ``ps`` as root with what the client gives, and keeps the lines whose column PID
names a process of the container. So that column must hold what it says: a column may be given any title
(``-o ppid=PID``), and what stands before it may hold blanks, so that other words of it would be read.
"""

from __future__ import annotations

import re

from gpushared.domain.errors import PermissionRefused

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
