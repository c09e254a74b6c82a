"""Count the machine's ports that a container publishes: for each the engine runs root's processes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final

from gpushared.domain.model.errors import PermissionRefused
from gpushared.gate.api.body import Body, section

LABEL_PORTS: Final = "gpushare.published-ports"
"""This label has the gate's count of the ports at the container's create."""
_PORT: Final = re.compile(r"([0-9]{1,5})(?:-([0-9]{1,5}))?(?:/[a-z]+)?")


def ports_of(host: Body, exposed: Iterable[str]) -> int:
    """Count the ports of a HostConfig and the exposed ports; each port of a range counts."""
    bound = section(host, "PortBindings")
    named = sum(_size(port) * max(1, len(bindings or ())) for port, bindings in bound.items())
    if not host.get("PublishAllPorts"):
        return named
    return named + sum(_size(port) for port in {*exposed} - bound.keys())


def counted(labels: Mapping[str, str]) -> int:
    """Return the gate's count at a container's create; 0 for a container that the gate did not make."""
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
