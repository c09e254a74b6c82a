"""Types many commands at once: a process that has loaded ``gpushare`` and forks for each command.

A line on the standard input is a command: its words, the directory for what it writes (``out``, ``err``) and
for the code with which it ended (``code``). Each is answered by an empty line once it was begun.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from importlib import import_module
from pathlib import Path

from gpushared.cli.main import main

PRELOADED = ("logs", "pool_run", "start", "stop", "submit_job", "wait", "why")
"""Commands whose modules are loaded once, before any of them is typed."""


def _begin(words: list[str], directory: Path) -> None:
    """Two processes: the command, and one that writes down how it ended."""
    if os.fork():
        return
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    command = os.fork()
    if command:
        _, status = os.waitpid(command, 0)
        code = directory / "code.part"
        code.write_text(str(os.waitstatus_to_exitcode(status)))
        code.rename(directory / "code")
        os._exit(0)
    for number, name in ((1, "out"), (2, "err")):
        os.dup2(os.open(directory / name, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o644), number)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    sys.argv = ["gpushare", *words]
    code_of_command = 1
    try:
        code_of_command = main()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code_of_command)


def serve() -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for those that write codes down
    for name in PRELOADED:
        import_module(f"gpushared.cli.{name}")
    for line in sys.stdin:
        order = json.loads(line)
        _begin(order["words"], Path(order["directory"]))
        sys.stdout.write("\n")
        sys.stdout.flush()


if __name__ == "__main__":
    serve()
