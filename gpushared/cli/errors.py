"""Report errors on the command line: one sentence, one hint, on stderr."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from gpushared.cli.text import printable
from gpushared.domain.model.errors import GpushareError, RequestError
from gpushared.light import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import ClassVar

MAX_DIGITS = 9
MAX_SHOWN = 40
MAX_LINE = 600
MAX_LINES = 40
"""No message of ours has so many lines: a message from elsewhere must not flood a terminal."""


class UsageError(RequestError):
    """The command line itself is wrong."""

    exit_code: ClassVar[int] = 2


@contextmanager
def wrong_values(option: str = "") -> Iterator[None]:
    """Raise UsageError in place of RequestError, for values that are read before any call.

    The sentence begins with ``option`` where the value is that of one option.
    """
    try:
        yield
    except RequestError as error:
        sentence = f"{option}: {error.message}" if option else error.message
        raise UsageError(sentence, hint=error.hint) from error


def whole_number(option: str, text: str, lowest: int, highest: int) -> int:
    """Read the value of an option. Raises UsageError."""
    digits = text[1:] if text.startswith(("+", "-")) else text
    is_number = digits.isascii() and digits.isdigit() and len(digits) <= MAX_DIGITS
    if not is_number or not lowest <= int(text) <= highest:
        raise UsageError(
            f"{option} {text[:MAX_SHOWN]!r} is not possible",
            hint=f"give a whole number, {lowest} to {highest}",
        )
    return int(text)


def say(sentence: str, hint: str = "") -> None:
    """Write a sentence for the person at the terminal to stderr, apart from output for programs.

    The terminal may be gone; the work that its end causes must not fail because of that.
    """
    with suppress(OSError):
        print(f"gpushare: {_cut(sentence)}", file=sys.stderr)
        if hint:
            print(f"  hint: {_cut(hint)}", file=sys.stderr, flush=True)


def report(error: GpushareError) -> int:
    """Write the error and return its exit code."""
    say(error.message, error.hint)
    return error.exit_code


def _cut(text: str) -> str:
    lines = [printable(line) for line in text.split("\n", MAX_LINES)[:MAX_LINES]]
    return "\n".join(line if len(line) <= MAX_LINE else f"{line[:MAX_LINE]}..." for line in lines)
