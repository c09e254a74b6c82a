"""Run the process of a daemon: its log, its files, its signals, its tasks, and its last message on a failure."""

from __future__ import annotations

import asyncio
import json
import logging
import resource
import signal
import sys
from collections.abc import Callable, Coroutine
from typing import Any, Protocol, TypeVar

import click

from gpushared.config.model import LogConfig, LogFormat
from gpushared.daemon.systemd import Notifier
from gpushared.domain.model.errors import GpushareError

log = logging.getLogger("gpushared")

ConfigT = TypeVar("ConfigT")
ConfigT_contra = TypeVar("ConfigT_contra", contravariant=True)

OPEN_FILES = 65536
"""The service units have the same number."""


class RunningDaemon(Protocol[ConfigT_contra]):
    """Define the calls that signals make on a daemon."""

    async def run(self) -> None: ...

    def stop(self) -> None: ...

    def reload(self, config: ConfigT_contra, /) -> None: ...

    def not_reloaded(self, error: GpushareError, /) -> None:
        """Note that a reload was asked for, and that the new configuration has an error."""
        ...


async def run_with_signals(
    daemon: RunningDaemon[ConfigT], notifier: Notifier, read_config: Callable[[], ConfigT]
) -> None:
    """Run the daemon: SIGTERM and SIGINT stop it, SIGHUP makes it take over its configuration anew."""
    loop = asyncio.get_running_loop()

    def reload() -> None:
        notifier.reloading()
        status = "configuration reloaded"
        try:
            daemon.reload(read_config())
        except GpushareError as error:
            status = "configuration not reloaded, the old one stays"
            log.error("%s: %s", status, error)  # noqa: TRY400 - no bug
            daemon.not_reloaded(error)
        notifier.ready(status)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, daemon.stop)
    loop.add_signal_handler(signal.SIGHUP, reload)
    await daemon.run()


async def until_one_ends(notifier: Notifier, *work: Coroutine[Any, Any, object]) -> None:
    """Do all of it at once until the first ends, by an error or not: then the daemon does, and the rest."""
    tasks = [asyncio.create_task(each) for each in work]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        notifier.stopping()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def complain(program: str, error: GpushareError) -> None:
    """Tell whoever started it, on standard error."""
    click.echo(f"{program}: {error.message}", err=True)
    if error.hint:
        click.echo(f"  hint: {error.hint}", err=True)


def allow_many_files() -> None:
    """Raise the limit of open files: a connection takes up to three, and shells allow a thousand."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = OPEN_FILES if hard == resource.RLIM_INFINITY else min(OPEN_FILES, hard)
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


class JsonFormatter(logging.Formatter):
    """Write one JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": record.created,
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line)


def set_up_logging(config: LogConfig) -> None:
    """Set up the log; call this once, at the start of the process."""
    handler = logging.StreamHandler(sys.stderr)
    if config.format is LogFormat.JSON:
        handler.setFormatter(JsonFormatter())
    else:
        handler.setFormatter(logging.Formatter("%(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=config.level.upper(), handlers=[handler])
