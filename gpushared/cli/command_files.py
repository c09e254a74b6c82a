"""Write the files that an administrator installs: a launcher, and completion for each shell."""

from __future__ import annotations

import sys
from pathlib import Path

from gpushared.cli.completion import script

LAUNCHER = "usr/local/bin/gpushare"
COMPLETIONS = {
    "bash": "usr/local/share/bash-completion/completions/gpushare",
    "zsh": "usr/local/share/zsh/site-functions/_gpushare",
    "fish": "usr/local/share/fish/vendor_completions.d/gpushare.fish",
}
"""Each shell looks here for the machine's completions."""


def command_files() -> dict[str, str]:
    """Return the text of each file, by its path below the root."""
    return {LAUNCHER: launcher()} | {path: script(shell) for shell, path in COMPLETIONS.items()}


def launcher() -> str:
    """A program that starts the command line without ``site``, which takes a fifth of Python's start.

    Nor does it look at PYTHONPATH and the like: the folders of the packages stand in it. It ends without
    taking the interpreter down, which takes longer than asking the daemon: ``main`` has written everything.
    """
    package = Path(__file__).parents[2]
    folders = [path for path in sys.path if Path(path).name in {"site-packages", "dist-packages"}]
    paths = list(dict.fromkeys([str(package), *folders]))
    return (
        f"#!{sys.executable} -IS\n"
        "# Written by `gpushared install`; run it again after an upgrade.\n"
        "import os, sys\n"
        f"sys.path += {paths!r}\n"
        "from gpushared.cli.main import main\n"
        "os._exit(main())\n"
    )
