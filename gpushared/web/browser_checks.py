"""Check that a browser's request was meant: the name that the browser used, and the page that asks."""

from __future__ import annotations

import re
from collections.abc import Collection

from gpushared.domain.model.errors import PermissionRefused, RequestError
from gpushared.domain.model.units import shown
from gpushared.net.error_answers import kind_of
from gpushared.net.http_server import Exchange

LOOPBACK_NAMES = frozenset({"127.0.0.1", "localhost", "[::1]"})
"""A browser at the other end of a forwarded port uses these names, with any port."""
_HOST = re.compile(r"(\[[0-9a-f:.]{2,45}\]|[a-z0-9_.-]{1,253})(:[0-9]{1,5})?")
OWN_PAGE, BY_HAND = b"same-origin", b"none"
"""Values of Sec-Fetch-Site (https://www.w3.org/TR/fetch-metadata/): a page of the same origin, or no page."""
JSON = "application/json"


def is_host(text: str) -> bool:
    """Return True for a name or an address, with or without a port, as ``Host`` has it in lower case."""
    return _HOST.fullmatch(text) is not None


def host_of(exchange: Exchange, hosts: Collection[str]) -> str:
    """Return the name that the browser used, in lower case. Raises PermissionRefused if it is none of ours.

    A site whose name leads to this machine (DNS rebinding) is the same origin to the browser, so that only
    the name tells it.
    """
    host = (exchange.header(b"host") or b"").decode("latin-1").lower()
    match = _HOST.fullmatch(host)
    if match is None or (host not in hosts and match[1] not in hosts):
        raise PermissionRefused(
            f"the page is not served under the name {shown(host)}",
            hint="open it by the link that `gpushare web` prints; its --allow-host adds a name, and web.hosts does on "
            "the network",
        )
    return host


def check_page(exchange: Exchange, host: str, *, secure: bool) -> None:
    """Refuse requests that another site's page makes, or another program's page on this host.

    Cookies are the same for all ports of a host, so that ``SameSite`` does not tell these pages apart.
    """
    site, origin = exchange.header(b"sec-fetch-site"), exchange.header(b"origin")
    is_post = exchange.method == "POST"
    is_ours = site == OWN_PAGE or (site == BY_HAND and not is_post)
    if site is not None and not is_ours:
        raise _refusal()
    if origin is not None:
        scheme, _, name = origin.decode("latin-1").lower().partition("://")
        if name != host or scheme not in ({"https"} if secure else {"http", "https"}):
            raise _refusal()
    elif is_post and site is None:
        raise _refusal()


def _refusal() -> PermissionRefused:
    return PermissionRefused(
        "this request comes from another page than gpushared's own",
        hint="open the page itself, by the link that `gpushare web` prints",
    )


def check_json(exchange: Exchange) -> None:
    """Refuse a body of another type than JSON: pages of other sites can send those types unasked."""
    if kind_of(exchange.header(b"content-type")) != JSON:
        raise RequestError("the body is not JSON", hint=f"send it with Content-Type: {JSON}")


def cookies_of(exchange: Exchange, name: str) -> list[str]:
    """Return the values of all cookies with this name: other programs on the host may set some too."""
    pairs = [
        pair.strip().partition("=")
        for key, value in exchange.headers
        if key == b"cookie"
        for pair in value.decode("latin-1").split(";")
    ]
    return [value for key, _, value in pairs if key == name]
