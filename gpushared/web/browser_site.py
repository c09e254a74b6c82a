"""Serve a connection as a browser's: the shell of the page, assets, calls, the stream, logins.

A browser sends requests that its user did not mean: other pages make it do so, and names that lead to this
machine by another site's domain (DNS rebinding). All checks of that kind are here, once for all ways in:

- ``gpushare web`` forwards connections to the daemon's socket: the kernel tells the caller, and a session of
  another user is refused.
- ``[web] listen`` serves TLS: the caller is the session's.
- A proxy tells the caller of each request (``Access.identify``).

The other ways make an ``Access``, and call ``serve_browser`` with the connection as a ``Wire``: a TLS server
copies the plain bytes to one end of a pair of sockets, and the other end is the wire.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from gpushared.domain.model.request import Caller
from gpushared.net.http_server import Exchange, JsonHandler
from gpushared.net.limits import Shares
from gpushared.net.socket_wire import Wire
from gpushared.storage.audit.line import UNKNOWN, Origin, Sink, ignore
from gpushared.web.assets import Assets
from gpushared.web.logins import Logins, Session

LOOPBACK_NAMES = frozenset({"127.0.0.1", "localhost", "[::1]"})
"""A browser at the other end of a forwarded port uses these names, with any port."""

StreamHandler = Callable[[Exchange, Caller, str], Awaitable[None]]
"""Answer ``GET stream`` for this caller; the text is the query, undecoded, such as ``watch=%7B...``.

The handler checks the query, starts the answer, and returns or is cancelled when the stream is over. Session,
Host and Origin were checked, and the user's streams counted. It may raise errors of the tree.
"""


@dataclass(frozen=True, slots=True)
class Access:
    """Say how a browser's connection came in, and what is believed of it.

    ``hosts``: the names that ``Host`` may have. A name without a port stands for that name with any port.
    ``secure``: the browser speaks TLS, so that cookies are marked ``Secure`` and pages' origins are https.
    ``caller``: the user that the kernel told. ``identify``: tells the user of each request, instead of a
    session; it raises an error of the tree where it believes none. With neither, the session tells the user.
    """

    hosts: frozenset[str] = LOOPBACK_NAMES
    secure: bool = False
    caller: Caller | None = None
    identify: Callable[[Exchange], Awaitable[Caller]] | None = None
    origin: Origin = UNKNOWN


@dataclass(frozen=True, slots=True)
class SiteFacts:
    """Hold what the page shows of the daemon that serves it."""

    node: str
    pool: str
    simulated: bool


@dataclass(frozen=True, slots=True)
class BrowserSite:
    """Hold the parts that serve browsers, of a node or of a coordinator."""

    json: JsonHandler
    logins: Logins
    caller_of: Callable[[Session], Awaitable[Caller]]
    """Return a session's user as a caller, with the rights that the user has now."""
    facts: Callable[[], SiteFacts]
    base_path: Callable[[], str]
    """Return the path of the page, which begins and ends with ``/``."""
    shares: Shares = field(default_factory=Shares)
    stream: StreamHandler | None = None
    audit: Sink = ignore
    revision: Callable[[], str] = str
    """Return the revision of the state that calls answer from; empty if there is none."""
    assets: Assets = field(default_factory=Assets)


async def serve_browser(wire: Wire, early: bytes, site: BrowserSite, access: Access) -> None:
    """Serve one connection as a browser's until its end, then close it. ``early`` were read from it already."""
    raise NotImplementedError
