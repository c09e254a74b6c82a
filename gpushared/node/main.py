"""Run the command ``gpushared``: serve, or put the service in place."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Mapping
from pathlib import Path

import click

import gpushared
from gpushared.config.load import DEFAULT_PATH, load
from gpushared.config.model import Config
from gpushared.daemon.process import (
    allow_many_files,
    complain,
    new_polite_loop,
    run_with_signals,
    set_up_logging,
)
from gpushared.daemon.systemd import Notifier
from gpushared.domain.model.errors import GpushareError
from gpushared.node.app import Daemon
from gpushared.node.parts import real_parts

PROGRAM = "gpushared"


@click.group(invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(gpushared.__version__, prog_name=PROGRAM)
@click.option(
    "--config", type=click.Path(path_type=Path), help="Configuration file instead of the usual one."
)
@click.option("--simulate", metavar="MODEL:COUNT", help="Serve simulated GPUs: h100:2,t4 or a100/2x3g.40gb.")
@click.option("--runtime-dir", help="Where the socket and MPS pipes are [/run/gpushared].")
@click.option("--state-dir", help="Where the journal is [/var/lib/gpushared].")
@click.option("--engine", metavar="SOCKET", help="Docker's socket [/var/run/docker.sock].")
@click.option("--log-level", help="debug, info, warning or error.")
@click.option(
    "--restore-compute-mode",
    is_flag=True,
    help="Serve nothing: put compute modes back that a daemon set and no running container needs.",
)
@click.pass_context
def main(
    context: click.Context, /, config: Path | None, *, restore_compute_mode: bool, **flags: str | None
) -> None:
    """Lease parts of this machine's GPUs to Docker containers.

    Without a command the daemon runs in the foreground until it gets SIGTERM; containers run on without it.
    SIGHUP makes it read its configuration again.
    """
    if restore_compute_mode:
        sys.exit(restore(config, _settings(flags)))
    if context.invoked_subcommand is None:
        sys.exit(serve(config, _settings(flags)))


@main.command()
@click.option(
    "--prefix", type=click.Path(path_type=Path), default=Path("/"), help="Install below this folder."
)
def install(prefix: Path) -> None:
    """Put the systemd units and the command in place and say what was done."""
    from gpushared.cli.completion import command_files
    from gpushared.daemon.install import Package, install_package

    units = ("gpushared.service", "gpushared.socket")
    package = Package("gpushared", units, "containers, leases and the queue stay")
    try:
        for line in install_package(prefix, package, command_files()):
            click.echo(line)
    except GpushareError as error:
        complain(PROGRAM, error)
        sys.exit(error.exit_code)


def _settings(flags: Mapping[str, str | None]) -> dict[str, str]:
    """Return the flags as configuration keys."""
    keys = {
        "simulate": "gpus.simulate",
        "runtime_dir": "node.runtime_dir",
        "state_dir": "node.state_dir",
        "engine": "engine.socket",
        "log_level": "log.level",
    }
    return {keys[name]: value for name, value in flags.items() if value is not None}


def read_config(path: Path | None, flags: Mapping[str, str]) -> Config:
    """Read the present configuration; a named file must exist."""
    return load(path or DEFAULT_PATH, environ=os.environ, flags=flags, must_exist=path is not None).config


def serve(path: Path | None, flags: Mapping[str, str]) -> int:
    """Run the daemon and return its exit code."""
    try:
        config = read_config(path, flags)
        set_up_logging(config.log)
        allow_many_files()
        with asyncio.Runner(loop_factory=new_polite_loop) as runner:
            runner.run(_run(config, path, flags))
    except GpushareError as error:
        complain(PROGRAM, error)
        return error.exit_code
    return 0


def restore(path: Path | None, flags: Mapping[str, str]) -> int:
    """Put compute modes back and return the exit code."""
    from gpushared.node.parts import restore_modes

    try:
        sentence = asyncio.run(restore_modes(read_config(path, flags)))
    except GpushareError as error:
        complain(PROGRAM, error)
        return error.exit_code
    if sentence is not None:
        click.echo(f"gpushared: {sentence}")
    return 0


async def _run(config: Config, path: Path | None, flags: Mapping[str, str]) -> None:
    notifier = Notifier()
    daemon = Daemon(config, real_parts(config), notifier, lambda: read_config(path, flags))
    await run_with_signals(daemon, notifier, lambda: read_config(path, flags))
