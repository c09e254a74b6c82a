"""A terminal that a test types into and looks at: tmux, as people use it."""

from __future__ import annotations

import secrets
import shlex
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.bed import parts

ANSWER_SECONDS = 30


class Tmux:
    """One window of a server of its own."""

    def __init__(self, folder: Path) -> None:
        self._command = ["tmux", "-u", "-S", str(folder / f"tmux-{secrets.token_hex(3)}"), "-f", "/dev/null"]

    def start(self, command: Sequence[str], environ: Mapping[str, str], width: int, height: int) -> None:
        """Run a shell in the window, and in it the command."""
        settings = [f"{name}={value}" for name, value in {**environ, "PS1": "$ "}.items()]
        shell = shlex.join(["env", "-i", *settings, "sh"])
        self._run("new-session", "-d", "-x", str(width), "-y", str(height), shell)
        self._run("set-option", "-g", "window-size", "manual")
        self.wait(lambda shown: shown.strip() == "$", "the shell's prompt")
        self.type(shlex.join(command))
        self.press("Enter")

    def type(self, text: str) -> None:
        self._run("send-keys", "-l", text)

    def press(self, *keys: str) -> None:
        """Press keys by tmux's names: Enter, Escape, C-c, Tab, or a character."""
        self._run("send-keys", *keys)

    def resize(self, width: int, height: int) -> None:
        self._run("resize-window", "-x", str(width), "-y", str(height))

    def shown(self) -> str:
        return self._run("capture-pane", "-p")

    def shown_with_looks(self) -> str:
        return self._run("capture-pane", "-p", "-e")

    def told(self, what: str) -> str:
        """Return what tmux knows by one of its format names, such as ``pane_pid``."""
        return self._run("display-message", "-p", f"#{{{what}}}").strip()

    def wait_for(self, *words: str) -> str:
        return self.wait(lambda shown: all(word in shown for word in words), f"{words} to be shown")

    def wait_without(self, word: str) -> str:
        return self.wait(lambda shown: word not in shown, f"{word!r} to be gone")

    def wait(self, look: Callable[[str], bool], what: str) -> str:
        deadline = time.monotonic() + ANSWER_SECONDS
        while not look(shown := self.shown()):
            assert time.monotonic() < deadline, f"waited for {what}:\n{shown}"
            time.sleep(0.05)
        return shown

    def end(self) -> None:
        subprocess.run([*self._command, "kill-server"], check=False, capture_output=True, timeout=30)

    def _run(self, *words: str) -> str:
        done = subprocess.run(
            [*self._command, *words], check=True, capture_output=True, text=True, timeout=ANSWER_SECONDS
        )
        return done.stdout


@contextmanager
def tmux(folder: Path) -> Iterator[Tmux]:
    if shutil.which("tmux") is None:
        parts.absent("tools", "there is no tmux")
    window = Tmux(folder)
    try:
        yield window
    finally:
        window.end()
