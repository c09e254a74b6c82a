"""Serve the web page of the pool: at the coordinator's unix socket, to the network, and behind proxies.

On the network a browser logs in with an API token, and its session is that token's: it ends with the token.
"""

from __future__ import annotations

from pathlib import Path

from gpushared.config.kinds import HOUR_SECONDS
from gpushared.domain.model.request import Caller
from gpushared.jobs.job_views import has_simulated
from gpushared.net.http_server import Exchange
from gpushared.net.identity import Identities
from gpushared.net.limits import Shares
from gpushared.net.unary_json import JsonApi
from gpushared.pool.coordinator.running_parts import CoordinatorParts
from gpushared.pool.trust.callers import PersonCaller, unless
from gpushared.storage.audit.line import NOBODY_HERE
from gpushared.web.browser_server import take_over
from gpushared.web.browser_site import BrowserSite, SiteFacts
from gpushared.web.listeners import BrowserListeners, UserLookups, caller_of_account
from gpushared.web.logins import Logins, User, needing_a_login
from gpushared.web.stream import EventStreams
from gpushared.web.web_service import WebApi

SESSIONS_NAME = "web-sessions.json"


class PoolPage:
    """Hold the parts of the page. ``json`` answers all calls, and gets the page's own."""

    def __init__(
        self,
        coordinator: CoordinatorParts,
        json: JsonApi,
        streams: EventStreams,
        identities: Identities,
        shares: Shares,
    ) -> None:
        self._coordinator = coordinator
        self._identities = identities
        self._streams = streams
        self._site = self._make_site(json, shares)
        self.listeners = BrowserListeners(
            lambda: coordinator.config().web,
            self._site,
            UserLookups(identities.account, self._named),
            coordinator.troubles,
        )
        json.add(WebApi(self._site.logins, self._site.base_path, self.listeners.url).calls())

    async def take_over(self, exchange: Exchange) -> None:
        """Serve a connection of the unix socket as a browser's."""
        await take_over(exchange, self._site)

    def _make_site(self, json: JsonApi, shares: Shares) -> BrowserSite:
        config, trust = self._coordinator.config, self._coordinator.trust
        sessions = Path(config().coordinator.state_dir) / SESSIONS_NAME
        return BrowserSite(
            json.answer,
            Logins(sessions, lambda: config().web.session_hours * HOUR_SECONDS),
            self._caller_of,
            lambda: SiteFacts("", trust.pool, has_simulated(self._coordinator.loop.state)),
            lambda: config().web.base_path,
            identity=f"pool {trust.pool}\n{sessions}",
            shares=shares,
            stream=self._stream,
            user_of_token=self._user_of_token,
            audit=self._coordinator.audit.take,
        )

    # --- who it is

    async def _user_of_token(self, secret: str) -> User:
        with needing_a_login():
            caller = self._coordinator.trust.callers.logged_in(secret)
        return User(NOBODY_HERE, NOBODY_HERE, caller.name, caller.token)

    async def _caller_of(self, user: User) -> Caller:
        if not user.token:
            return await caller_of_account(self._identities.account, user)
        with needing_a_login():
            return self._coordinator.trust.callers.token_caller(user.token)

    async def _named(self, name: str) -> PersonCaller:
        return self._coordinator.trust.callers.named_caller(name)

    # --- what pages watch

    async def _stream(self, exchange: Exchange, caller: Caller, query: str) -> None:
        """Serve a stream until its user's token ends, as other streams of the pool."""
        callers = self._coordinator.trust.callers
        with callers.watching(callers.of_json(caller)) as gone:
            await unless(gone, self._streams.serve(exchange, caller, query))
