"""Load one checked configuration from files, environment and flags, with the origin of each value.

Later sources win: defaults, ``config.toml``, ``config.d/*.toml`` by name, ``GPUSHARED_SECTION__KEY``, flags.
All errors are told at once.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from gpushared.config.gate_settings import ALL_GPUS, GateConfig
from gpushared.config.idle import (
    IDLE,
    QUIET,
    IdleConfig,
    IdleQuietConfig,
    QuietTimesConfig,
    idle_with,
    quiet_with,
)
from gpushared.config.kinds import Key, ValueKind, Wrong, keys_of
from gpushared.config.model import PRESETS, SECTIONS, TABLES, Config, Preset, attribute_of
from gpushared.config.queue_rules import MODEL_NAME, MODELS, PROJECTS, ProjectConfig, QuotaConfig
from gpushared.domain.leases.project_settings import PROJECT_NAME_HINT, is_project_name
from gpushared.domain.model.errors import ConfigError, NotFound, RequestError
from gpushared.domain.model.ranges import parse_gpu_range
from gpushared.domain.model.request_spec import read_request
from gpushared.domain.model.units import shown
from gpushared.domain.scheduling.projects import Policy, problems

_PRESET_NAME = re.compile(r"[a-z0-9][a-z0-9_.-]{0,31}")
POOL_PREFIX = "GPUSHARED_POOL_"
ENVIRONMENT_SEPARATOR = "__"
DEFAULT_ORIGIN = "default"
MAX_PROBLEMS_TOLD = 20

_DEPTH_OF_KEY = 2
_DEPTH_OF_NAMED_KEY = 3
Found = Mapping[tuple[str, ...], Mapping[str, Any]]


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
    removed: Mapping[str, str] = field(default_factory=dict)
    """Sections of older versions, each with a hint on the rule that holds now."""

    def is_section(self, at: tuple[str, ...]) -> bool:
        """Return True if a path leads to a section, or to all of a table's."""
        return ".".join(at) in self.sections or (len(at) == 1 and at[0] in self.tables)


PRESET_NAMED = Named(
    "preset",
    lambda name: _PRESET_NAME.fullmatch(name) is not None,
    "use up to 32 small letters, digits and _ . -",
    f'write [{PRESETS}.small] and below it gpu = "0.25"',
)
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

DEFAULT_PATH = NODE.path


@dataclass(frozen=True, slots=True)
class Loaded:
    """Hold a configuration and, by ``section.key``, the origin of each value that is no default."""

    config: Config
    origins: Mapping[str, str]

    def origin(self, path: str) -> str:
        return self.origins.get(path, DEFAULT_ORIGIN)


@dataclass(frozen=True, slots=True)
class _Value:
    """Hold one value as it was found. ``is_word``: it came as text whatever its kind."""

    raw: object
    origin: str
    is_word: bool


@dataclass(slots=True)
class ConfigDraft:
    """Collect the values and the errors that were found so far."""

    schema: ConfigSchema
    values: dict[tuple[str, ...], _Value] = field(default_factory=dict)
    problems: list[tuple[str, str]] = field(default_factory=list)

    def complain(self, origin: str, message: str, hint: str = "") -> None:
        self.problems.append((f"{origin}: {message}", hint))


def load(
    path: Path = DEFAULT_PATH,
    *,
    environ: Mapping[str, str] | None = None,
    flags: Mapping[str, str | None] | None = None,
    must_exist: bool = False,
) -> Loaded:
    """Return the configuration. Blocks for some file reads; raises ConfigError that names every problem.

    Args:
        path: the main file; the folder beside it with ``.d`` instead of ``.toml`` holds the others.
        environ: usually ``os.environ``; names without a double underscore are not looked at.
        flags: words by ``section.key``; None is a flag that was not given.
        must_exist: for a path that somebody named; else no file means defaults.
    """
    draft = gather(NODE, path, environ=environ, flags=flags, must_exist=must_exist)
    config = _build(draft)
    raise_problems(draft)
    return Loaded(config, {".".join(at): value.origin for at, value in draft.values.items()})


def gather(
    schema: ConfigSchema,
    path: Path,
    *,
    environ: Mapping[str, str] | None,
    flags: Mapping[str, str | None] | None,
    must_exist: bool,
) -> ConfigDraft:
    """Gather the values of all sources, before any is read as its kind."""
    draft = ConfigDraft(schema)
    _read_files(path, draft, must_exist=must_exist)
    _read_environment(environ or {}, draft)
    for dotted, word in (flags or {}).items():
        if word is not None:
            draft.values[tuple(dotted.split("."))] = _Value(word, f"flag for {dotted}", is_word=True)
    return draft


# --- sources -------------------------------------------------------------------------------------------


def _read_files(path: Path, draft: ConfigDraft, *, must_exist: bool) -> None:
    folder = path.with_suffix(".d")
    try:
        exists = path.exists()
        # Not glob(), which takes an unreadable folder for an empty one.
        others = (
            sorted(file for file in folder.iterdir() if file.suffix == ".toml") if folder.exists() else []
        )
    except OSError as error:
        draft.complain(str(error.filename), f"cannot be read: {error.strerror}")
        return
    if must_exist and not exists:
        draft.complain(str(path), "there is no such file")
    for file in [path, *others] if exists else others:
        draft.values.update(_read_file(file, draft))


def _read_file(file: Path, draft: ConfigDraft) -> dict[tuple[str, ...], _Value]:
    try:
        tree = tomllib.loads(file.read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        draft.complain(str(file), f"is not TOML: {error}", "text stands in double quotes")
    except UnicodeDecodeError:
        draft.complain(str(file), "is not UTF-8")
    except RecursionError:
        draft.complain(str(file), "is nested too deeply")
    except OSError as error:
        draft.complain(str(file), f"cannot be read: {error.strerror}")
    else:
        return {at: _Value(raw, str(file), is_word=False) for at, raw in _leaves(tree, draft.schema)}
    return {}


def _leaves(
    tree: Mapping[str, Any], schema: ConfigSchema, above: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], object]]:
    """Yield the values with their paths. A table where no section can be is a value, and a wrong one."""
    for name, value in tree.items():
        at = (*above, name)
        if isinstance(value, dict) and value and (len(at) < _depth(at, schema) or schema.is_section(at)):
            yield from _leaves(value, schema, at)
        elif value != {} or not schema.is_section(at):
            yield at, value


def _depth(at: tuple[str, ...], schema: ConfigSchema) -> int:
    """Return how many names lead to a value there."""
    if at[0] == PROJECTS:
        return _DEPTH_OF_NAMED_KEY + _part_of_project(at)[1]
    return _DEPTH_OF_NAMED_KEY if at[0] in schema.tables else _DEPTH_OF_KEY


def _part_of_project(at: tuple[str, ...]) -> tuple[type, int]:
    """Return the table of a project that a path leads to, and its depth below the project's own table."""
    match at[2:4]:
        case (word, _) | (word,) if word == MODELS:
            return QuotaConfig, 2
        case (word, below) if (word, below) == (IDLE, QUIET):
            return QuietTimesConfig, 2
        case (word, _) | (word,) if word == IDLE:
            return IdleConfig, 1
        case _:
            return ProjectConfig, 0


def _read_environment(environ: Mapping[str, str], draft: ConfigDraft) -> None:
    for name in sorted(environ):
        rest = name.removeprefix(draft.schema.prefix)
        if rest == name or ENVIRONMENT_SEPARATOR not in rest or name.startswith(draft.schema.foreign):
            continue
        at = tuple(rest.lower().split(ENVIRONMENT_SEPARATOR))
        draft.values[at] = _Value(environ[name], f"environment {name}", is_word=True)


# --- building ------------------------------------------------------------------------------------------


def _build(draft: ConfigDraft) -> Config:
    found = read_all(draft)
    sections = sections_of(draft.schema, found)
    presets = presets_of(found)
    projects = projects_of(found, sections["idle"], sections["idle_quiet"])
    if not draft.problems:
        check_presets(presets, draft)
        _check_dev_containers(sections["gate"], presets, draft)
        check_projects(projects, draft)
    return Config(**sections, presets=presets, projects=projects)


def read_all(draft: ConfigDraft) -> Found:
    """Return every value as its setting reads it, and complain of values that cannot be read."""
    found: dict[tuple[str, ...], dict[str, Any]] = {}
    for at, value in draft.values.items():
        key = _find(at, value, draft)
        if key is None:
            continue
        place = found.setdefault(at[:-1], {})
        try:
            place[key.attribute] = _read(key.kind, value)
        except Wrong as wrong:
            draft.complain(value.origin, f"{_dotted(at)} {wrong}")
    return found


def sections_of(schema: ConfigSchema, found: Found) -> dict[str, Any]:
    """Return all sections by the attribute that holds them."""
    return {
        attribute_of(section): cls(**found.get(tuple(section.split(".")), {}))
        for section, cls in schema.sections.items()
    }


def named(table: str, found: Found) -> dict[str, Mapping[str, Any]]:
    depth = _DEPTH_OF_NAMED_KEY - 1
    return {at[1]: parts for at, parts in found.items() if at[0] == table and len(at) == depth}


def projects_of(found: Found, idle: IdleConfig, quiet: IdleQuietConfig) -> dict[str, ProjectConfig]:
    """Return the projects in the order of the file: a user of several projects counts to the first."""
    projects = {at[1]: ProjectConfig() for at in found if at[0] == PROJECTS}
    for at, parts in found.items():
        if at[0] == PROJECTS:
            projects[at[1]] = _with_part(projects[at[1]], at, parts, idle, quiet)
    return projects


def _with_part(
    project: ProjectConfig,
    at: tuple[str, ...],
    parts: Mapping[str, Any],
    idle: IdleConfig,
    quiet: IdleQuietConfig,
) -> ProjectConfig:
    """Return the project with the settings of one of its tables."""
    table, _ = _part_of_project(at)
    if table is QuotaConfig:
        return replace(project, models={**project.models, at[3]: QuotaConfig(**parts)})
    if table is IdleConfig:
        return replace(project, idle=idle_with(idle, parts))
    if table is QuietTimesConfig:
        return replace(project, quiet=quiet_with(quiet, parts))
    return replace(project, **parts)


def _find(at: tuple[str, ...], value: _Value, draft: ConfigDraft) -> Key | None:
    """Return the setting at a path, or None after a complaint."""
    sections = draft.schema.sections
    if at[0] == PROJECTS:
        return _find_in_project(at, value, draft)
    if at[0] in draft.schema.tables:
        return _find_in_table(at, value, draft)
    if draft.schema.is_section(at):
        section = ".".join(at)
        draft.complain(value.origin, f"{section} is a section, not a value", f"write [{section}]")
        return None
    section = _section_of(at)
    key = keys_of(sections[section]).get(at[-1]) if section in sections else None
    if key is None:
        draft.complain(value.origin, f"{_dotted(at)} is not a setting", _nearest(at, draft.schema))
    return key


def _section_of(at: tuple[str, ...]) -> str:
    return ".".join(at[:-1])


def _find_in_table(at: tuple[str, ...], value: _Value, draft: ConfigDraft) -> Key | None:
    rule = draft.schema.named[at[0]]
    if len(at) != _DEPTH_OF_NAMED_KEY:
        draft.complain(value.origin, f"{_dotted(at)} is not a {rule.what} with settings", rule.example)
        return None
    if not rule.fits(at[1]):
        draft.complain(value.origin, f"{shown(at[1])} cannot be a {rule.what}'s name", rule.fits_hint)
        return None
    return _key_of(draft.schema.tables[at[0]], at, value, draft)


def _find_in_project(at: tuple[str, ...], value: _Value, draft: ConfigDraft) -> Key | None:
    if len(at) != _depth(at, draft.schema):
        hint = f"write [{PROJECTS}.vision] and below it guaranteed = 2"
        draft.complain(value.origin, f"{_dotted(at)} is not a project with settings", hint)
        return None
    if not is_project_name(at[1]):
        draft.complain(value.origin, f"{shown(at[1])} cannot be a project's name", PROJECT_NAME_HINT)
        return None
    table, _ = _part_of_project(at)
    if table is QuotaConfig and MODEL_NAME.fullmatch(at[3]) is None:
        hint = "`gpushare gpus` shows the models' names"
        draft.complain(value.origin, f"{shown(at[3])} cannot be a GPU model's name", hint)
        return None
    if table in {IdleConfig, QuietTimesConfig} and IDLE not in draft.schema.sections:
        draft.complain(value.origin, f"{_dotted(at)} is not a setting here", "nodes have it, in config.toml")
        return None
    return _key_of(table, at, value, draft)


def _key_of(section: type, at: tuple[str, ...], value: _Value, draft: ConfigDraft) -> Key | None:
    key = keys_of(section).get(at[-1])
    if key is None:
        draft.complain(value.origin, f"{_dotted(at)} is not a setting", _nearest(at, draft.schema))
    return key


def _read(kind: ValueKind, value: _Value) -> object:
    if value.is_word:
        assert isinstance(value.raw, str)
        return kind.read_word(value.raw)
    return kind.read(value.raw)


def presets_of(found: Found) -> dict[str, Preset]:
    """Return the presets of ``[presets]`` by name."""
    return {name: Preset(**parts) for name, parts in sorted(named(PRESETS, found).items())}


def check_presets(presets: Mapping[str, Preset], draft: ConfigDraft) -> None:
    """Complain of presets that nobody could ask for."""
    for name, preset in presets.items():
        try:
            read_request(preset.ask, {})
        except (RequestError, NotFound) as error:
            origins = [v.origin for at, v in draft.values.items() if at[:2] == (PRESETS, name)]
            draft.complain(origins[-1], f"{PRESETS}.{name}: {error.message}", error.hint)


def _check_dev_containers(gate: GateConfig, presets: Mapping[str, Preset], draft: ConfigDraft) -> None:
    """Complain of a name that is neither a size nor a preset."""
    said = gate.dev_containers
    if said is None or said == ALL_GPUS or said in presets:
        return
    try:
        parse_gpu_range(said)
    except RequestError:
        at = ("gate", "dev_containers")
        draft.complain(
            draft.values[at].origin,
            f"gate.dev_containers: {shown(said)} is neither a size nor one of the presets",
            f"presets: {', '.join(sorted(presets)) or 'none are configured'}",
        )


def check_projects(projects: Mapping[str, ProjectConfig], draft: ConfigDraft) -> None:
    """Complain of projects that no node could keep; the number of GPUs is not known here."""
    for name, project in projects.items():
        origins = [value.origin for at, value in draft.values.items() if at[:2] == (PROJECTS, name)]
        for problem in problems(Policy(projects={name: project.project(name)}), {}):
            draft.complain(origins[-1], problem)


# --- complaints ----------------------------------------------------------------------------------------


def _nearest(at: tuple[str, ...], schema: ConfigSchema) -> str:
    """Return a hint with the setting that was meant, by its whole path or by its last name alone."""
    if at[0] in schema.removed:
        return schema.removed[at[0]]
    if at[0] in schema.tables and len(at) == _depth(at, schema):
        section = _part_of_project(at)[0] if at[0] == PROJECTS else schema.tables[at[0]]
        known = {name: f"{_dotted(at[:-1])}.{name}" for name in keys_of(section)}
    else:
        names = [(section, name) for section, cls in schema.sections.items() for name in keys_of(cls)]
        known = {f"{section}.{name}": f"{section}.{name}" for section, name in names}
        known |= {name: f"{section}.{name}" for section, name in reversed(names)}
    for wanted in (_dotted(at), _printable(at[-1])):
        if near := difflib.get_close_matches(wanted, known, n=1, cutoff=0.7):
            return f"did you mean {known[near[0]]}?"
    sections = ", ".join((*schema.sections, *schema.tables))
    return "" if at[0] in schema.sections else f"sections: {sections}"


def _dotted(at: tuple[str, ...]) -> str:
    return ".".join(map(_printable, at))


def _printable(name: str) -> str:
    return name if re.fullmatch(r"[\w-]{1,64}", name) else shown(name)


def raise_problems(draft: ConfigDraft) -> None:
    if not draft.problems:
        return
    if len(draft.problems) == 1:
        ((message, hint),) = draft.problems
        raise ConfigError(message, hint=hint or draft.schema.show)
    lines = [f"  {message}" + (f" ({hint})" if hint else "") for message, hint in draft.problems]
    told, more = lines[:MAX_PROBLEMS_TOLD], len(lines) - MAX_PROBLEMS_TOLD
    if more > 0:
        told.append(f"  and {more} more")
    raise ConfigError(
        f"{len(lines)} things are wrong in the configuration:\n" + "\n".join(told),
        hint=f"see {draft.schema.page}",
    )
