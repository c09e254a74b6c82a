"""Show the picture on a terminal by curses, and carry out what keys ask for.

Only this module knows the terminal. The thread of the feed, signals and the threads of actions wake it through
one pipe, so that it sleeps while nothing happens.
"""

from __future__ import annotations

import curses
import locale
import os
import queue
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from gpushared.cli.top.actions import story
from gpushared.cli.top.answers import Scope
from gpushared.cli.top.feed import Feed
from gpushared.cli.top.keys import GRID, TEXT, Do, Effect, Explain, Leave, Ui, press
from gpushared.cli.top.panels import Panel, panels
from gpushared.cli.top.view import News, ScreenSize, picture
from gpushared.client import Client
from gpushared.domain.model.errors import GpushareError
from gpushared.light import TYPE_CHECKING

if TYPE_CHECKING:
    from types import FrameType

ESCAPE_MILLISECONDS = 25
AGING_SECONDS = 1.0
"""While answers are late, their age is drawn anew this often."""
LATE_INTERVALS = 2
ENDED_BY_SIGNAL = 128
MAX_EMPTY_READS = 100
"""A terminal that so often has something to read and gives no key is gone."""

_KEYS: Mapping[int, str] = {
    curses.KEY_UP: "up",
    curses.KEY_DOWN: "down",
    curses.KEY_PPAGE: "page up",
    curses.KEY_NPAGE: "page down",
    curses.KEY_HOME: "home",
    curses.KEY_END: "end",
    curses.KEY_ENTER: "enter",
    curses.KEY_BTAB: "btab",
    curses.KEY_BACKSPACE: "backspace",
}
_CHARACTERS: Mapping[str, str] = {
    "\n": "enter",
    "\r": "enter",
    "\t": "tab",
    "\x1b": "esc",
    "\x7f": "backspace",
    "\b": "backspace",
}


def can_show_unicode() -> bool:
    """Return True if curses can write more than ASCII; Python itself writes UTF-8 in the locale C too."""
    with suppress(locale.Error):
        locale.setlocale(locale.LC_ALL, "")
    return "utf" in locale.nl_langinfo(locale.CODESET).lower()


class Program:
    """Run until the user leaves."""

    def __init__(
        self, client: Client, scope: Scope, interval_seconds: float, *, plain: bool, colour: bool
    ) -> None:
        self._client = client
        self._interval_seconds = interval_seconds
        self._plain = plain
        self._colour = colour
        self._woken, self._waker = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._feed = Feed(client, scope, interval_seconds, self._wake)
        self._ui = Ui()
        self._panels: dict[str, Panel] = {}
        self._results: queue.SimpleQueue[Callable[[Ui], Ui]] = queue.SimpleQueue()
        self._is_working = False
        self._empty_reads = 0
        self._looks: dict[str, int] = {"": curses.A_NORMAL}

    def run(self) -> int:
        self._feed.start()
        with _Signals(self._waker):
            screen = curses.initscr()
            try:
                self._begin(screen)
                self._loop(screen)
            finally:
                curses.endwin()
        return 0

    def _begin(self, screen: curses.window) -> None:
        curses.noecho()
        curses.cbreak()
        curses.set_escdelay(ESCAPE_MILLISECONDS)
        screen.keypad(True)
        screen.nodelay(True)
        _quietly(lambda: curses.curs_set(0))
        if self._colour:
            _quietly(curses.start_color)
            _quietly(curses.use_default_colors)

    def _loop(self, screen: curses.window) -> None:
        while True:
            self._draw(screen)
            may_read = self._sleep()
            while not self._results.empty():
                self._ui = self._results.get()(self._ui)
            keys = _read_keys(screen)
            self._empty_reads = self._empty_reads + 1 if may_read and not keys else 0
            if self._empty_reads == MAX_EMPTY_READS:
                return
            for key in keys:
                self._ui, effect = press(self._ui, key, self._panels or self._make_panels(time.time()))
                self._prepare_screen()
                if isinstance(effect, Leave):
                    return
                if effect is not None:
                    self._carry_out(effect, screen)

    def _sleep(self) -> bool:
        """Wait for a key, an answer or a signal; while answers are late, until the age changes.

        Return True if there is something to read from the terminal.
        """
        answers = self._feed.news.answers
        is_late = answers is None or time.time() - answers.at > LATE_INTERVALS * self._interval_seconds
        timeout = AGING_SECONDS if is_late else LATE_INTERVALS * self._interval_seconds
        ready, _, _ = select.select([sys.stdin.fileno(), self._woken], [], [], timeout)
        if self._woken in ready:
            os.read(self._woken, 4096)
        return sys.stdin.fileno() in ready

    def _wake(self) -> None:
        with suppress(BlockingIOError):  # it is awake already
            os.write(self._waker, b"\0")

    # --- drawing

    def _draw(self, screen: curses.window) -> None:
        size = self._size(screen)
        now = time.time()
        news = self._feed.news
        self._panels = self._make_panels(now, news)
        screen.erase()
        for number, line in enumerate(picture(news, self._ui, self._panels, size, now)):
            column = 0
            for segment in line:
                try:
                    screen.addstr(number, column, segment.text, self._look(segment.look))
                except curses.error:
                    break  # the last place of the last line: it is drawn, but the cursor has no place after it
                column = screen.getyx()[1]
        screen.refresh()

    def _make_panels(self, now: float, news: News | None = None) -> dict[str, Panel]:
        answers = (news or self._feed.news).answers
        if answers is None:
            return {}
        ui = self._ui
        return panels(answers, now, filter_text=ui.filter_text, orders=ui.orders, plain=self._plain)

    def _size(self, screen: curses.window) -> ScreenSize:
        lines, columns = screen.getmaxyx()
        try:
            terminal = os.get_terminal_size(sys.stdout.fileno())
        except OSError:
            return ScreenSize(columns, lines, self._plain)
        if (terminal.columns, terminal.lines) != (columns, lines) and min(terminal) > 0:
            curses.resizeterm(terminal.lines, terminal.columns)
            screen.clear()
            lines, columns = screen.getmaxyx()
        return ScreenSize(columns, lines, self._plain)

    def _look(self, look: str) -> int:
        if look not in self._looks:
            self._looks[look] = self._attribute_of(look)
        return self._looks[look]

    def _attribute_of(self, look: str) -> int:
        """Turn the parameters of SGR to what curses calls attributes."""
        attributes = curses.A_NORMAL
        for code in look.split(";"):
            if code in _ATTRIBUTES:
                attributes |= _ATTRIBUTES[code]
            elif self._colour and curses.has_colors() and code.isdecimal():
                number = int(code) - 30
                _quietly(lambda number=number: curses.init_pair(number, number, -1))  # type: ignore[misc]
                attributes |= curses.color_pair(number)
        return attributes

    # --- what keys ask for

    def _prepare_screen(self) -> None:
        if self._ui.screen == GRID and not self._feed.wants_hour:
            self._feed.wants_hour = True
            self._feed.refresh()
        self._feed.wants_hour = self._ui.screen == GRID

    def _carry_out(self, effect: Effect, screen: curses.window) -> None:
        if isinstance(effect, Do) and effect.action.do is None:
            _on_the_terminal(effect.action.command(effect.target, effect.typed) or (), screen)
        elif self._is_working:
            self._ui = self._ui._replace(message="the command before is still under way")
        else:
            self._is_working = True
            message = "asking the daemon"
            self._ui = self._ui._replace(message=message)
            threading.Thread(target=self._work, args=(effect,), daemon=True, name="action").start()

    def _work(self, effect: Effect) -> None:
        """Carry out a call in a thread of its own; the result changes what is shown."""
        change = self._result(effect)
        self._results.put(change)
        self._is_working = False
        self._feed.refresh()
        self._wake()

    def _result(self, effect: Effect) -> Callable[[Ui], Ui]:
        try:
            if isinstance(effect, Explain):
                lines = tuple(story(self._client, effect.target, whole=effect.whole))
                title = f"gpushare why {effect.target.name}"
                return lambda ui: ui._replace(screen=TEXT, lines=lines, title=title, message="", scroll=0)
            assert isinstance(effect, Do)
            assert effect.action.do is not None, "others run on the terminal"
            sentence = effect.action.do(self._client, effect.target, effect.typed)
        except GpushareError as error:
            sentence = f"{error.message}; {error.hint}" if error.hint else error.message
        return lambda ui: ui._replace(message=sentence)


_ATTRIBUTES = {"1": curses.A_BOLD, "2": curses.A_DIM, "7": curses.A_REVERSE}


class _Signals:
    """Wake the program when the terminal's size changes, and leave the terminal in order at its end."""

    def __init__(self, waker: int) -> None:
        self._waker = waker

    def __enter__(self) -> None:
        signal.set_wakeup_fd(self._waker, warn_on_full_buffer=False)
        signal.signal(signal.SIGWINCH, _nothing)
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, _leave)

    def __exit__(self, *_: object) -> None:
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGWINCH, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)


def _nothing(number: int, frame: FrameType | None) -> None:
    """Exist, so that the signal wakes the program through the pipe."""


def _leave(number: int, frame: FrameType | None) -> None:  # noqa: ARG001 - a handler's signature
    raise SystemExit(ENDED_BY_SIGNAL + number)


def _quietly(work: Callable[[], object]) -> None:
    """Ask the terminal for something that not every terminal can do."""
    with suppress(curses.error):
        work()


def _read_keys(screen: curses.window) -> list[str]:
    """Return the keys that were pressed since the last call."""
    keys: list[str] = []
    while True:
        try:
            key = screen.get_wch()
        except curses.error:
            return keys
        name = _CHARACTERS.get(key, key) if isinstance(key, str) else _KEYS.get(key, "")
        if name:
            keys.append(name)


def _on_the_terminal(command: Sequence[str], screen: curses.window) -> None:
    """Run a command of gpushare's in the place of the picture, and wait for a key before the picture is back."""
    from gpushared.cli.result import run_as_child

    own = len(sys.argv) - 1
    program = [sys.executable, *sys.orig_argv[1 : len(sys.orig_argv) - own]]
    curses.def_prog_mode()
    curses.endwin()
    print(f"$ gpushare {' '.join(command)}", flush=True)
    with suppress(KeyboardInterrupt, EOFError):
        run_as_child([*program, *command], os.environ)
        input("-- Enter: back to gpushare top --")
    curses.reset_prog_mode()
    screen.clear()
    screen.refresh()
