"""Name the settings in which two configurations differ, and those of them that only a restart puts into use."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from gpushared.config.kinds import keys_of
from gpushared.config.model import PRESETS, Config
from gpushared.config.queue_rules import PROJECTS
from gpushared.config.schema import NODE


def changed_settings(old: Config, new: Config) -> tuple[str, ...]:
    """Return the settings that differ, as ``queue.max_queued``; of projects and presets only their names."""
    return (
        *_changed_keys(old, new, at_start=False),
        *_changed_keys(old, new, at_start=True),
        *_changed_names(PROJECTS, old.projects, new.projects),
        *_changed_names(PRESETS, old.presets, new.presets),
    )


def changed_at_start(old: Config, new: Config) -> tuple[str, ...]:
    """Return the settings that differ and that a daemon reads at its start only."""
    return tuple(_changed_keys(old, new, at_start=True))


def _changed_keys(old: Config, new: Config, *, at_start: bool) -> Iterator[str]:
    for section, cls in NODE.sections.items():
        field = section.replace(".", "_")
        before, after = getattr(old, field), getattr(new, field)
        for key in keys_of(cls).values():
            differs = getattr(before, key.attribute) != getattr(after, key.attribute)
            if differs and key.at_start is at_start:
                yield f"{section}.{key.name}"


def _changed_names(table: str, old: Mapping[str, object], new: Mapping[str, object]) -> Iterator[str]:
    for name in dict.fromkeys((*old, *new)):
        if old.get(name) != new.get(name):
            yield f"{table}.{name}"
    if list(old) != list(new) and dict(old) == dict(new):
        yield table  # only the order differs: a user of several projects counts to the first
