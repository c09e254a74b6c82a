"""A configuration as text: what holds now, and the reference of all settings."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from gpushared.config.kinds import toml_string
from gpushared.config.load import Loaded
from gpushared.config.model import PRESETS, SECTIONS, Key, Preset, attribute_of, keys_of


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting as it holds now; ``value`` is TOML."""

    section: str
    name: str
    value: str
    origin: str

    @property
    def path(self) -> str:
        return f"{self.section}.{self.name}"


def settings(loaded: Loaded) -> tuple[Setting, ...]:
    """Every setting, in the order of the reference; of presets only what they set."""
    return tuple(_settings(loaded))


def to_toml(loaded: Loaded, *, origins: bool = False) -> str:
    """The whole configuration as a file that would give it again; with ``origins`` as comments if asked."""
    parts: list[str] = []
    section = ""
    for one in settings(loaded):
        if one.section != section:
            section = one.section
            parts.append(f"{'' if not parts else chr(10)}[{_header(section)}]")
        comment = f"  # {_on_one_line(one.origin)}" if origins else ""
        parts.append(f"{one.name} = {one.value}{comment}")
    return "\n".join(parts) + "\n"


def reference() -> str:
    """The tables of the reference page, in Markdown."""
    parts = []
    for title, cls in (*SECTIONS.items(), (f"{PRESETS}.NAME", Preset)):
        parts.append(f"## `[{title}]`\n\n{_first_line(cls)}\n")
        parts.append("| key | value | default | meaning |\n|---|---|---|---|")
        parts.extend(_row(key) for key in keys_of(cls).values())
        parts.append("")
    return "\n".join(parts)


def _settings(loaded: Loaded) -> Iterator[Setting]:
    for section, cls in SECTIONS.items():
        values = getattr(loaded.config, attribute_of(section))
        for key in keys_of(cls).values():
            yield _setting(loaded, section, key, getattr(values, key.attribute))
    for name, preset in loaded.config.presets.items():
        for key in keys_of(Preset).values():
            if value := getattr(preset, key.attribute):
                yield _setting(loaded, f"{PRESETS}.{name}", key, value)


def _setting(loaded: Loaded, section: str, key: Key, value: object) -> Setting:
    return Setting(section, key.name, key.kind.write(value), loaded.origin(f"{section}.{key.name}"))


def _header(section: str) -> str:
    first, _, rest = section.partition(".")
    # A preset's name may hold dots, which would be read as sections within sections.
    return f"{first}.{toml_string(rest)}" if "." in rest else section


def _on_one_line(text: str) -> str:
    return "".join(char if char.isprintable() else "?" for char in text)


def _first_line(cls: type) -> str:
    return (cls.__doc__ or "").strip().splitlines()[0]


def _row(key: Key) -> str:
    return f"| `{key.name}` | {key.kind.words} | `{key.kind.write(key.default)}` | {key.doc} |"
