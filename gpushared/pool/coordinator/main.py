"""Provide the command ``gpushared-pool``, which serves as the coordinator of a pool."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Mapping
from pathlib import Path

import click

import gpushared
from gpushared.config.pool_settings import POOL, CoordinatorConfig, load_pool
from gpushared.daemon.process import (
    allow_many_files,
    complain,
    new_polite_loop,
    run_with_signals,
    set_up_logging,
)
from gpushared.daemon.systemd import Notifier
from gpushared.domain.model.errors import ConfigError, GpushareError
from gpushared.pool.coordinator.app import PoolDaemon, real_pool_parts
from gpushared.pool.coordinator.store_commands import config_option, state_dir_option, store_commands
from gpushared.pool.coordinator.stores import etcd_access
from gpushared.pool.trust.people import people_of

PROGRAM = "gpushared-pool"

KEYS = {
    "listen": "coordinator.listen",
    "listen_nodes": "coordinator.listen_nodes",
    "runtime_dir": "coordinator.runtime_dir",
    "state_dir": "coordinator.state_dir",
    "log_level": "log.level",
}
"""Map flags to configuration keys."""


@click.group(invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(gpushared.__version__, prog_name=PROGRAM)
@config_option()
@click.option("--listen", metavar="HOST:PORT", help="Where users and joining machines reach it [[::]:7440].")
@click.option("--listen-nodes", metavar="HOST:PORT", help="Where nodes reach it [[::]:7441].")
@click.option("--runtime-dir", help="Where the administrators' socket is [/run/gpushared-pool].")
@state_dir_option()
@click.option("--log-level", help="debug, info, warning or error.")
@click.option("--allow-root", is_flag=True, help="Serve although this is root, which nothing here needs.")
@click.option("--check", is_flag=True, help="Serve nothing: only say what is wrong with the configuration.")
@click.pass_context
def main(
    context: click.Context,
    /,
    config: Path | None,
    *,
    allow_root: bool,
    check: bool,
    **flags: str | None,
) -> None:
    """Coordinate a pool: keep its jobs, and give them to its nodes.

    Runs in the foreground until it gets SIGTERM; nodes and containers run on without it. SIGHUP makes it
    read its configuration again. The pool itself is made by `gpushare pool init`.
    """
    settings = {KEYS[name]: value for name, value in flags.items() if value is not None}
    if check:
        sys.exit(check_config(config, settings))
    if context.invoked_subcommand is None:
        sys.exit(serve(config, settings, allow_root=allow_root))


@main.command()
@click.option(
    "--prefix", type=click.Path(path_type=Path), default=Path("/"), help="Install below this folder."
)
def install(prefix: Path) -> None:
    """Install the systemd unit, the daemon's user and the command, and print each step."""
    from gpushared.cli.completion import command_files
    from gpushared.daemon.install import Package, install_package

    package = Package("gpushared-pool", ("gpushared-pool.service",), "nodes, containers and jobs stay")
    try:
        for line in install_package(prefix, package, command_files()):
            click.echo(line)
    except GpushareError as error:
        complain(PROGRAM, error)
        sys.exit(error.exit_code)


main.add_command(store_commands)


def read_config(path: Path | None, flags: Mapping[str, str]) -> CoordinatorConfig:
    """Return the present configuration; a file named on the command line must exist."""
    return load_pool(path or POOL.path, environ=os.environ, flags=flags, must_exist=path is not None)


def serve(path: Path | None, flags: Mapping[str, str], *, allow_root: bool) -> int:
    """Run the daemon, and return its exit code."""
    try:
        refuse_root(allowed=allow_root)
        config = read_config(path, flags)
        set_up_logging(config.log)
        allow_many_files()
        with asyncio.Runner(loop_factory=new_polite_loop) as runner:
            runner.run(_run(config, path, flags))
    except GpushareError as error:
        complain(PROGRAM, error)
        return error.exit_code
    return 0


def check_config(path: Path | None, flags: Mapping[str, str]) -> int:
    """Check the configuration, and return the exit code."""
    try:
        config = read_config(path, flags)
        people_of(config.users)
        if config.store.url:
            etcd_access(config, config.store.url)
    except GpushareError as error:
        complain(PROGRAM, error)
        return error.exit_code
    return 0


def refuse_root(*, allowed: bool) -> None:
    """Refuse to run as root: the coordinator parses network data and needs no privilege.

    Raises ConfigError.
    """
    if os.geteuid() == 0 and not allowed:
        raise ConfigError(
            "the coordinator needs no rights, and runs as root only when told to",
            hint="start the service, which runs as gpushared-pool: systemctl start gpushared-pool; "
            "or say --allow-root",
        )


async def _run(config: CoordinatorConfig, path: Path | None, flags: Mapping[str, str]) -> None:
    notifier = Notifier()
    daemon = PoolDaemon(config, real_pool_parts(config), notifier)
    await run_with_signals(daemon, notifier, lambda: read_config(path, flags))
