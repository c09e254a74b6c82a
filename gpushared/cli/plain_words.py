"""Words of ``docker run`` that docker takes for certain, so that docker need not read them beforehand.

Starting docker takes as long as all else that ``gpushare run`` does. Words that this module does not know are
no mistake: docker reads those. A test has several dockers read words that are plain here.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from gpushared.cli.docker_args import DockerFlag, RunWords

_SWITCHES = frozenset({"detach", "init", "interactive", "read-only", "rm", "tty"})
_MANY = frozenset({"env", "label", "publish", "ulimit", "volume"})
"""Options that may be given more than once, in any combination."""
_LIMITS = frozenset({"core", "memlock", "nofile", "nproc", "stack"})
_MAX_PORT = 65535
_MAX_DIGITS = 9


def are_plain(words: RunWords) -> bool:
    """Return True if docker refuses none of the words, nor their combination."""
    names = [flag.name for flag in words.flags if flag.name not in _MANY]
    wants_terminal = "tty" in names and "interactive" in names
    if len(names) > len(set(names)) or (wants_terminal and not os.isatty(0)):
        return False
    if "restart" in names and "rm" in names:
        return False
    return words.image.lower() == words.image and all(map(_is_plain, words.flags))


def _is_plain(flag: DockerFlag) -> bool:
    if flag.name in _SWITCHES:
        return flag.value == "true"
    judge = _VALUES.get(flag.name)
    return judge is not None and judge(flag.value)


def _is_word(value: str) -> bool:
    return value.isascii() and value.replace("-", "").replace("_", "").isalnum() and value[0].isalnum()


def _is_number(value: str) -> bool:
    return value.isascii() and value.isdigit() and len(value) <= _MAX_DIGITS


def _is_size(value: str) -> bool:
    number = value[:-1] if value[-1:] in {"k", "m", "g"} else value
    return _is_number(number) and int(number) > 0


def _is_decimal(value: str) -> bool:
    whole, dot, rest = value.partition(".")
    return _is_number(whole) and (not dot or _is_number(rest))


def _is_path(value: str) -> bool:
    """A path that is written as ``realpath`` writes it, and is not the root."""
    parts = value.split("/")
    return not parts[0] and len(parts) > 1 and all(part.strip(".") for part in parts[1:])


def _is_volume(value: str) -> bool:
    """``/from:/to`` or ``name:/to``, with or without ``:ro``."""
    source, _, rest = value.partition(":")
    target, colon, mode = rest.partition(":")
    return (_is_path(source) or _is_word(source)) and _is_path(target) and (not colon or mode in {"ro", "rw"})


def _is_publish(value: str) -> bool:
    """``8888`` or ``8888:8888``."""
    return all(_is_number(port) and 0 < int(port) <= _MAX_PORT for port in value.split(":", 1))


def _is_limit(value: str) -> bool:
    name, _, limit = value.partition("=")
    return name in _LIMITS and (limit == "-1" or _is_number(limit))


_VALUES: dict[str, Callable[[str], bool]] = {
    "cpus": _is_decimal,
    "entrypoint": bool,
    "env": lambda value: bool(value) and not value.startswith("="),
    "hostname": _is_word,
    "ipc": lambda value: value in {"host", "none", "private", "shareable"},
    "label": lambda value: _is_word(value.partition("=")[0].replace(".", "-")),
    "memory": _is_size,
    "name": lambda value: _is_word(value) and len(value) > 1,
    "network": _is_word,
    "publish": _is_publish,
    "pull": lambda value: value in {"always", "missing", "never"},
    "restart": lambda value: value in {"always", "no", "on-failure", "unless-stopped"},
    "shm-size": _is_size,
    "ulimit": _is_limit,
    "user": lambda value: _is_word(value.replace(":", "-")),
    "volume": _is_volume,
    "workdir": _is_path,
}
