"""Define the settings of the web page."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator
from dataclasses import dataclass

from gpushared.config.kinds import PATH_OR_EMPTY, Number, Text, TextList, setting
from gpushared.config.metrics_settings import LISTEN, metrics_address

_BASE_PATH = re.compile(r"/([A-Za-z0-9._~-]+/)*")
_PATH = Text("a path that begins and ends with `/`", lambda text: _BASE_PATH.fullmatch(text) is not None)
_LABEL = r"[A-Za-z0-9_](?:[A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?"
_HOST = re.compile(rf"{_LABEL}(?:\.{_LABEL}){{0,30}}")
_HEADER = re.compile(r"[A-Za-z][A-Za-z0-9-]{0,62}")
_OWN_HEADERS = frozenset({"host", "origin", "cookie", "connection", "content-length", "content-type"})


def is_host(text: str) -> bool:
    """Return True if the text is a host name or an IP address, without brackets and port."""
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return _HOST.fullmatch(text) is not None
    return True


def _is_header(text: str) -> bool:
    return _HEADER.fullmatch(text) is not None and text.lower() not in _OWN_HEADERS


@dataclass(frozen=True, slots=True)
class WebConfig:
    """[The web page](web.md), which browsers of this machine open by `gpushare web`.

    `listen` serves it [to the network](../how-to/page-on-the-network.md).
    """

    base_path: str = setting(
        "/", _PATH, "The path of the page, such as `/gpus/` behind a proxy that serves other pages too."
    )
    session_hours: float = setting(
        24.0, Number(0.1, 8760.0), "A browser must log in again if it has not used the page for so long."
    )
    listen: str = setting(
        "",
        LISTEN,
        "Serve the page here by TLS; a port alone is on loopback, where the certificate may be left out. "
        "Empty: `gpushare web` and proxies only.",
    )
    certificate: str = setting(
        "",
        PATH_OR_EMPTY,
        "The certificate for `listen` with its chain, in PEM. A new file is read by itself.",
    )
    key: str = setting("", PATH_OR_EMPTY, "Its private key, which others may not read.")
    hosts: tuple[str, ...] = setting(
        (),
        TextList(Text("a host name or address", is_host)),
        "The names by which browsers may reach the page at `listen` and behind proxies; links have the first "
        "one. Empty: the names in the certificate, the machine's name, and the address of `listen`.",
    )
    proxy_socket: str = setting(
        "",
        PATH_OR_EMPTY,
        "[A proxy](../how-to/page-behind-a-proxy.md) reaches the page at this unix socket, and says who the "
        "user is.",
    )
    proxy_users: tuple[str, ...] = setting(
        (),
        TextList(Text("the name of an account", bool)),
        "The accounts whose programs may connect to `proxy_socket`, such as `www-data`.",
    )
    proxy_ca: str = setting(
        "",
        PATH_OR_EMPTY,
        "A client at `listen` with a certificate of this authority is such a proxy, too. Use an authority "
        "that signs nothing else.",
    )
    proxy_header: str = setting(
        "X-Forwarded-User",
        Text("the name of a header", _is_header),
        "The header in which proxies give the user's name. It counts from them only.",
    )

    @property
    def address(self) -> tuple[str, int] | None:
        """Return the address and the port of ``listen``."""
        return metrics_address(self.listen) if self.listen else None


def web_problems(web: WebConfig) -> Iterator[tuple[str, str]]:
    """Yield the contradictions of the settings, each with a hint."""
    address = web.address
    if bool(web.certificate) != bool(web.key):
        present, missing = ("certificate", "key") if web.certificate else ("key", "certificate")
        yield f"web.{present} stands without web.{missing}", "TLS needs both files"
    elif address is not None and not web.certificate and not ipaddress.ip_address(address[0]).is_loopback:
        yield (
            f"web.listen {web.listen} is no loopback address, and web.certificate is missing",
            "to the network only TLS is served: docs/how-to/page-on-the-network.md makes a certificate",
        )
    if web.proxy_ca and not (address and web.certificate):
        yield (
            "web.proxy_ca needs web.listen with web.certificate and web.key",
            "a proxy shows its certificate there",
        )
    if bool(web.proxy_socket) != bool(web.proxy_users):
        present, missing = (
            ("proxy_socket", "proxy_users") if web.proxy_socket else ("proxy_users", "proxy_socket")
        )
        yield f"web.{present} stands without web.{missing}", 'for nginx on Debian: proxy_users = ["www-data"]'
