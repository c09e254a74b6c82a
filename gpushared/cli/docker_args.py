"""Find our own options and the image in the arguments of ``gpushare run``; the others are docker's, untouched.

To find the image, the options of docker that take no value must be known: a short list has them, and a test
compares the list with the docker CLI's own help. An option that the list does not have counts as one with a
value, so a future option without a value is written ``--new=true``.

Plain arguments are those that docker takes for certain, so that docker need not read them beforehand: starting
docker takes as long as all else that ``gpushare run`` does. Arguments that this module does not know are no
mistake: docker reads those. A test has several dockers read arguments that are plain here.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence

from gpushared.cli.errors import UsageError
from gpushared.client.submit_parameters import LEASE_PARAMETERS, SUBMIT_PARAMETERS, SubmitParameter
from gpushared.domain.model.errors import PermissionRefused
from gpushared.light import NamedTuple

RUN_ALONE = ("detach", "detach-keys", "sig-proxy", "pull", "quiet", "cidfile")
"""Options of ``docker run`` that are not for ``docker create`` to read beforehand.

It has no use for them, a job keeps them by itself, or, by ``--cidfile``, it would write a file.
"""
DOCKER_SWITCHES = frozenset(
    {
        "detach",
        "disable-content-trust",
        "help",
        "init",
        "interactive",
        "no-healthcheck",
        "oom-kill-disable",
        "privileged",
        "publish-all",
        "quiet",
        "read-only",
        "rm",
        "sig-proxy",
        "tty",
        "use-api-socket",
    }
)
DOCKER_SHORT_SWITCHES = {"d": "detach", "i": "interactive", "P": "publish-all", "q": "quiet", "t": "tty"}
_SHORT_NAMES = {
    "e": "env",
    "h": "hostname",
    "l": "label",
    "m": "memory",
    "p": "publish",
    "u": "user",
    "v": "volume",
    "w": "workdir",
}
MAX_OUR_VALUE = 4096
"""The longest path; sizes are judged by the daemon, and are far shorter."""
_SHOWN = 40
_TRUE = frozenset({"1", "t", "true"})
_FALSE = frozenset({"0", "f", "false"})
"""Go's strconv.ParseBool, which docker uses, takes these words for false, in small letters."""
_SWITCHES = frozenset({"detach", "init", "interactive", "read-only", "rm", "tty"})
_MANY = frozenset({"env", "label", "publish", "ulimit", "volume"})
"""Options that may be given more than once, in any combination."""
_LIMITS = frozenset({"core", "memlock", "nofile", "nproc", "stack"})
_MAX_PORT = 65535
_MAX_DIGITS = 9


class OurOptions(NamedTuple):
    """Hold our options of one command, which stand among docker's."""

    values: frozenset[str]
    switches: frozenset[str]
    command: str


def _options_of(
    command: str,
    parameters: Sequence[SubmitParameter],
    values: Sequence[str] = (),
    switches: Sequence[str] = (),
) -> OurOptions:
    """Return the options of the parameters, and ``values`` and ``switches`` that the command has besides."""
    return OurOptions(
        frozenset([*(parameter.option for parameter in parameters if not parameter.is_switch), *values]),
        frozenset([*(parameter.option for parameter in parameters if parameter.is_switch), *switches]),
        command,
    )


RUN = _options_of(
    "run",
    LEASE_PARAMETERS,
    values=("after", "max-wait", "node", "result-file"),
    switches=("no-requeue", "pool", "requeue"),
)
SUBMIT = _options_of("submit", SUBMIT_PARAMETERS)


class DockerFlag(NamedTuple):
    """Hold one option: its long name where it matters, its value, and the arguments it was written in.

    In ``-it`` the last letter owns the argument.
    """

    name: str
    value: str
    argv: tuple[str, ...]


class RunArguments(NamedTuple):
    """Hold the sorted arguments of ``gpushare run`` or ``submit``."""

    own_options: dict[str, str]
    """Values of our options by name without dashes; ``immediate`` is "true" when set."""
    flags: tuple[DockerFlag, ...]
    """Docker's options, in order."""
    rest: tuple[str, ...]
    """IMAGE, COMMAND and its arguments, with a ``--`` before them if it was written."""

    @property
    def image(self) -> str:
        command = self.rest[1:] if self.rest[:1] == ("--",) else self.rest
        return command[0] if command else ""

    @property
    def docker(self) -> list[str]:
        """Return all of docker's arguments, as they were written."""
        return [arg for flag in self.flags for arg in flag.argv] + list(self.rest)

    def docker_without(self, *names: str) -> list[str]:
        """Return docker's arguments without some of its options, also in a row of letters: ``-dit``."""
        argv: list[str] = []
        before: list[str] = []
        for flag in self.flags:
            if not flag.argv:
                before.append(flag.name)
                continue
            argv += _without(flag, before, names)
            before = []
        return argv + list(self.rest)

    def value(self, name: str) -> str:
        """Return the last value of one of docker's options, "" if it was not given."""
        return next((flag.value for flag in reversed(self.flags) if flag.name == name), "")

    def is_set(self, name: str) -> bool:
        """Return True if one of docker's switches is on."""
        return self.value(name).lower() in _TRUE


def _without(flag: DockerFlag, before: Sequence[str], names: Sequence[str]) -> list[str]:
    """Return the rest of an option, and of the letters before it in the same argument, without ``names``."""
    if not before:
        return [] if flag.name in names else list(flag.argv)
    letters = flag.argv[0][1:]
    kept_letters = "".join(letter for letter, name in zip(letters, before, strict=False) if name not in names)
    if flag.name in names:
        return [f"-{kept_letters}"] if kept_letters else []
    return [f"-{kept_letters}{letters[len(before) :]}", *flag.argv[1:]]


def split(argv: Sequence[str], options: OurOptions = RUN) -> RunArguments:
    """Sort the arguments; raises UsageError if an option lacks its value."""
    own_options: dict[str, str] = {}
    flags: list[DockerFlag] = []
    index = 0
    while index < len(argv) and argv[index].startswith("-") and argv[index] not in {"-", "--"}:
        long = argv[index].startswith("--")
        parsed = [_long(argv, index, options)] if long else list(_short(argv, index, options))
        index += sum(len(flag.argv) for flag in parsed)
        if parsed[0].name in options.values or parsed[0].name in options.switches:
            own_options[parsed[0].name] = _our_value(parsed[0], options)
        else:
            flags += parsed
    return RunArguments(own_options, tuple(flags), tuple(argv[index:]))


def _long(argv: Sequence[str], index: int, options: OurOptions) -> DockerFlag:
    name, equals, value = argv[index][2:].partition("=")
    if equals:
        return DockerFlag(name, value, (argv[index],))
    if name in DOCKER_SWITCHES or name in options.switches:
        return DockerFlag(name, "true", (argv[index],))
    return DockerFlag(name, _next(argv, index, f"--{name}", options), tuple(argv[index : index + 2]))


def _short(argv: Sequence[str], index: int, options: OurOptions) -> Iterator[DockerFlag]:
    """Split ``-it``, ``-e A=1``, ``-eA=1``, ``-ite A=1``, ``-t=false``: switches until a letter takes a value."""
    letters = argv[index][1:]
    for number, letter in enumerate(letters):
        after = letters[number + 1 :]
        switch = DOCKER_SHORT_SWITCHES.get(letter)
        name = switch or _SHORT_NAMES.get(letter, letter)
        if switch and not after.startswith("="):
            yield DockerFlag(name, "true", () if after else (argv[index],))
        elif after:
            yield DockerFlag(name, after.removeprefix("="), (argv[index],))
            return
        else:
            yield DockerFlag(name, _next(argv, index, f"-{letter}", options), tuple(argv[index : index + 2]))


def _next(argv: Sequence[str], index: int, option: str, options: OurOptions) -> str:
    if index + 1 >= len(argv):
        raise UsageError(f"{option[:_SHOWN]} needs a value", hint=f"see gpushare {options.command} --help")
    return argv[index + 1]


def _our_value(flag: DockerFlag, options: OurOptions) -> str:
    if len(flag.value) > MAX_OUR_VALUE:
        raise UsageError(
            f"the value of --{flag.name} is {len(flag.value)} characters long",
            hint=f"see gpushare {options.command} --help for what it may be",
        )
    try:
        flag.value.encode()
    except UnicodeEncodeError:
        raise UsageError(f"the value of --{flag.name} is not valid UTF-8") from None
    if flag.name in options.switches:
        return _switch(flag)
    if not flag.value:
        raise UsageError(f"--{flag.name} needs a value", hint=f"see gpushare {options.command} --help")
    return flag.value


def _switch(flag: DockerFlag) -> str:
    value = flag.value.lower()
    if value not in _TRUE | _FALSE:
        raise UsageError(f"--{flag.name} is a switch: it takes no value, or true or false")
    return "true" if value in _TRUE else ""


# --- ways around the lease


def refuse_ways_around(args: RunArguments) -> None:
    """Raise PermissionRefused for an option that would reach a GPU beside the lease.

    The daemon's gate judges the same again, from the container's full description. This check only refuses
    early, in the words that were typed.
    """
    for flag in args.flags:
        for sentence, hint in _faults(flag):
            raise PermissionRefused(sentence, hint=hint)


def _faults(flag: DockerFlag) -> Iterator[tuple[str, str]]:
    name, value = flag.name, flag.value
    if name == "gpus":
        yield (
            "--gpus asks docker for GPUs beside the lease",
            "leave it out and say how much with --gpu, as --gpu 1",
        )
    elif name == "device" and value.startswith(("/dev/nvidia", "nvidia.com/", "gpushare.io/")):
        yield (
            f"--device {value[:_SHOWN]} would reach a GPU beside the lease",
            "leave it out: the lease brings its devices",
        )
    elif name == "env" and value.partition("=")[0] == "NVIDIA_VISIBLE_DEVICES":
        yield "NVIDIA_VISIBLE_DEVICES is set by the lease", "leave it out and say how much with --gpu"
    elif name == "label" and value.startswith("gpushare."):
        yield f"the label {value[:_SHOWN]} belongs to gpushare", "leave it out, or use docker run with it"


def option_after_image(args: RunArguments, options: OurOptions) -> str:
    """Return the first argument after IMAGE if it is an option of ours, else an empty string."""
    command = args.rest[args.rest[:1] == ("--",) :][1:]
    first = command[0].partition("=")[0] if command else ""
    name = first.removeprefix("--") if first.startswith("--") else ""
    return first if name in options.values or name in options.switches else ""


def are_plain(args: RunArguments) -> bool:
    """Return True if docker refuses none of the arguments, nor their combination."""
    names = [flag.name for flag in args.flags if flag.name not in _MANY]
    wants_terminal = "tty" in names and "interactive" in names
    if len(names) > len(set(names)) or (wants_terminal and not os.isatty(0)):
        return False
    if "restart" in names and "rm" in names:
        return False
    return args.image.lower() == args.image and all(map(_is_plain, args.flags))


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
    """Return True for a path that is written as ``realpath`` writes it, and is not the root."""
    parts = value.split("/")
    return not parts[0] and len(parts) > 1 and all(part.strip(".") for part in parts[1:])


def _is_volume(value: str) -> bool:
    """Return True for ``/from:/to`` or ``name:/to``, with or without ``:ro``."""
    source, _, rest = value.partition(":")
    target, colon, mode = rest.partition(":")
    return (_is_path(source) or _is_word(source)) and _is_path(target) and (not colon or mode in {"ro", "rw"})


def _is_publish(value: str) -> bool:
    """Return True for ``8888`` or ``8888:8888``."""
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
