"""Enter here: find and load the command, and report its errors."""

from __future__ import annotations

import os
import sys

from gpushared.cli.errors import report, say
from gpushared.domain.model.errors import GpushareError

OUR_FAILURE = 125
CTRL_C = 130
BROKEN_PIPE = 141
"""A shell reports a program that ended by SIGPIPE with this code."""
PLAIN = frozenset({"ps", "gpus", "queue", "presets", "version", "jobs", "nodes"})
COMPLETION_VARIABLE = "_GPUSHARE_COMPLETE"


def main() -> int:
    """Run the command line of this process; return its exit code."""
    _open_streams()
    try:
        sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]  # a text stream here
        code = _command(sys.argv[1:])
        sys.stdout.flush()
    except GpushareError as error:
        code = report(error)
    except KeyboardInterrupt:
        code = CTRL_C
    except BrokenPipeError:
        code = BROKEN_PIPE
    except OSError as error:
        say(f"the output cannot be written: {error.strerror}")
        code = OUR_FAILURE
    except Exception as error:  # the last line of defence: a sentence instead of a trace
        if os.environ.get("GPUSHARE_DEBUG"):
            raise
        say(
            f"a bug in gpushare: {type(error).__name__}: {error}",
            "please report it; GPUSHARE_DEBUG=1 shows where it happened",
        )
        code = OUR_FAILURE
    return _leave(code)


def _open_streams() -> None:
    """Open closed streams to nowhere: a stream that our parent closed is None in Python."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115, PTH123 - for our lifetime


def _leave(code: int) -> int:
    """Write what is left; a failure must not come again when the interpreter closes stdout."""
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return code


def _command(argv: list[str]) -> int:
    """Run the hot commands without click, whose import takes longer than they; others with it."""
    name, rest = (argv[0], argv[1:]) if argv else ("", [])
    if COMPLETION_VARIABLE not in os.environ and name and not name.startswith("-"):
        from gpushared.client import Client

        Client.tell_of_retries = say
        if name in PLAIN and (code := _run_listing(name, rest)) is not None:
            return code
        if name == "top" and (code := _run_top(rest)) is not None:
            return code
        if name in {"run", "submit"} and "--help" not in rest and rest not in ([], ["-h"]):
            if name == "submit":
                from gpushared.cli.submit_job import submit_job

                return submit_job(rest)
            from gpushared.cli.run_container import run_container

            return run_container(rest)
    from gpushared.cli.tree import invoke

    return invoke(argv)


def _run_listing(name: str, args: list[str]) -> int | None:
    """Return the exit code of a listing; None if click must read the arguments."""
    from importlib import import_module

    from gpushared.cli.listing import Listing, read_plain, show

    listing: Listing = import_module(f"gpushared.cli.{name}").LISTING
    options = read_plain(args, has_ended=listing.has_ended, own_options=listing.own_options)
    return None if options is None else show(listing, options)


def _run_top(args: list[str]) -> int | None:
    """Return the exit code of ``gpushare top``; None if click must read the arguments."""
    from importlib import import_module

    from gpushared.cli.listing import Options, read_plain

    top = import_module("gpushared.cli.top.start")
    options = read_plain(args, has_ended=False, own_options=top.OWN)
    is_plain = options is not None and options == Options(own_values=options.own_values)
    code: int | None = top.start(options) if is_plain else None
    return code
