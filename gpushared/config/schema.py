"""Say which tables a configuration has, and which names users may choose in their paths."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from gpushared.config.idle import IDLE, QUIET, IdleConfig, QuietTimesConfig
from gpushared.config.model import PRESETS, Config, Preset
from gpushared.config.notify import NOTIFY, ProjectNotifyConfig
from gpushared.config.queue_rules import MODEL_NAME, MODELS, PROJECTS, ProjectConfig, QuotaConfig
from gpushared.domain.leases.project_settings import PROJECT_NAME_HINT, is_project_name

_PRESET_NAME = re.compile(r"[a-z0-9][a-z0-9_.-]{0,31}")
POOL_PREFIX = "GPUSHARED_POOL_"


@dataclass(frozen=True, slots=True)
class NameRule:
    """Say which names users may choose in a table's path, as in ``[presets.small]``."""

    noun: str
    fits: Callable[[str], bool]
    hint: str
    example: str = ""
    """A hint on how to write such a table."""
    placeholder: str = "NAME"
    """The reference page has this word in place of a name."""


TablePath = tuple[str | NameRule, ...]
"""The path of all tables whose names fit the rules in it."""


def sections_in(config: type) -> dict[str, type]:
    """Return the sections that are fields of a configuration: ``idle_quiet`` is ``[idle.quiet]``."""
    factories: dict[str, Any] = {field.name: field.default_factory for field in fields(config)}
    return {name.replace("_", "."): cls for name, cls in factories.items() if cls is not dict}


@dataclass(frozen=True, slots=True)
class ConfigSchema:
    """List a configuration's tables: ``sections`` by their titles, and ``named`` by paths with names in them.

    ``prefix`` is that of environment variables, without those that begin with one of ``foreign``.
    """

    path: Path
    sections: Mapping[str, type]
    named: Mapping[TablePath, type]
    prefix: str
    page: str
    show: str
    """The hint for a mistake that has none of its own."""
    foreign: tuple[str, ...] = ()
    removed: Mapping[str, str] = field(default_factory=dict)
    """Sections of older versions, each with a hint on the rule that holds now."""

    @property
    def tables(self) -> dict[TablePath, type]:
        return {tuple(title.split(".")): cls for title, cls in self.sections.items()} | dict(self.named)

    def path_of(self, at: tuple[str, ...]) -> TablePath | None:
        """Return the path in ``tables`` that leads to the same table."""
        same = (path for path in self.tables if len(path) == len(at) and _begins_with(path, at))
        return next(same, None)

    def has_tables_at(self, at: tuple[str, ...]) -> bool:
        """Return True if a path leads to a table or to tables of tables."""
        return any(_begins_with(path, at) for path in self.tables)

    def name_rule(self, table: str) -> NameRule | None:
        """Return the rule for the names that users choose below a table at the top of the file."""
        rules = (path[1] for path in self.named if path[0] == table)
        return next((rule for rule in rules if isinstance(rule, NameRule)), None)

    def is_section(self, at: tuple[str, ...]) -> bool:
        """Return True if a path leads to a section, or to all tables with names that users choose."""
        return at in self.tables or (len(at) == 1 and self.name_rule(*at) is not None)


def _begins_with(path: TablePath, at: tuple[str, ...]) -> bool:
    same = (isinstance(part, NameRule) or part == name for part, name in zip(path, at, strict=False))
    return len(path) >= len(at) and all(same)


PRESET_NAME = NameRule(
    "preset",
    lambda name: _PRESET_NAME.fullmatch(name) is not None,
    "use up to 32 small letters, digits and _ . -",
    f'write [{PRESETS}.small] and below it gpu = "0.25"',
)
PROJECT_NAME = NameRule(
    "project", is_project_name, PROJECT_NAME_HINT, f"write [{PROJECTS}.vision] and below it guaranteed = 2"
)
_MODEL = NameRule(
    "GPU model",
    lambda name: MODEL_NAME.fullmatch(name) is not None,
    "`gpushare gpus` shows the models' names",
    placeholder='"MODEL"',
)
PROJECT_TABLES: Mapping[TablePath, type] = {
    (PROJECTS, PROJECT_NAME): ProjectConfig,
    (PROJECTS, PROJECT_NAME, MODELS, _MODEL): QuotaConfig,
}
NODE = ConfigSchema(
    path=Path("/etc/gpushared/config.toml"),
    sections=sections_in(Config),
    named={
        **PROJECT_TABLES,
        (PROJECTS, PROJECT_NAME, IDLE): IdleConfig,
        (PROJECTS, PROJECT_NAME, NOTIFY): ProjectNotifyConfig,
        (PROJECTS, PROJECT_NAME, IDLE, QUIET): QuietTimesConfig,
        (PRESETS, PRESET_NAME): Preset,
    },
    prefix="GPUSHARED_",
    page="docs/reference/configuration.md",
    show="see docs/reference/configuration.md for all settings",
    # Without the variables of the node's own section [pool]: GPUSHARED_POOL__REALM.
    foreign=tuple(f"{POOL_PREFIX}{letter}" for letter in "ABCDEFGHIJKLMNOPQRSTUVWXYZ"),
)
