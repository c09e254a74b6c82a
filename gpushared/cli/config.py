"""Serve ``gpushare config``: check and show the daemon's configuration without a daemon."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gpushared.cli.options import output_option

if TYPE_CHECKING:
    from gpushared.config import Loaded

MAIN_FILE = "/etc/gpushared/config.toml"
"""The path is the same in ``gpushared.config``, whose import takes longer than a completion may."""
_FILE = click.option(
    "-c",
    "--config",
    "path",
    type=click.Path(path_type=Path),
    metavar="PATH",
    help=f"The main file; files in the folder beside it, named .d, are read too.  [default: {MAIN_FILE}]",
)


@click.group("config")
def config() -> None:
    """Check or show the daemon's configuration, as files and this shell's environment give it.

    The command reads the main file, the files in its .d folder by name, and GPUSHARED_SECTION__KEY variables;
    later ones win. The daemon reads the same at its start, with its own environment and flags.

    \b
    Examples:
      gpushare config check
      gpushare config show --origin
    """


@config.command("check")
@_FILE
def check(path: Path | None) -> None:
    """Check the configuration, and list all that is wrong with it (exit code 2).

    \b
    Examples:
      gpushare config check
      gpushare config check --config ./new.toml && sudo cp new.toml /etc/gpushared/config.toml
    """
    _load(path)
    file = path or Path(MAIN_FILE)
    click.echo(f"{file} is right" if file.exists() else f"there is no {file}: the defaults hold")


@config.command("show")
@_FILE
@click.option("--origin", is_flag=True, help="Show the file or variable that each value came from.")
@output_option("toml", "json")
def show(path: Path | None, origin: bool, output: str) -> None:
    """Show every setting in force, defaults too, as a file that would set it again.

    \b
    Examples:
      gpushare config show --origin
      gpushare config show -o json
    """
    from gpushared.cli.listing import envelope
    from gpushared.config import settings, to_toml

    loaded = _load(path)
    if output == "toml":
        click.echo(to_toml(loaded, origins=origin), nl=False)
        return
    items = [
        {"section": setting.section, "name": setting.name, "value": setting.value, "origin": setting.origin}
        for setting in settings(loaded)
    ]
    click.echo(envelope("gpushare.config/1", items, simulated=False), nl=False)


def _load(path: Path | None) -> Loaded:
    from gpushared.config import load

    return load(path or Path(MAIN_FILE), environ=os.environ, must_exist=path is not None)
