"""Provide ``gpushared-pool store``: move, check, copy and restore the coordinator's store."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import click

from gpushared.config.pool_settings import POOL, CoordinatorConfig, load_pool
from gpushared.daemon.process import complain
from gpushared.domain.model.errors import ConfigError, GpushareError
from gpushared.pool.coordinator.store_tools import backup, check, migrate, put_back

PROGRAM = "gpushared-pool"
T = TypeVar("T")

config_option = partial(
    click.option,
    "--config",
    type=click.Path(path_type=Path),
    help="Configuration file instead of the usual one.",
)
state_dir_option = partial(
    click.option, "--state-dir", help="Where store and keys are [/var/lib/gpushared-pool]."
)
_REPLACE = click.option("--replace", is_flag=True, help="Replace a store that is there already.")
_FILE = click.argument("file", type=click.Path(path_type=Path, dir_okay=False))


def _as_of_program(context: click.Context, option: click.Parameter, value: object) -> None:
    """Take an option of ``gpushared-pool`` also where it stands behind the command's name."""
    if value is not None and option.name is not None:
        context.find_root().params[option.name] = value


def _where(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options that say where the store is."""
    options: dict[str, Any] = {"expose_value": False, "callback": _as_of_program}
    return config_option(**options)(state_dir_option(**options)(command))


@click.group(name="store")
def store_commands() -> None:
    """Move, check, copy or restore the store.

    Run them as the coordinator's user, for example with `runuser -u gpushared-pool`. All but `backup` and
    `check` need the coordinator stopped; nodes and containers go on meanwhile.
    """


@store_commands.command(name="migrate")
@click.option(
    "--to", required=True, metavar="URL", help="etcd://HOST:PORT,HOST:PORT or sqlite: or sqlite:PATH."
)
@_REPLACE
@_where
@click.pass_context
def migrate_command(context: click.Context, /, to: str, *, replace: bool) -> None:
    """Move the store to etcd, or back to a file. Certificates for etcd are taken from [store]."""
    _print(_result_of(context, lambda config: migrate(config, to, replaces=replace)))


@store_commands.command(name="backup")
@_FILE
@_where
@click.pass_context
def backup_command(context: click.Context, /, file: Path) -> None:
    """Copy the store to FILE, which must not exist. The coordinator may run."""
    _print(_result_of(context, lambda config: backup(config, file)))


@store_commands.command(name="restore")
@_FILE
@_REPLACE
@_where
@click.pass_context
def restore_command(context: click.Context, /, file: Path, *, replace: bool) -> None:
    """Fill the store from a copy that `backup` made; nodes then report what the copy lacks."""
    _print(_result_of(context, lambda config: put_back(config, file, replaces=replace)))


@store_commands.command(name="check")
@_where
@click.pass_context
def check_command(context: click.Context, /) -> None:
    """Read the whole store, and exit with 1 if something is wrong. The coordinator may run."""
    lines, problems = _result_of(context, check)
    _print(lines)
    for problem in problems:
        click.echo(f"problem: {problem}", err=True)
    sys.exit(1 if problems else 0)


def _result_of(context: click.Context, work: Callable[[CoordinatorConfig], Awaitable[T]]) -> T:
    """Do the work with the configuration of the command's own options, or complain and exit."""

    async def run() -> T:
        return await work(_config(context))

    try:
        return asyncio.run(run())
    except GpushareError as error:
        complain(PROGRAM, error)
        sys.exit(error.exit_code)


def _config(context: click.Context) -> CoordinatorConfig:
    options = context.find_root().params
    path: Path | None = options["config"]
    flags = {"coordinator.state_dir": options["state_dir"]}
    config = load_pool(path or POOL.path, environ=os.environ, flags=flags, must_exist=path is not None)
    _check_user(Path(config.coordinator.state_dir))
    return config


def _check_user(folder: Path) -> None:
    """Raise ConfigError for a user whose files the coordinator could not read."""
    try:
        owner = folder.stat().st_uid
    except OSError as error:
        raise ConfigError(f"{folder} cannot be read: {error.strerror}", hint="name --state-dir") from error
    if owner != os.geteuid():
        raise ConfigError(
            f"{folder} belongs to another user (uid {owner})",
            hint="run this as the coordinator's user: runuser -u gpushared-pool -- gpushared-pool store ...",
        )


def _print(lines: Iterable[str]) -> None:
    for line in lines:
        click.echo(line)
