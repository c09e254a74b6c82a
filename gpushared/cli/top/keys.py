"""Decide what each key does: from what is shown and a key to what is shown next, and what is to be done."""

from __future__ import annotations

from collections.abc import Mapping

from gpushared.cli.top.actions import ACTIONS, ActionTarget, KeyAction, target_of
from gpushared.cli.top.panels import GPUS, LEASES, ORDERS, Panel, PanelRow
from gpushared.light import NamedTuple

PAGE_ROWS = 10
MAX_TYPED = 60
PANELS, GRID, HELP, TEXT = "panels", "grid", "help", "text"
HELP_LINES = (
    "up down  j         choose a row; page up, page down, home and end go farther",
    "tab                go to the next panel, shift-tab to the one before",
    "enter              the story of the lease, as gpushare why",
    "w                  why it waits, or what it holds: the same without the story",
    "l                  the container's output, as gpushare logs; Ctrl-C comes back",
    "k                  stop the lease, after a question",
    "p                  pause the lease, or resume it, after a question",
    "e                  give the lease more time, after asking how much",
    "/                  show only leases and requests with a word; Esc shows all",
    "s                  sort the panel by its next order",
    "g                  the last hour: who held most of each GPU in each ten minutes",
    "?                  this page",
    "q  Ctrl-C          leave; Ctrl-Z suspends",
    "",
    "HELD AND USED: █ used, ▒ held by leases and not used, · free.",
    "TREND: the GPU's use in each of the last twenty minutes.",
    "The line at the bottom names the command that a key stands for.",
)


class Prompt(NamedTuple):
    """Hold a question. Without an action the answer is the filter; ``typed`` is None for yes or no."""

    action: KeyAction | None
    target: ActionTarget | None
    typed: str | None


class Ui(NamedTuple):
    """Hold what the user chose. The chosen row of each panel is kept by its key, and by its number."""

    screen: str = PANELS
    focus: str = LEASES
    chosen_keys: Mapping[str, str] = {}
    chosen_numbers: Mapping[str, int] = {}
    orders: Mapping[str, int] = {}
    filter_text: str = ""
    prompt: Prompt | None = None
    message: str = ""
    title: str = ""
    lines: tuple[str, ...] = ()
    scroll: int = 0


class Leave:
    """Leave the program."""


class Explain(NamedTuple):
    """Ask the daemon for the story."""

    target: ActionTarget
    whole: bool


class Do(NamedTuple):
    """Carry out an action."""

    action: KeyAction
    target: ActionTarget
    typed: str


Effect = Leave | Explain | Do


def chosen_number(ui: Ui, panel: Panel) -> int:
    """Return the number of the chosen row: by its key, else the row that is now in its place; -1 for none."""
    chosen_key = ui.chosen_keys.get(panel.name)
    for number, row in enumerate(panel.rows):
        if row.key == chosen_key:
            return number
    return min(ui.chosen_numbers.get(panel.name, 0), len(panel.rows) - 1)


def chosen_row(ui: Ui, panels: Mapping[str, Panel]) -> PanelRow | None:
    panel = panels[ui.focus]
    number = chosen_number(ui, panel)
    return panel.rows[number] if number >= 0 else None


def press(ui: Ui, key: str, panels: Mapping[str, Panel]) -> tuple[Ui, Effect | None]:
    """Return the state after a key, and the effect that the program is to carry out."""
    if ui.prompt is not None:
        return _answer(ui, ui.prompt, key)
    ui = ui._replace(message="")
    if key == "q" and ui.screen == PANELS:
        return ui, Leave()
    if ui.screen != PANELS:
        return _read(ui, key, panels), None
    if key in _SCREEN_KEYS:
        return _open(ui, key), None
    if not panels:
        return ui, None  # the daemon has not answered yet
    return _press_on_panels(ui, key, panels)


def _press_on_panels(ui: Ui, key: str, panels: Mapping[str, Panel]) -> tuple[Ui, Effect | None]:
    if key in _MOVES:
        return _move(ui, panels[ui.focus], key), None
    if key in {"tab", "btab"}:
        names = list(panels)
        step = 1 if key == "tab" else -1
        return ui._replace(focus=names[(names.index(ui.focus) + step) % len(names)]), None
    if key == "s":
        order = (ui.orders.get(ui.focus, 0) + 1) % len(ORDERS[ui.focus])
        return ui._replace(orders={**ui.orders, ui.focus: order}), None
    if key == "/":
        return ui._replace(prompt=Prompt(None, None, ui.filter_text)), None
    if key == "esc":
        return ui._replace(filter_text=""), None
    return _act(ui, key, target_of(chosen_row(ui, panels)))


_SCREEN_KEYS = {"?": HELP, "g": GRID}
_MOVES = {
    "up": -1,
    "down": 1,
    "j": 1,
    "page up": -PAGE_ROWS,
    "page down": PAGE_ROWS,
    "home": -(10**6),
    "end": 10**6,
}


def _move(ui: Ui, panel: Panel, key: str) -> Ui:
    if not panel.rows:
        return ui
    number = max(0, min(chosen_number(ui, panel) + _MOVES[key], len(panel.rows) - 1))
    chosen = {**ui.chosen_keys, panel.name: panel.rows[number].key}
    return ui._replace(chosen_keys=chosen, chosen_numbers={**ui.chosen_numbers, panel.name: number})


def _open(ui: Ui, key: str) -> Ui:
    screen = _SCREEN_KEYS[key]
    return ui._replace(screen=screen, lines=HELP_LINES if screen == HELP else (), scroll=0)


def _read(ui: Ui, key: str, panels: Mapping[str, Panel]) -> Ui:
    """Move in a text, the help or the grid, or leave it."""
    if key in _MOVES:
        rows = len(panels[GPUS].rows) if ui.screen == GRID and panels else len(ui.lines)
        return ui._replace(scroll=max(0, min(ui.scroll + _MOVES[key], rows - 1)))
    if key in _SCREEN_KEYS and _SCREEN_KEYS[key] != ui.screen:
        return _open(ui, key)
    return ui._replace(screen=PANELS, lines=(), scroll=0)


def _act(ui: Ui, key: str, target: ActionTarget | None) -> tuple[Ui, Effect | None]:
    action = next((action for action in ACTIONS if action.key == key), None)
    if action is None and key not in {"enter", "w"}:
        return ui, None
    if target is None:
        return ui._replace(message="choose a lease that commands on this machine can name"), None
    if action is None:
        return ui, Explain(target, whole=key == "enter")
    if action.command(target, "") is None:
        return ui._replace(message=f"{action.name}: not for {target.name}, which is {target.state}"), None
    if action.do is None:
        return ui, Do(action, target, "")
    return ui._replace(prompt=Prompt(action, target, action.usual if action.asks else None)), None


def _answer(ui: Ui, prompt: Prompt, key: str) -> tuple[Ui, Effect | None]:
    """Answer the open question by a key."""
    if key == "esc":
        return ui._replace(prompt=None, filter_text="" if prompt.action is None else ui.filter_text), None
    if prompt.typed is None:
        if key not in {"y", "Y"}:
            return ui._replace(prompt=None, message="nothing was done"), None
        return _confirm(ui, prompt, "")
    if key == "enter":
        if prompt.action is None:
            return ui._replace(prompt=None), None
        return _confirm(ui, prompt, prompt.typed.strip())
    if key == "backspace":
        typed = prompt.typed[:-1]
    elif len(key) == 1 and key.isprintable() and len(prompt.typed) < MAX_TYPED:
        typed = prompt.typed + key
    else:
        return ui, None
    ui = ui._replace(prompt=prompt._replace(typed=typed))
    return ui._replace(filter_text=typed) if prompt.action is None else ui, None


def _confirm(ui: Ui, prompt: Prompt, typed: str) -> tuple[Ui, Effect | None]:
    assert prompt.action is not None
    assert prompt.target is not None, "a question about an action names its target"
    if prompt.action.asks and not typed:
        return ui._replace(prompt=None, message="nothing was done"), None
    return ui._replace(prompt=None), Do(prompt.action, prompt.target, typed)
