"""Run docker as a child of the command, for commands with work left after docker's end."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import FrameType

_FORWARDED = (signal.SIGTERM, signal.SIGHUP)
_FROM_THE_TERMINAL = (signal.SIGINT, signal.SIGQUIT)


def run_as_child(command: Sequence[str], environ: Mapping[str, str]) -> int:
    """Run docker and stay; returns docker's exit code, 128+n when signal n ended docker."""
    with _passing_signals() as pass_to:
        child = subprocess.Popen(command, env=environ)
        pass_to(child)
        code = child.wait()
    return code if code >= 0 else 128 - code


@contextmanager
def _passing_signals() -> Iterator[Callable[[subprocess.Popen[bytes]], None]]:
    """Pass TERM and HUP on to a child; what a terminal sends, the child gets from the terminal itself.

    The handlers are in place before the child begins, so that no signal ends the parent first. They are no
    SIG_IGN: a handler is undone by the child's exec, an ignored signal would stay ignored.
    """
    children: list[subprocess.Popen[bytes]] = []
    early: list[int] = []

    def pass_to(child: subprocess.Popen[bytes]) -> None:
        children.append(child)
        for number in early:
            child.send_signal(number)

    def forward(number: int, frame: FrameType | None) -> None:  # noqa: ARG001 - a handler's signature
        if children:
            children[0].send_signal(number)
        else:
            early.append(number)

    def leave_it(number: int, frame: FrameType | None) -> None:
        pass

    before = {number: signal.signal(number, forward) for number in _FORWARDED}
    before |= {number: signal.signal(number, leave_it) for number in _FROM_THE_TERMINAL}
    try:
        yield pass_to
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
