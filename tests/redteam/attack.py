"""What an attack is, and the ways to describe one in a line."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from tests.bed import parts

if TYPE_CHECKING:
    from tests.redteam.attacked_machine import AttackedMachine

Json = dict[str, Any]


class Threat(StrEnum):
    """What an attack is after. The words stand in the table of docs/explanation/security.md."""

    ROOT = "become root"
    FILES = "others' files"
    CONTAINERS = "others' containers"
    SHARED = "what all use"
    GPU = "a GPU without a lease"
    LEASES = "others' leases"
    SOCKETS = "the daemons' sockets"
    IDENTITY = "be somebody else"
    AVAILABILITY = "stop others' work"
    LEAK = "learn of others"


class Engines(StrEnum):
    """On which engines an attack is tried."""

    PLAIN = "plain"
    CDI = "cdi"


BOTH = (Engines.PLAIN, Engines.CDI)


@dataclass(frozen=True)
class Response:
    """The answer that the attacker got; ``status`` is HTTP's, or 500 for a command that failed."""

    status: int
    message: str = ""

    @property
    def is_refusal(self) -> bool:
        return self.status >= 400

    @property
    def is_success(self) -> bool:
        return 200 <= self.status < 300


How = Callable[["AttackedMachine"], Response]


@dataclass(frozen=True)
class Attack:
    """``refused`` is part of the sentence that the attacker reads; else ``harmless`` says what happens.

    An attack that is carried out must leave nothing that the oracle minds either way.
    """

    name: str
    """In kebab-case."""
    threat: Threat
    how: How
    refused: str = ""
    harmless: str = ""
    on: tuple[Engines, ...] = (Engines.PLAIN,)

    def __post_init__(self) -> None:
        assert bool(self.refused) != bool(self.harmless), self.name


# --- ways ----------------------------------------------------------------------------------------------


def asks(method: str, target: str, body: object = None, **headers: str) -> How:
    """One request of the Docker API; names in braces are those of the machine."""
    return lambda machine: machine.ask(method, machine.fill(target), machine.fill_body(body), headers=headers)


def calls(name: str, /, **fields: object) -> How:
    """A unary JSON call of the daemon's own."""
    return lambda machine: machine.ask("POST", f"/gpushare.v1.{name}", machine.fill_body(fields))


def sends(*pieces: bytes | str) -> How:
    """Bytes as they are."""
    return lambda machine: machine.send(*(_bytes(machine, piece) for piece in pieces))


def docker(*words: str, stdin: bytes = b"") -> How:
    """The docker CLI."""
    return lambda machine: machine.docker(*map(machine.fill, words), stdin=stdin)


def runs(*options: str, command: Sequence[str] = ("true",)) -> How:
    """``docker run`` without a network, in the foreground."""
    return docker("run", "--rm", "--network", "none", *options, parts.BUSYBOX_IMAGE, *command)


def creates(
    host: Mapping[str, object] | None = None,
    *,
    version: str = "",
    query: Mapping[str, str] | None = None,
    command: str = "id",
    **config: object,
) -> How:
    """A create body, whose container is started too where it was let through."""
    body = {
        "Image": parts.BUSYBOX_IMAGE,
        "Cmd": ["sh", "-c", command],
        "HostConfig": {"NetworkMode": "none", **(host or {})},
        **config,
    }
    return lambda machine: machine.run_body(machine.fill_body(body), version=version, query=query)


def creates_text(text: str) -> How:
    """A create body as the bytes that go over the wire; ``@`` is the image."""
    return lambda machine: machine.run_body(machine.fill(text.replace("@", parts.BUSYBOX_IMAGE)).encode())


def plain_body(**more: object) -> Json:
    return {"Image": parts.BUSYBOX_IMAGE, "Cmd": ["id"], "HostConfig": {"NetworkMode": "none"}, **more}


def encoded(**query: str) -> str:
    return urlencode(query)


def _bytes(machine: AttackedMachine, piece: bytes | str) -> bytes:
    return piece if isinstance(piece, bytes) else machine.fill(piece).encode()
