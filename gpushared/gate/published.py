"""How many ports of the machine a container publishes: for each the engine runs processes of root's."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final

from gpushared.domain.errors import PermissionRefused
from gpushared.gate.body import Body, section

LABEL_PORTS: Final = "gpushare.published-ports"
"""For how many it was created, as the gate counted."""
_PORT: Final = re.compile(r"([0-9]{1,5})(?:-([0-9]{1,5}))?(?:/[a-z]+)?")


def ports_of(host: Body, exposed: Iterable[str]) -> int:
    """By a HostConfig, and what the container and its image expose; ranges are counted out."""
    bound = section(host, "PortBindings")
    named = sum(_size(port) * max(1, len(bindings or ())) for port, bindings in bound.items())
    if not host.get("PublishAllPorts"):
        return named
    return named + sum(_size(port) for port in {*exposed} - bound.keys())


def counted(labels: Mapping[str, str]) -> int:
    """What the gate counted at a container's create; nothing where it was made otherwise."""
    said = labels.get(LABEL_PORTS, "")
    return int(said) if re.fullmatch("[0-9]{1,9}", said) else 0


def check_counted(name: str, ports: int, labels: Mapping[str, str], most: int) -> None:
    """Raise ``PermissionRefused`` where a container would publish more than it was created for.

    Its image may have been another when it was looked at; one from before ports were counted has what a user
    may have.
    """
    given = counted(labels) if LABEL_PORTS in labels else most
    if most and ports > given:
        raise PermissionRefused(
            f"the container {name} would publish {ports} ports, and was created for {given}",
            hint="create it again",
        )


def _size(port: str) -> int:
    match = _PORT.fullmatch(port)
    if match is None or match[2] is None:
        return 1  # where it is no port, the engine says so
    return max(1, int(match[2]) - int(match[1]) + 1)
