"""Show a configuration as text: the settings that hold now, and the reference of all settings."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from gpushared.config.idle import IDLE, QUIET
from gpushared.config.kinds import Key, keys_of, toml_string
from gpushared.config.load import Loaded
from gpushared.config.model import PRESETS
from gpushared.config.notify import NOTIFY
from gpushared.config.queue_rules import MODELS, PROJECTS
from gpushared.config.schema import NODE, ConfigSchema, NameRule, TablePath

_IDLE_OF_PROJECTS = """\
## `[projects.NAME.idle]` and `[projects.NAME.idle.quiet]`

Idle leases of one project: the keys of `[idle]`, and those of `[idle.quiet]` but `hours` and `days`,
which are the same for everybody. What is not said here is as it is there. An `action` here holds for
all classes that are not named beside it.
"""


@dataclass(frozen=True, slots=True)
class ShownSetting:
    """Hold one setting as it is now; ``value`` is TOML, ``table`` the section in its parts."""

    table: tuple[str, ...]
    name: str
    value: str
    origin: str

    @property
    def section(self) -> str:
        return ".".join(self.table)

    @property
    def path(self) -> str:
        return f"{self.section}.{self.name}"


def settings(loaded: Loaded) -> tuple[ShownSetting, ...]:
    """Return every setting, in the order of the reference; for projects and presets only those they set."""
    return tuple(_settings(loaded))


def to_toml(loaded: Loaded, *, origins: bool = False) -> str:
    """Return the whole configuration as a file that would give it again; ``origins`` adds comments.

    The comments tell each value's origin.
    """
    parts: list[str] = []
    table: tuple[str, ...] = ()
    for setting in settings(loaded):
        if setting.table != table:
            table = setting.table
            parts.append(f"{'' if not parts else chr(10)}[{_header(table)}]")
        comment = f"  # {_on_one_line(setting.origin)}" if origins else ""
        parts.append(f"{setting.name} = {setting.value}{comment}")
    return "\n".join(parts) + "\n"


def reference(schema: ConfigSchema = NODE) -> str:
    """Return the tables of the reference page, in Markdown.

    Sections with the same keys share a table, and those that a node has too are only named.
    """
    parts = []
    sections = _titles(schema)
    of_nodes = [] if schema is NODE else _titles(NODE)
    own = [section for section in sections if section not in of_nodes]
    for _, group in groupby(own, key=lambda section: _rows_without_defaults(section[1])):
        parts.append(_section(dict(group)))
        if schema is NODE and parts[-1].startswith(f"## `[{PROJECTS}.NAME]`"):
            parts.append(_IDLE_OF_PROJECTS)
    if own != sections:
        shared = ", ".join(f"`[{title}]`" for title, _ in sections if (title, _) not in own)
        parts.append(f"## {shared}\n\n{_AS_FOR_NODES}")
    return "\n".join(parts)


_AS_FOR_NODES = "These sections have the keys and defaults of [a node's configuration](configuration.md).\n"


def _section(classes: Mapping[str, type]) -> str:
    """Return the headings and the table of sections that have the same keys."""
    lines = [f"## {', '.join(f'`[{title}]`' for title in classes)}", ""]
    if len(classes) == 1:
        lines += [_first_line(cls) for cls in classes.values()]
    else:
        lines += [f"- `{title}`: {_first_line(cls)}" for title, cls in classes.items()]
        lines += ["", "Where defaults differ, they stand in this order."]
    lines += ["", "| key | value | default | meaning |", "|---|---|---|---|"]
    keys = zip(*(keys_of(cls).values() for cls in classes.values()), strict=True)
    for _, group in groupby(keys, key=lambda same: _without_name(same[0])):
        named = list(group)
        lines.append(_row([same[0].name for same in named], named[0]))
    return "\n".join(lines) + "\n"


def _rows_without_defaults(cls: type) -> tuple[tuple[str, str, str], ...]:
    return tuple((key.name, key.kind.description, key.doc) for key in keys_of(cls).values())


def _without_name(key: Key) -> tuple[str, str, str]:
    """Return what keys have in common whose rows differ in their names only."""
    return key.kind.description, key.kind.write(key.default), key.doc.replace(f"`{key.name}`", "")


def _titles(schema: ConfigSchema) -> list[tuple[str, type]]:
    """Return the tables with their titles, without a project's idle leases, which have a text of their own."""
    named = {_title(path): cls for path, cls in schema.named.items() if IDLE not in path}
    return [*schema.sections.items(), *named.items()]


def _title(path: TablePath) -> str:
    return ".".join(part.placeholder if isinstance(part, NameRule) else part for part in path)


def _settings(loaded: Loaded) -> Iterator[ShownSetting]:
    for section, cls in NODE.sections.items():
        values = getattr(loaded.config, section.replace(".", "_"))
        for key in keys_of(cls).values():
            yield _setting(loaded, tuple(section.split(".")), key, getattr(values, key.attribute))
    for name, project in loaded.config.projects.items():
        yield from _set(loaded, (PROJECTS, name), project)
        for model, quota in project.models.items():
            yield from _set(loaded, (PROJECTS, name, MODELS, model), quota)
        if project.idle is not None:
            yield from _set(loaded, (PROJECTS, name, IDLE), project.idle)
        if project.quiet is not None:
            yield from _set(loaded, (PROJECTS, name, IDLE, QUIET), project.quiet)
        if project.notify is not None:
            yield from _set(loaded, (PROJECTS, name, NOTIFY), project.notify)
    for name, preset in loaded.config.presets.items():
        yield from _set(loaded, (PRESETS, name), preset)


def _set(loaded: Loaded, table: tuple[str, ...], values: object) -> Iterator[ShownSetting]:
    """Yield the settings that somebody set in a named section."""
    for key in keys_of(type(values)).values():
        if ".".join((*table, key.name)) in loaded.origins:
            yield _setting(loaded, table, key, getattr(values, key.attribute))


def _setting(loaded: Loaded, table: tuple[str, ...], key: Key, value: object) -> ShownSetting:
    origin = loaded.origin(".".join((*table, key.name)))
    return ShownSetting(table, key.name, key.kind.write(value), origin)


def _header(table: tuple[str, ...]) -> str:
    """Quote names that hold dots or spaces, so that they are not read as sections within sections."""
    return ".".join(part if re.fullmatch(r"[A-Za-z0-9_-]+", part) else toml_string(part) for part in table)


def _on_one_line(text: str) -> str:
    return "".join(char if char.isprintable() else "?" for char in text)


def _first_line(cls: type) -> str:
    return (cls.__doc__ or "").strip().splitlines()[0]


_SHORT = {
    "seconds or a duration like `90s`": "duration",
    "size like `300MiB`": "size",
    "GPUs like `2` or `1.5`": "GPUs",
    "whole number": "integer",
    "an absolute path": "path",
    "` or `": "`, `",
    "list, each `": "list of `",
    ', or `"preset"`': "",
}
"""How the page's introduction abbreviates kinds of values."""


def _row(names: Sequence[str], same: Sequence[Key]) -> str:
    """Return one row for the keys called ``names``; ``same`` is the first of them in each section."""
    description, doc = same[0].kind.description, same[0].doc
    for kind, short in _SHORT.items():
        description = description.replace(kind, short)
    description = re.sub(r", ([0-9.]+) to ([0-9.]+)", r" \1..\2", description)
    defaults = [f"`{key.kind.write(key.default)}`" for key in same]
    shown = defaults if len(set(defaults)) > 1 else defaults[:1]
    *most, last = quoted = [f"`{name}`" for name in names]
    if most:
        doc = doc.replace(quoted[0], f"{', '.join(most)} or {last}")
    if same[0].at_start:
        doc += " Read at the start only."
    return f"| {', '.join(quoted)} | {description} | {', '.join(shown)} | {doc} |"
