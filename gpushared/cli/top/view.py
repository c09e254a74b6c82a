"""Draw the picture: from the daemon's answers and what the user chose to lines of text with their looks.

Nothing here asks, waits or reads a terminal. All text passes ``clean``, so that no name moves a cursor.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from gpushared.cli import table, text
from gpushared.cli.listing import SIMULATED
from gpushared.cli.table import Segment, text_width
from gpushared.cli.top.actions import ACTIONS, target_of
from gpushared.cli.top.answers import Answers
from gpushared.cli.top.grid import LEGEND, grid
from gpushared.cli.top.keys import GRID, HELP, PANELS, Prompt, Ui, chosen_number, chosen_row
from gpushared.cli.top.panels import LEASES, QUEUE, Panel, notes
from gpushared.light import NamedTuple

Line = Sequence[Segment]

TITLE, WARNING, TROUBLE, CHOSEN, QUIET = "1", "33", "31", "7", "2"
LEAST_PANEL_LINES = 3
"""A title, the names of the columns, a row."""
MAX_NOTE_LINES = 3
LOW_SCREEN_LINES = 12
"""A screen of so few lines has no line for the commands."""
PLAIN_MARKS = str.maketrans({"…": "~", "█": "#", "▒": "=", "·": ".", "│": "|"})
MAX_LINE = 600
STORY_INDENT = 11
"""The sentences of ``gpushare why`` begin there."""
GENERAL_KEYS = (
    *(("?", "help"), ("q", "leave"), ("enter", "story"), ("w", "why"), ("tab", "panel")),
    *(("/", "filter"), ("s", "sort"), ("g", "last hour")),
)


class ScreenSize(NamedTuple):
    """Hold the size of the screen. ``plain``: it shows ASCII only."""

    width: int
    height: int
    plain: bool = False


class News(NamedTuple):
    """Hold the newest answers, and the trouble that the daemon's newest failure is."""

    answers: Answers | None = None
    trouble: str = ""


def picture(
    news: News, ui: Ui, panels: Mapping[str, Panel], size: ScreenSize, now: float
) -> list[list[Segment]]:
    """Return exactly as many lines as the screen has, none wider than it."""
    above = _header(news, size, now)
    below = _footer(ui, panels, size)
    room = size.height - len(above) - len(below)
    if ui.screen != PANELS:
        middle = _other_screen(news.answers, ui, size.width)
    elif news.answers is None:
        middle = [[Segment("trying again" if news.trouble else "asking the daemon")]]
    else:
        middle = _panels(ui, panels, size.width, room)
    middle = [*middle[: max(0, room)], *([[]] * max(0, room - len(middle)))]
    lines = [*above, *middle, *below][: size.height]
    return [cut(clean(line, plain=size.plain), size.width) for line in lines]


def whole_picture(
    news: News, panels: Mapping[str, Panel], size: ScreenSize, now: float
) -> list[list[Segment]]:
    """Return the picture with all rows, and without keys."""
    lines = _header(news, size, now, all_notes=True)
    for panel in panels.values():
        lines += _panel(panel, -1, size.width, 2 + len(panel.rows), is_focused=False)
    return [cut(clean(line, plain=size.plain), size.width) for line in lines]


# --- above and below -------------------------------------------------------------------------------------


def _header(news: News, size: ScreenSize, now: float, *, all_notes: bool = False) -> list[Line]:
    answers = news.answers
    if answers is None:
        trouble = [[Segment(news.trouble, TROUBLE)]] if news.trouble else []
        return [[Segment("gpushare top", TITLE)], *trouble]
    age = f"{text.span(now - answers.at)} old"
    left = [Segment("gpushare top", TITLE), Segment("  " + "  ".join(filter(None, _facts(answers))))]
    lines: list[Line] = [_with_right(left, Segment(age, TROUBLE if news.trouble else ""), size.width)]
    lines += [[Segment(SIMULATED, WARNING)]] if answers.simulated else []
    if news.trouble:
        lines.append([Segment(f"no answer for {text.span(now - answers.at)}: {news.trouble}", TROUBLE)])
    note_lines = [
        line for note in notes(answers, now) for line in _wrapped(note, size.width, indent=2, look=TROUBLE)
    ]
    if not all_notes and len(note_lines) > MAX_NOTE_LINES:
        more = [Segment("and more: gpushare gpus", TROUBLE)]
        note_lines = [*note_lines[: MAX_NOTE_LINES - 1], more]
    lines += note_lines
    return lines if all_notes else lines[: max(1, size.height // 3)]


def _facts(answers: Answers) -> list[str]:
    gpus, leases = len(answers.gpus.gpus), answers.leases.leases
    waiting = sum(lease.waiting is not None for lease in leases)
    where = answers.gpus.node
    if answers.nodes is not None:
        where = f"pool {answers.nodes.pool}" if answers.nodes.pool else "pool"
    return [where, f"{_counted(gpus, 'GPU')}, {_counted(len(leases) - waiting, 'lease')}, {waiting} waiting"]


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


def _with_right(left: Sequence[Segment], right: Segment, width: int) -> Line:
    """Put a text at the right end of a line; the text at the left is cut to make room."""
    room = width - text_width(right.text) - 2
    if room < 0:
        return cut(left, width)
    beginning = cut(left, room)
    space = width - text_width(right.text) - sum(text_width(segment.text) for segment in beginning)
    return [*beginning, Segment(" " * space), right]


def _footer(ui: Ui, panels: Mapping[str, Panel], size: ScreenSize) -> list[Line]:
    if ui.prompt is not None:
        return [_question(ui.prompt)]
    if ui.screen != PANELS:
        return [_keys((("up down", "move"), ("q Esc", "back")), size.width)]
    actions = _actions(ui, panels)
    if size.height <= LOW_SCREEN_LINES:
        keys = [*GENERAL_KEYS[:2], *((key, command[0]) for key, command in actions), *GENERAL_KEYS[2:]]
        return [[Segment(ui.message, WARNING)] if ui.message else _keys(keys, size.width)]
    commands = [Segment(ui.message, WARNING)] if ui.message else _commands(actions, size.width)
    return [commands, _keys(GENERAL_KEYS, size.width)]


def _question(prompt: Prompt) -> Line:
    if prompt.action is None:
        return [Segment("show only: ", TITLE), Segment(f"{prompt.typed}_"), Segment("  Enter  Esc", QUIET)]
    assert prompt.target is not None, "a question about an action names its target"
    command = " ".join(prompt.action.command(prompt.target, prompt.typed or "") or ())
    if prompt.typed is not None:
        question = (
            f"{prompt.action.name} {prompt.target.name} of {prompt.target.owner} {prompt.action.asks}: "
        )
        return [
            Segment(question, TITLE),
            Segment(f"{prompt.typed}_"),
            Segment(f"  gpushare {command}  Enter  Esc", QUIET),
        ]
    return [Segment(f"gpushare {command}", TITLE), Segment(f"  of {prompt.target.owner}: y or n? ")]


def _actions(ui: Ui, panels: Mapping[str, Panel]) -> list[tuple[str, Sequence[str]]]:
    """Return the keys that do something to the chosen row, each with its command."""
    target = target_of(chosen_row(ui, panels)) if panels else None
    if target is None:
        return []
    return [
        (action.key, command) for action in ACTIONS if (command := action.command(target, "")) is not None
    ]


def _keys(keys: Iterable[tuple[str, str]], width: int) -> Line:
    """Return as many keys as fit, none of them in part."""
    line: list[Segment] = []
    room = width
    for key, label in keys:
        room -= len(key) + 1 + len(label) + 2
        if room >= -2:  # noqa: PLR2004 - the two spaces at the end need no room
            line += [Segment(key, TITLE), Segment(f" {label}  ")]
    return line


def _commands(actions: Sequence[tuple[str, Sequence[str]]], width: int) -> Line:
    """Return a line with the command that each key stands for."""
    line = _keys(((key, " ".join(command)) for key, command in actions), width)
    program = Segment("gpushare  ", QUIET)
    has_room = text_width(program.text) + sum(text_width(segment.text) for segment in line) <= width
    return [program, *line] if line and has_room else line


# --- panels ----------------------------------------------------------------------------------------------


def _panels(ui: Ui, panels: Mapping[str, Panel], width: int, room: int) -> list[Line]:
    needs = {name: 2 + len(panel.rows) if panel.rows else 1 for name, panel in panels.items()}
    lines: list[Line] = []
    for name, height in shared_out(needs, ui.focus, room).items():
        panel, is_focused = panels[name], name == ui.focus
        number = chosen_number(ui, panel)
        lines += _panel(panel, number, width, height, is_focused=is_focused, filter_text=ui.filter_text)
    return lines


def shared_out(needs: Mapping[str, int], focus: str, room: int) -> dict[str, int]:
    """Share the lines of the screen among panels that need so many; a panel without room is left out.

    Each gets its part of the screen if it needs it; the remaining lines go to the panel in focus first.
    """
    order = [focus, *(name for name in needs if name != focus)]
    heights = dict.fromkeys(needs, 0)
    free = room
    for name in order:
        least = min(needs[name], LEAST_PANEL_LINES)
        if least <= free or name == focus:
            heights[name] = max(0, min(least, free))
            free -= heights[name]
    part = room // max(1, len(needs))
    for most in (part, room):
        for name in order:
            if heights[name]:
                more = max(0, min(needs[name], most) - heights[name])
                heights[name] += min(more, free)
                free -= min(more, free)
    return {name: lines for name, lines in heights.items() if lines}


def _panel(
    panel: Panel, chosen: int, width: int, height: int, *, is_focused: bool, filter_text: str = ""
) -> list[Line]:
    room = max(0, height - 2)
    first = max(0, min(chosen - room // 2, len(panel.rows) - room))
    title = _title(panel, first, room, filter_text if panel.name in {LEASES, QUEUE} else "")
    lines: list[Line] = [[Segment(title, f"{TITLE};{CHOSEN}" if is_focused else TITLE)]]
    if not panel.rows:
        return lines[:height]
    cells = [row.cells for row in panel.rows]
    names, *rows = table.segments(
        panel.columns,
        cells,
        headers=True,
        width=width - 1,
        drops=panel.drops,
        shown=slice(first, first + room),
    )
    lines.append([Segment(" "), *names])
    for number, row in enumerate(rows, start=first):
        if number == chosen and is_focused:
            plain_row = "".join(segment.text for segment in row)
            lines.append([Segment(f">{plain_row}".ljust(width), CHOSEN)])
        else:
            lines.append([Segment(" "), *row])
    return lines[:height]


def _title(panel: Panel, first: int, room: int, filter_text: str) -> str:
    count = len(panel.rows)
    if not count and not panel.total:
        return f" {panel.name.upper()}: {panel.empty} "
    facts = [f"{count} of {panel.total} with {filter_text!r}" if filter_text else str(count)]
    facts += [f"{first + 1}-{min(count, first + room)} shown"] if 0 < room < count else []
    facts += [f"by {panel.order}"] if panel.order else []
    return f" {panel.name.upper()} {', '.join(facts)} "


# --- other screens ---------------------------------------------------------------------------------------


def _other_screen(answers: Answers | None, ui: Ui, width: int) -> list[Line]:
    lines: list[Line]
    if ui.screen == HELP:
        lines = [[Segment(line)] for line in ui.lines]
        title = "KEYS"
    elif ui.screen == GRID:
        title = "THE LAST HOUR"
        if answers is None or answers.recent is None:
            trouble = "" if answers is None else answers.recent_trouble
            lines = [[Segment(trouble or "asking the daemon")]]
        else:
            lines = [*grid(answers.recent, width), [], *_wrapped(LEGEND, width, indent=2, look=QUIET)]
    else:
        title = ui.title
        lines = [line for sentence in ui.lines for line in _wrapped(sentence, width, STORY_INDENT)]
    return [[Segment(f" {title} ", f"{TITLE};{CHOSEN}")], *lines[ui.scroll :]]


def _wrapped(line: str, width: int, indent: int, look: str = "") -> list[Line]:
    """Break a long line, so that a sentence is there to its end; what follows is indented."""
    shown = text.printable(line[:MAX_LINE])
    lines: list[Line] = []
    while text_width(shown) > width > 2 * indent:
        fitting = "".join(segment.text for segment in cut([Segment(shown)], width))
        end = fitting.rfind(" ", indent + 1)
        end = len(fitting) if end < 0 else end
        lines.append([Segment(shown[:end], look)])
        shown = " " * indent + shown[end:].lstrip()
    return [*lines, [Segment(shown, look)]]


# --- pieces of lines -------------------------------------------------------------------------------------


def clean(line: Iterable[Segment], *, plain: bool) -> list[Segment]:
    """Return the line without characters that could do something to a terminal; in ASCII where it must be."""
    return [_cleaned(segment, plain=plain) for segment in line]


def _cleaned(segment: Segment, *, plain: bool) -> Segment:
    if segment.text.isprintable() and (segment.text.isascii() or not plain):
        return segment
    shown = text.printable(segment.text)
    return Segment(_ascii(shown) if plain else shown, segment.look)


def _ascii(shown: str) -> str:
    """Put marks in the place of other characters, as wide as they are."""
    if shown.isascii():
        return shown
    return "".join(c if c.isascii() else "?" * text_width(c) for c in shown.translate(PLAIN_MARKS))


def cut(line: Iterable[Segment], width: int) -> list[Segment]:
    """Return the beginning of a line, at most so wide."""
    pieces: list[Segment] = []
    room = width
    for segment in line:
        wide = text_width(segment.text)
        if wide <= room:
            pieces.append(segment)
            room -= wide
            continue
        return [*pieces, segment._replace(text=table.beginning(segment.text, room))]
    return pieces


def as_text(lines: Iterable[Line], *, colour: bool) -> str:
    """Return the picture for a stream."""
    text_lines = (
        "".join(table.paint(segment.text, segment.look if colour else None) for segment in line).rstrip()
        for line in lines
    )
    return "".join(f"{line}\n" for line in text_lines)
