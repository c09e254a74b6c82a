"""Serve ``gpushare completion``, and write the command and its completion for ``gpushared install``."""

from __future__ import annotations

import sys
from pathlib import Path

import click
from click.shell_completion import ShellComplete, get_completion_class

SHELLS = ("bash", "zsh", "fish")
LAUNCHER = "usr/local/bin/gpushare"
COMPLETIONS = {
    "bash": "usr/local/share/bash-completion/completions/gpushare",
    "zsh": "usr/local/share/zsh/site-functions/_gpushare",
    "fish": "usr/local/share/fish/vendor_completions.d/gpushare.fish",
}
"""Each shell looks here for the machine's completions."""


@click.command("completion")
@click.argument("shell", type=click.Choice(SHELLS))
def completion(shell: str) -> None:
    """Print the script by which a shell completes commands, options and names of this node.

    `gpushared install` puts the scripts where the shells find them. Names of leases, jobs, containers, nodes,
    presets and projects come from the daemon; where it does not answer, there are none.

    \b
    Examples:
      source <(gpushare completion bash)
      gpushare completion zsh > ~/.zfunc/_gpushare
      gpushare completion fish > ~/.config/fish/completions/gpushare.fish
    """
    click.echo(script(shell), nl=False)


def script(shell: str) -> str:
    """Return click's own script, by its base class: click's bash class would look for a bash here first."""
    from gpushared.cli.main import COMPLETION_VARIABLE
    from gpushared.cli.tree import cli

    shell_class = get_completion_class(shell)
    assert shell_class is not None, shell
    return ShellComplete.source(shell_class(cli, {}, "gpushare", COMPLETION_VARIABLE)).rstrip() + "\n"


def command_files() -> dict[str, str]:
    """Return the text of each file, by its path below the root."""
    return {LAUNCHER: launcher()} | {path: script(shell) for shell, path in COMPLETIONS.items()}


def launcher() -> str:
    """Return a program that starts the command line without ``site``, which takes a fifth of Python's start.

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
