"""Define what serves browsers, and how their connections come in."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from hashlib import sha256

from gpushared.domain.model.request import Caller
from gpushared.net.error_answers import RequestRefusal, forget
from gpushared.net.http_server import Exchange, JsonHandler
from gpushared.net.intake import CallsUnderWay
from gpushared.net.limits import Rates, Shares, UserLimits, UserShare
from gpushared.storage.audit.line import UNKNOWN, Origin, Sink, ignore
from gpushared.web.assets import Assets
from gpushared.web.browser_checks import LOOPBACK_NAMES
from gpushared.web.logins import Logins, User

STREAMS_OF_A_USER = 16
TRIES_BURST = 20
TRIES_PER_SECOND = 1 / 6

StreamHandler = Callable[[Exchange, Caller, str], Awaitable[None]]
"""Answer ``GET stream`` for this caller; the text is the query, undecoded, such as ``watch=%7B...``.

The handler checks the query, starts the answer, and returns or is cancelled when the stream is over. Session,
Host and Origin were checked, and the user's streams counted. It may raise errors of the tree.
"""


@dataclass(frozen=True, slots=True)
class Access:
    """Describe how a browser's connection came in, and how its user is identified.

    ``hosts``: the names that ``Host`` may have. A name without a port stands for that name with any port.
    ``secure``: the browser speaks TLS, so that cookies are marked ``Secure`` and pages' origins are https.
    ``caller``: the user that the kernel named. ``identify``: returns the user of each request, instead of a
    session; it raises an error of the tree for an unknown user. With neither, the session names the user.
    """

    hosts: frozenset[str] = LOOPBACK_NAMES
    secure: bool = False
    caller: Caller | None = None
    identify: Callable[[Exchange], Awaitable[Caller]] | None = None
    origin: Origin = UNKNOWN
    address: str = ""
    """This text names the other end in the audit, and tries to log in are counted by it.

    It is empty where the kernel names the user: tries need no count there.
    """


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
    caller_of: Callable[[User], Awaitable[Caller]]
    """Return a session's user as a caller, with the rights that the user has now."""
    facts: Callable[[], SiteFacts]
    base_path: Callable[[], str]
    """Return the path of the page, which begins and ends with ``/``."""
    identity: str = ""
    """This text differs between the daemons of a machine: browsers keep one cookie for all ports of a host."""
    shares: Shares = field(default_factory=Shares)
    stream: StreamHandler | None = None
    user_of_token: Callable[[str], Awaitable[User]] | None = None
    """Return the user of an API token, with which a browser logs in. Raises NotLoggedIn."""
    audit: Sink = ignore
    refused: Callable[[RequestRefusal, Caller, Origin], None] = forget
    """Receive requests that break HTTP or a bound."""
    assets: Assets = field(default_factory=Assets)
    streams: CallsUnderWay = field(default_factory=lambda: CallsUnderWay(STREAMS_OF_A_USER))
    turns: UserShare = field(default_factory=lambda: UserShare(UserLimits()))
    """Connections whose user the kernel does not name take turns, one request in a pass of the event loop: anybody
    on the network may open many connections, and send on each without waiting for answers."""
    tries: Rates = field(
        default_factory=lambda: Rates(time.monotonic, burst=TRIES_BURST, per_second=TRIES_PER_SECOND)
    )
    """Bound the tries to log in from each address."""

    @property
    def cookie_name(self) -> str:
        return f"gpushare-{sha256(self.identity.encode()).hexdigest()[:8]}"
