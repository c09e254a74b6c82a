"""Load one checked configuration from files, environment and flags, with the origin of each value.

Later sources win: defaults, ``config.toml``, ``config.d/*.toml`` by name, ``GPUSHARED_SECTION__KEY``, flags.
All errors are told at once.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from gpushared.config.gate_settings import ALL_GPUS, GateConfig
from gpushared.config.idle import IdleConfig, IdleQuietConfig, idle_with, quiet_with
from gpushared.config.kinds import Key, Wrong, is_absolute, keys_of
from gpushared.config.model import PRESETS, Config, Preset
from gpushared.config.notify import NOTIFY, NotifyConfig, ProjectNotifyConfig
from gpushared.config.queue_rules import MODELS, PROJECTS, ProjectConfig, QuotaConfig
from gpushared.config.schema import NODE, ConfigSchema, NameRule
from gpushared.config.web_settings import WebConfig, web_problems
from gpushared.domain.model.errors import ConfigError, GpushareError, NotFound, RequestError
from gpushared.domain.model.ranges import parse_gpu_range
from gpushared.domain.model.request import Isolation
from gpushared.domain.model.request_spec import RequestSpec, read_request
from gpushared.domain.model.units import shown
from gpushared.domain.scheduling.projects import Policy, problems

ENVIRONMENT_SEPARATOR = "__"
DEFAULT_ORIGIN = "default"
MAX_PROBLEMS_SHOWN = 20

DEFAULT_PATH = NODE.path

Tables = Mapping[tuple[str, ...], Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Loaded:
    """Hold a configuration and, by ``section.key``, the origin of each value that is no default."""

    config: Config
    origins: Mapping[str, str]

    def origin(self, path: str) -> str:
        return self.origins.get(path, DEFAULT_ORIGIN)


@dataclass(frozen=True, slots=True)
class _Value:
    """Hold one value as it was found: of a file in ``raw``; of a variable or a flag in ``text``."""

    origin: str
    raw: object = None
    text: str | None = None


@dataclass(slots=True)
class ConfigDraft:
    """Collect the values and the errors that were found so far."""

    schema: ConfigSchema
    values: dict[tuple[str, ...], _Value] = field(default_factory=dict)
    problems: list[tuple[str, str]] = field(default_factory=list)

    def complain(self, origin: str, message: str, hint: str = "") -> None:
        self.problems.append((f"{origin}: {message}", hint))

    def last_origin(self, *table: str) -> str:
        """Return the origin of the last value in a table, or in the tables below it."""
        return [value.origin for at, value in self.values.items() if at[: len(table)] == table][-1]


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
        flags: texts by ``section.key``; None is a flag that was not given.
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
    for dotted, text in (flags or {}).items():
        if text is not None:
            draft.values[tuple(dotted.split("."))] = _Value(f"flag for {dotted}", text=text)
    return draft


# --- sources -------------------------------------------------------------------------------------------


def _read_files(path: Path, draft: ConfigDraft, *, must_exist: bool) -> None:
    folder = path.with_suffix(".d")
    try:
        exists = path.exists()
        # Not glob(), which takes an unreadable folder for an empty one.
        drop_ins = (
            sorted(file for file in folder.iterdir() if file.suffix == ".toml") if folder.exists() else []
        )
    except OSError as error:
        draft.complain(str(error.filename), f"cannot be read: {error.strerror}")
        return
    if must_exist and not exists:
        draft.complain(str(path), "there is no such file")
    for file in [path, *drop_ins] if exists else drop_ins:
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
        return {at: _Value(str(file), raw) for at, raw in _leaves(tree, draft.schema)}
    return {}


def _leaves(
    tree: Mapping[str, Any], schema: ConfigSchema, above: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], object]]:
    """Yield the values with their paths. A table where none can be is a value, and a wrong one."""
    for name, value in tree.items():
        at = (*above, name)
        if isinstance(value, dict) and value and (not above or schema.has_tables_at(at)):
            yield from _leaves(value, schema, at)
        elif value != {} or not schema.is_section(at):
            yield at, value


def _read_environment(environ: Mapping[str, str], draft: ConfigDraft) -> None:
    for name in sorted(environ):
        rest = name.removeprefix(draft.schema.prefix)
        if rest == name or ENVIRONMENT_SEPARATOR not in rest or name.startswith(draft.schema.foreign):
            continue
        at = tuple(rest.lower().split(ENVIRONMENT_SEPARATOR))
        draft.values[at] = _Value(f"environment {name}", text=environ[name])


# --- building ------------------------------------------------------------------------------------------


def _build(draft: ConfigDraft) -> Config:
    tables = read_all(draft)
    sections = sections_of(NODE, tables)
    presets = presets_of(tables)
    projects = projects_of(tables, sections["idle"], sections["idle_quiet"])
    if not draft.problems:
        check_presets(presets, draft)
        _check_dev_containers(sections["gate"], presets, draft)
        check_projects(projects, draft)
        _check_command(sections["notify"], draft)
        check_web(sections["web"], draft)
    return Config(**sections, presets=presets, projects=projects)


def read_all(draft: ConfigDraft) -> Tables:
    """Return every value as its setting reads it, and complain of values that cannot be read."""
    tables: dict[tuple[str, ...], dict[str, Any]] = {}
    for at, value in draft.values.items():
        key = _find(at, value, draft)
        if key is None:
            continue
        table = tables.setdefault(at[:-1], {})
        try:
            table[key.attribute] = key.kind.read(
                value.raw if value.text is None else key.kind.from_text(value.text)
            )
        except Wrong as wrong:
            draft.complain(value.origin, f"{_dotted(at)} {wrong}", wrong.hint)
    return tables


def sections_of(schema: ConfigSchema, tables: Tables) -> dict[str, Any]:
    """Return all sections by the field of the configuration that holds them."""
    return {
        title.replace(".", "_"): cls(**tables.get(tuple(title.split(".")), {}))
        for title, cls in schema.sections.items()
    }


def named(table: str, tables: Tables) -> dict[str, Mapping[str, Any]]:
    """Return the tables directly below this one, by the names that users chose."""
    return {at[1]: parts for at, parts in tables.items() if at[:-1] == (table,)}


def presets_of(tables: Tables) -> dict[str, Preset]:
    """Return the presets of ``[presets]`` by name."""
    return {name: Preset(**parts) for name, parts in sorted(named(PRESETS, tables).items())}


def projects_of(tables: Tables, idle: IdleConfig, quiet: IdleQuietConfig) -> dict[str, ProjectConfig]:
    """Return the projects in the order of the file: a user of several projects counts to the first."""
    projects = {at[1]: ProjectConfig() for at in tables if at[0] == PROJECTS}
    for at, parts in tables.items():
        if at[0] != PROJECTS:
            continue
        project = projects[at[1]]
        match at[2:]:
            case (word, model) if word == MODELS:
                changes: Mapping[str, Any] = {"models": {**project.models, model: QuotaConfig(**parts)}}
            case (word,) if word == NOTIFY:
                changes = {"notify": ProjectNotifyConfig(**parts)}
            case (_, _):
                changes = {"quiet": quiet_with(quiet, parts)}
            case (_,):
                changes = {"idle": idle_with(idle, parts)}
            case _:
                changes = parts
        projects[at[1]] = replace(project, **changes)
    return projects


def _find(at: tuple[str, ...], value: _Value, draft: ConfigDraft) -> Key | None:
    """Return the setting at a path, or None after a complaint."""
    schema = draft.schema
    path, rule = schema.path_of(at[:-1]), schema.name_rule(at[0])
    if rule is not None and (path is None or schema.has_tables_at(at)):
        draft.complain(value.origin, f"{_dotted(at)} is not a {rule.noun} with settings", rule.example)
        return None
    if schema.is_section(at):
        draft.complain(value.origin, f"{_dotted(at)} is a section, not a value", f"write [{_dotted(at)}]")
        return None
    for part, name in zip(path or (), at, strict=False):
        if isinstance(part, NameRule) and not part.fits(name):
            draft.complain(value.origin, f"{shown(name)} cannot be a {part.noun}'s name", part.hint)
            return None
    key = None if path is None else keys_of(schema.tables[path]).get(at[-1])
    if key is None and schema is not NODE and NODE.has_tables_at(at):
        draft.complain(value.origin, f"{_dotted(at)} is not a setting here", "nodes have it, in config.toml")
    elif key is None:
        draft.complain(value.origin, f"{_dotted(at)} is not a setting", _nearest(at, schema))
    return key


def check_presets(presets: Mapping[str, Preset], draft: ConfigDraft) -> None:
    """Complain of presets that nobody could ask for."""
    for name, preset in presets.items():
        for error in _mistakes_of(preset.spec):
            draft.complain(draft.last_origin(PRESETS, name), f"{PRESETS}.{name}: {error.message}", error.hint)


def _mistakes_of(spec: RequestSpec) -> list[GpushareError]:
    """Return the mistakes of a request's words, each by itself, or else that of the words together."""
    if (together := _mistake_of(spec)) is None:
        return []
    words = ((field.name, getattr(spec, field.name)) for field in fields(spec))
    alone = [_mistake_of(replace(_ANY_SIZE, **_as_asked(name, word))) for name, word in words if word]
    return [mistake for mistake in alone if mistake is not None] or [together]


_ANY_SIZE = RequestSpec(gpu="1")


def _as_asked(name: str, word: str) -> dict[str, str]:
    """Return one word of a request, without the words that would contradict it."""
    if name == "isolation" and word in set(Isolation):
        return {}  # it can be wrong only together with a size
    return {"gpu": "", name: word} if name.startswith("gpu_") else {name: word}


def _mistake_of(spec: RequestSpec) -> GpushareError | None:
    try:
        read_request(spec, {})
    except (RequestError, NotFound) as error:
        return error
    return None


def _check_dev_containers(gate: GateConfig, presets: Mapping[str, Preset], draft: ConfigDraft) -> None:
    """Complain of a name that is neither a size nor a preset."""
    size = gate.dev_containers
    if size is None or size == ALL_GPUS or size in presets:
        return
    try:
        parse_gpu_range(size)
    except RequestError:
        draft.complain(
            draft.last_origin("gate", "dev_containers"),
            f"gate.dev_containers: {shown(size)} is neither a size nor one of the presets",
            f"presets: {', '.join(sorted(presets)) or 'none are configured'}",
        )


def _check_command(notify: NotifyConfig, draft: ConfigDraft) -> None:
    if notify.command and not is_absolute(notify.command[0]):
        draft.complain(
            draft.last_origin(NOTIFY),
            f"notify.command: {shown(notify.command[0])} is not an absolute path",
            "no shell and no PATH of the daemon looks for it",
        )


def check_web(web: WebConfig, draft: ConfigDraft) -> None:
    """Complain of settings of the page that contradict each other."""
    for problem, hint in web_problems(web):
        draft.complain(draft.last_origin("web"), problem, hint)


def check_projects(projects: Mapping[str, ProjectConfig], draft: ConfigDraft) -> None:
    """Complain of projects that no node could keep; the number of GPUs is not known here."""
    for name, project in projects.items():
        for problem in problems(Policy(projects={name: project.project(name)}), {}):
            draft.complain(draft.last_origin(PROJECTS, name), problem)


# --- complaints ----------------------------------------------------------------------------------------


def _nearest(at: tuple[str, ...], schema: ConfigSchema) -> str:
    """Return a hint with the setting that was meant, by its whole path or by its last name alone."""
    if at[0] in schema.removed:
        return schema.removed[at[0]]
    path = schema.path_of(at[:-1])
    if path is not None and schema.name_rule(at[0]) is not None:
        suggestions = {name: f"{_dotted(at[:-1])}.{name}" for name in keys_of(schema.tables[path])}
    else:
        names = [(section, name) for section, cls in schema.sections.items() for name in keys_of(cls)]
        suggestions = {f"{section}.{name}": f"{section}.{name}" for section, name in names}
        suggestions |= {name: f"{section}.{name}" for section, name in reversed(names)}
    for name in (_dotted(at), _printable(at[-1])):
        if near := difflib.get_close_matches(name, suggestions, n=1, cutoff=0.7):
            return f"did you mean {suggestions[near[0]]}?"
    titles = dict.fromkeys((*schema.sections, *(str(path[0]) for path in schema.named)))
    return "" if at[0] in schema.sections else f"sections: {', '.join(titles)}"


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
    shown_lines, more = lines[:MAX_PROBLEMS_SHOWN], len(lines) - MAX_PROBLEMS_SHOWN
    if more > 0:
        shown_lines.append(f"  and {more} more")
    raise ConfigError(
        f"{len(lines)} things are wrong in the configuration:\n" + "\n".join(shown_lines),
        hint=f"see {draft.schema.page}",
    )
