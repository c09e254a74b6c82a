"""Run the process of a daemon: its log, files and signals, its event loop, and its last message on a failure."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import resource
import selectors
import signal
import sys
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, Protocol, TypeVar

import click

from gpushared.config.model import LogConfig, LogFormat
from gpushared.daemon.systemd import Notifier, is_logged_to
from gpushared.domain.model.errors import GpushareError

log = logging.getLogger("gpushared")

ConfigT = TypeVar("ConfigT")
ConfigT_contra = TypeVar("ConfigT_contra", contravariant=True)

OPEN_FILES = 65536
"""The service units have the same number."""
BUSY_SECONDS = 0.002
"""The loop may run this long without waiting."""
REST_SECONDS = 0.00005
"""After that the loop waits this long: a thread of another core needs about half of it to wake up."""
COLLECT_SECONDS = 5.0
"""New records are set aside this often."""
FULL_COLLECT_SECONDS = 6 * 3600.0
"""The whole heap is searched this often, for cycles among the objects that were set aside."""


class RunningDaemon(Protocol[ConfigT_contra]):
    """Define the calls that signals make on a daemon."""

    async def run(self) -> None: ...

    def stop(self) -> None: ...

    def reload(self, config: ConfigT_contra, /) -> None: ...

    def not_reloaded(self, error: GpushareError, /) -> None:
        """Note that a reload was requested, and that the new configuration has an error."""
        ...


async def run_with_signals(
    daemon: RunningDaemon[ConfigT], notifier: Notifier, read_config: Callable[[], ConfigT]
) -> None:
    """Run the daemon: SIGTERM and SIGINT stop it, SIGHUP makes it read its configuration again."""
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
    """Run all coroutines until the first ends, with an error or not; then cancel the others."""
    await first_to_end(*work, at_end=notifier.stopping)


async def first_to_end(
    *work: Coroutine[Any, Any, object], at_end: Callable[[], object] = lambda: None
) -> None:
    """Run all coroutines until the first ends, with an error or not; call ``at_end``, and cancel the others."""
    tasks = [asyncio.create_task(each) for each in work]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        at_end()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def complain(program: str, error: GpushareError) -> None:
    """Print the error on standard error, for the person or service that started the program."""
    click.echo(f"{program}: {error.message}", err=True)
    if error.hint:
        click.echo(f"  hint: {error.hint}", err=True)


def allow_many_files() -> None:
    """Raise the limit of open files: a connection takes up to three, and shells allow a thousand."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = OPEN_FILES if hard == resource.RLIM_INFINITY else min(OPEN_FILES, hard)
    if soft < limit:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))


class JsonFormatter(logging.Formatter):
    """Write one JSON object on each line."""

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
        # journald adds the time itself.
        prefix = "" if is_logged_to() else "%(asctime)s "
        handler.setFormatter(logging.Formatter(f"{prefix}%(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=config.level.upper(), handlers=[handler])


class PoliteSelector(selectors.EpollSelector):
    """Wait a little in `select` if the loop has not waited for long, so that the process's threads can work.

    A loop that has work in each pass polls the kernel for ready files without waiting, and so releases
    CPython's lock for an instant only: a thread that waits for the lock is woken, finds it taken again, and
    sleeps on. Nor does the thread request the lock after the usual 5 ms, because it was woken in between
    (`take_gil` in CPython's Python/ceval_gil.c). So a user that keeps the loop busy would block all work of
    others in threads.
    """

    def __init__(self) -> None:
        super().__init__()
        self._waited_at = time.monotonic()

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        begin = time.monotonic()
        if begin - self._waited_at >= BUSY_SECONDS:
            time.sleep(REST_SECONDS)
            self._waited_at = begin = time.monotonic()
        ready = super().select(timeout)
        end = time.monotonic()
        if end - begin >= REST_SECONDS:
            self._waited_at = end
        return ready


def new_polite_loop() -> asyncio.AbstractEventLoop:
    """Make the loop, for ``asyncio.Runner``."""
    return asyncio.SelectorEventLoop(PoliteSelector())


@contextmanager
def no_collection() -> Iterator[None]:
    """Collect no garbage while very many records are made, and then set the records aside."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


async def keep_aside() -> None:
    """Set new records aside from the garbage collection, for ever, after a search of the young ones.

    Python searches all living objects for cycles: with 100 000 queued jobs for more than a second, in which
    no node gets an answer. The records have no cycles. Objects with cycles, such as calls that failed, are
    found while they are young, or when the whole heap is searched once in a while.
    """
    since_full = 0.0
    while True:
        await asyncio.sleep(COLLECT_SECONDS)
        since_full += COLLECT_SECONDS
        if since_full >= FULL_COLLECT_SECONDS:
            since_full = 0.0
            gc.unfreeze()
            gc.collect()
        else:
            gc.collect(1)
        gc.freeze()
