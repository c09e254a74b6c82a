"""``gpushare completion``: the script by which a shell completes words of ours."""

from __future__ import annotations

import click
from click.shell_completion import ShellComplete, get_completion_class

SHELLS = ("bash", "zsh", "fish")


@click.command("completion", short_help="Print what lets a shell complete words.")
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
    """  # noqa: D301 - click's mark for lines it must not join
    click.echo(script(shell), nl=False)


def script(shell: str) -> str:
    """Return click's own script, by its base class: click's bash class would look for a bash here first."""
    from gpushared.cli.main import COMPLETION_VARIABLE
    from gpushared.cli.tree import cli

    found = get_completion_class(shell)
    assert found is not None, shell
    return ShellComplete.source(found(cli, {}, "gpushare", COMPLETION_VARIABLE)).rstrip() + "\n"
