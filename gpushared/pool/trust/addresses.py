"""Name the addresses at which a coordinator is reached."""

from __future__ import annotations

import re
from dataclasses import dataclass

from gpushared.domain.model.errors import RequestError
from gpushared.domain.model.units import shown

USERS_PORT = 7440
"""For users with tokens, and for machines that join."""
NODES_PORT = 7441
"""For nodes with certificates."""
_HOST = re.compile(r"[A-Za-z0-9_.-]{1,253}|\[[0-9a-fA-F:.]{2,45}(?:%[A-Za-z0-9_.-]{1,32})?\]")
_BARE_V6 = re.compile(r"[0-9a-fA-F:.]*:[0-9a-fA-F:.]*:[0-9a-fA-F:.]*")


@dataclass(frozen=True, slots=True)
class Address:
    """``host`` in brackets where it is of IPv6."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"

    def at(self, port: int) -> Address:
        return Address(self.host, port)


def read_address(text: str, port: int = USERS_PORT) -> Address:
    """``HOST``, ``HOST:PORT``, ``[::1]:PORT`` or ``::1``. Raises RequestError."""
    if _BARE_V6.fullmatch(text):
        text = f"[{text}]"
    host, colon, digits = text.rpartition(":")
    if not colon or host.startswith("[") != host.endswith("]"):
        host, digits = text, str(port)
    if _HOST.fullmatch(host) is None or not digits.isdecimal() or not 0 < int(digits[:6]) < 2**16:
        raise RequestError(f"{shown(text)} is no address", hint="write HOST or HOST:PORT, as dgx:7440")
    return Address(host, int(digits))
