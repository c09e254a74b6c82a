"""Let browsers in from the network and from proxies, as the settings of the page say."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass

from gpushared.config.web_settings import WebConfig
from gpushared.daemon.troubles import Troubles
from gpushared.domain.model.errors import NotLoggedIn, PermissionRefused, StateConflict
from gpushared.domain.model.request import Caller
from gpushared.net.http_server import Exchange
from gpushared.net.socket_wire import Wire
from gpushared.web.arrivals import Arrival
from gpushared.web.browser_checks import LOOPBACK_NAMES
from gpushared.web.browser_server import serve_browser
from gpushared.web.browser_site import Access, BrowserSite
from gpushared.web.logins import NEW_LINK_HINT, User, needing_a_login
from gpushared.web.named_users import NameUser, identified
from gpushared.web.network_listener import NetworkListener
from gpushared.web.proxy_socket import AccountOf, ProxySocket


@dataclass(frozen=True, slots=True)
class UserLookups:
    """Find users: ``account`` those of this machine, ``named`` those whom a proxy names."""

    account: AccountOf
    named: NameUser


class BrowserListeners:
    """Run the listeners of the page besides the daemon's own socket. ``settings`` returns what holds now."""

    def __init__(
        self,
        settings: Callable[[], WebConfig],
        site: BrowserSite,
        users: UserLookups,
        troubles: Troubles,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._settings = settings
        self._site = site
        self._users = users
        self._network = NetworkListener(settings, self._serve, troubles, now)
        self._proxies = ProxySocket(settings, users.account, self._serve, troubles)

    def reload(self) -> None:
        """Look at the settings, and at the certificate, again."""
        self._network.reload()
        self._proxies.reload()

    async def run(self) -> None:
        """Serve for ever."""
        # The names by which proxies' users may call the page may be those of the certificate.
        await self._network.look()
        async with asyncio.TaskGroup() as group:
            group.create_task(self._network.run())
            group.create_task(self._proxies.run())

    def url(self) -> str:
        """Return the page's address on the network. Raises StateConflict if it has none."""
        web = self._settings()
        address = web.address
        if address is None:
            raise StateConflict(
                "the page is not served to the network",
                hint="an administrator may set web.listen; `gpushare web` shows the page without it",
            )
        scheme = "https" if web.certificate else "http"
        host = _bracketed(self._names(web)[0])
        return f"{scheme}://{host}:{address[1]}{web.base_path}"

    def hosts(self) -> frozenset[str]:
        """Return the names by which browsers may reach the page now."""
        web = self._settings()
        names = frozenset(_bracketed(name.lower()) for name in self._names(web))
        return names | LOOPBACK_NAMES if _is_loopback(web) else names

    def _names(self, web: WebConfig) -> tuple[str, ...]:
        """Return the configured names, or else those of the certificate, the machine and the address."""
        if web.hosts:
            return web.hosts
        certificate = self._network.certificate
        ip = "" if web.address is None or _is_any(web.address[0]) else web.address[0]
        names = (*(() if certificate is None else certificate.names), ip, socket.gethostname())
        return tuple(name for name in names if name)

    async def _serve(self, wire: Wire, arrival: Arrival) -> None:
        is_proxy = arrival.is_proxy
        if is_proxy is None:
            access = Access(self.hosts(), secure=arrival.is_secure, address=arrival.address)
            await serve_browser(wire, b"", self._site, access)
            return

        async def identify(exchange: Exchange) -> Caller:
            if not is_proxy():
                raise PermissionRefused(
                    "this proxy is not believed any more",
                    hint="web.proxy_users and web.proxy_ca say which are",
                )
            return await identified(exchange.headers, self._settings().proxy_header, self._users.named)

        await serve_browser(
            wire, b"", self._site, Access(self.hosts(), identify=identify, address=arrival.address)
        )


async def caller_of_account(account: AccountOf, user: User) -> Caller:
    """Return the user of a session as a caller, with the rights that the account has now.

    Raises NotLoggedIn if the account was removed, even if another one has its uid now.
    """
    with needing_a_login():
        caller = await account(user.uid)
    if caller.name != user.name:
        raise NotLoggedIn(f"uid {user.uid} was {user.name}'s and is {caller.name}'s now", hint=NEW_LINK_HINT)
    return caller


def _bracketed(name: str) -> str:
    return f"[{name}]" if ":" in name else name


def _is_any(address: str) -> bool:
    return ipaddress.ip_address(address).is_unspecified


def _is_loopback(web: WebConfig) -> bool:
    return web.address is not None and ipaddress.ip_address(web.address[0]).is_loopback
