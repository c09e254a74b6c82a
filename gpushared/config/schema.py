"""List the settings of a configuration, apart for the daemon and the coordinator."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from gpushared.config.model import PRESETS, SECTIONS, TABLES


@dataclass(frozen=True, slots=True)
class Named:
    """Describe the entries in a table of sections: ``[presets.small]``."""

    what: str
    fits: Callable[[str], bool]
    fits_hint: str
    example: str


@dataclass(frozen=True, slots=True)
class ConfigSchema:
    """List a configuration's sections. ``tables`` hold sections that users name, by the rules in ``named``.

    ``prefix`` is that of environment variables, without those that begin with one of ``foreign``.
    """

    path: Path
    sections: Mapping[str, type]
    tables: Mapping[str, type]
    named: Mapping[str, Named]
    prefix: str
    page: str
    show: str
    """A sentence on how to see the settings that hold now."""
    foreign: tuple[str, ...] = ()

    def is_section(self, at: tuple[str, ...]) -> bool:
        """Return True if a path leads to a section, or to all of a table's."""
        return ".".join(at) in self.sections or (len(at) == 1 and at[0] in self.tables)


_PRESET_NAME = re.compile(r"[a-z0-9][a-z0-9_.-]{0,31}")
PRESET_NAMED = Named(
    "preset",
    lambda name: _PRESET_NAME.fullmatch(name) is not None,
    "use up to 32 small letters, digits and _ . -",
    f'write [{PRESETS}.small] and below it gpu = "0.25"',
)
POOL_PREFIX = "GPUSHARED_POOL_"
NODE = ConfigSchema(
    path=Path("/etc/gpushared/config.toml"),
    sections=SECTIONS,
    tables=TABLES,
    named={PRESETS: PRESET_NAMED},
    prefix="GPUSHARED_",
    page="docs/reference/configuration.md",
    show="see `gpushare config show` for what holds now",
    # Without the variables of the node's own section [pool]: GPUSHARED_POOL__REALM.
    foreign=tuple(f"{POOL_PREFIX}{letter}" for letter in "ABCDEFGHIJKLMNOPQRSTUVWXYZ"),
)
