"""Show a configuration as text: the settings that hold now, and the reference of all settings."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from gpushared.config.idle import IDLE, QUIET
from gpushared.config.kinds import Key, keys_of, toml_string
from gpushared.config.load import NODE, ConfigSchema, Loaded
from gpushared.config.model import PRESETS, SECTIONS, attribute_of
from gpushared.config.queue_rules import (
    MODELS,
    PROJECTS,
    ProjectConfig,
    QuotaConfig,
)


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
    for one in settings(loaded):
        if one.table != table:
            table = one.table
            parts.append(f"{'' if not parts else chr(10)}[{_header(table)}]")
        comment = f"  # {_on_one_line(one.origin)}" if origins else ""
        parts.append(f"{one.name} = {one.value}{comment}")
    return "\n".join(parts) + "\n"


def reference(schema: ConfigSchema = NODE) -> str:
    """Return the tables of the reference page, in Markdown."""
    parts = []
    for title, cls in (*schema.sections.items(), *_tables(schema)):
        parts.append(f"## `[{title}]`\n\n{_first_line(cls)}\n")
        parts.append("| key | value | default | meaning |\n|---|---|---|---|")
        parts.extend(_row(key) for key in keys_of(cls).values())
        parts.append("")
        if cls is ProjectConfig and IDLE in schema.sections:
            parts.append(_IDLE_OF_PROJECTS)
    return "\n".join(parts)


def _tables(schema: ConfigSchema) -> Iterator[tuple[str, type]]:
    for name, cls in schema.tables.items():
        yield f"{name}.NAME", cls
        if cls is ProjectConfig:
            yield f'{name}.NAME.{MODELS}."MODEL"', QuotaConfig


_IDLE_OF_PROJECTS = """\
## `[projects.NAME.idle]` and `[projects.NAME.idle.quiet]`

Idle leases of one project: the keys of `[idle]`, and those of `[idle.quiet]` but `hours` and `days`,
which are the same for everybody. What is not said here is as it is there. An `action` here holds for
all classes that are not named beside it.
"""


def _settings(loaded: Loaded) -> Iterator[ShownSetting]:
    for section, cls in SECTIONS.items():
        values = getattr(loaded.config, attribute_of(section))
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


def _row(key: Key) -> str:
    return f"| `{key.name}` | {key.kind.words} | `{key.kind.write(key.default)}` | {key.doc} |"
