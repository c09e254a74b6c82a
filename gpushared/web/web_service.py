"""Serve the call ``Web.Link``."""

from __future__ import annotations

from collections.abc import Callable

from gpushared.api.v1 import web_pb2
from gpushared.domain.model.request import Caller
from gpushared.net.unary_json import Unary
from gpushared.web.logins import CODE_SECONDS, Logins, User


class WebApi:
    """Make links for browsers. Each caller gets links for the own account only."""

    def __init__(self, logins: Logins, base_path: Callable[[], str], url: Callable[[], str]) -> None:
        """``url`` returns the page's address on the network, and raises StateConflict if it has none."""
        self._logins = logins
        self._base_path = base_path
        self._url = url

    def calls(self) -> dict[str, Unary]:
        return {"gpushare.v1.Web/Link": Unary(web_pb2.WebLinkRequest, self.link)}

    async def link(self, message: web_pb2.WebLinkRequest, caller: Caller) -> web_pb2.WebLink:
        """Make a one-time code."""
        url = self._url() if message.network else ""
        code = self._logins.make_code(User(caller.uid, caller.gid, caller.name), network=message.network)
        return web_pb2.WebLink(code=code, valid_seconds=CODE_SECONDS, base_path=self._base_path(), url=url)
