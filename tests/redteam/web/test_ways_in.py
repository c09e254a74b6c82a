"""A code or a session that leaks on the way in by which it was made is worth nothing on another way.

Eve sees the list of processes, where a browser's link may stand, and runs a program at another port of the host that
Ada's browser visits: browsers send it all cookies of that host, and let it set more of them.
"""

from __future__ import annotations

import pytest

from gpushared.api.v1 import web_pb2
from gpushared.web.browser_site import Access
from gpushared.web.logins import CODES_OF_A_USER, MAX_CODES, MAX_SESSIONS, SESSIONS_OF_A_USER, Logins, User
from gpushared.web.web_service import WebApi
from tests.web.raw_browser import ADA, EVE, USER, NewSite, posted, request

CALL = "/gpushare.v1.Leases/List"
LOCAL, EVES, NETWORK = Access(caller=ADA), Access(caller=EVE), Access()
EVE_USER = User(EVE.uid, EVE.gid, EVE.name)


@pytest.mark.parametrize(("way", "network"), [(NETWORK, False), (LOCAL, True), (EVES, False), (EVES, True)])
async def test_a_code_lets_nobody_in_by_another_way_and_is_used_up(
    new_site: NewSite, way: Access, network: bool
) -> None:
    site = new_site()
    web = WebApi(site.logins, lambda: "/", lambda: "https://gpu1/")
    link = await web.link(web_pb2.WebLinkRequest(network=network), ADA)
    login = posted("/login", {"code": link.code})
    stolen = await site.ask(login, way)
    assert stolen.status == 403
    assert "set-cookie" not in stolen.headers
    assert (await site.ask(login, NETWORK if network else LOCAL)).status == 401
    assert [endpoint for _, endpoint, _ in site.told(refused=True)] == ["Web/Login"] * 2


@pytest.mark.parametrize(
    ("begun", "used"), [(LOCAL, NETWORK), (LOCAL, EVES), (NETWORK, LOCAL), (NETWORK, EVES)]
)
@pytest.mark.parametrize("restarts", [False, True])
async def test_a_session_is_refused_on_another_way(
    new_site: NewSite, begun: Access, used: Access, restarts: bool
) -> None:
    site = new_site()
    cookie = await site.log_in(access=begun)
    if restarts:
        site.restart()
    for data in (request("GET", "/session", cookie=cookie), posted(CALL, cookie=cookie)):
        assert (await site.ask(data, used)).status == 401
    assert site.calls == []
    assert len(site.told(refused=True)) == 2, "the audit has each try"
    assert (await site.ask(request("GET", "/session", cookie=cookie), begun)).status == 200


@pytest.mark.parametrize("eves_way", [EVES, NETWORK])
async def test_a_cookie_that_another_program_has_set_locks_nobody_out(
    new_site: NewSite, eves_way: Access
) -> None:
    site = new_site()
    eves, own = await site.log_in(EVE, eves_way), await site.log_in()
    for cookies in (f"{eves}; {own}", f"{own}; {eves}"):
        answer = await site.ask(request("GET", "/session", cookie=cookies))
        assert (answer.status, answer.json.get("user")) == (200, "ada")
    assert (await site.ask(request("GET", "/session", cookie=eves))).status == 401


@pytest.mark.parametrize("call", ["Web/Link", "PoolAdmin/CreateApiToken", "PoolAdmin/CreateJoinToken"])
@pytest.mark.parametrize("way", [LOCAL, NETWORK])
async def test_a_page_makes_nothing_that_outlives_its_session(
    new_site: NewSite, way: Access, call: str
) -> None:
    site = new_site()
    cookie = await site.log_in(access=way)
    assert (await site.ask(posted(f"/gpushare.v1.{call}", cookie=cookie), way)).status == 404
    assert site.calls == []


async def test_a_user_of_many_groups_crowds_out_nobody() -> None:
    """In a user namespace with ``newgidmap`` a user has the account's uid, and any of thousands of groups."""
    logins = Logins(None, lambda: 3600.0)
    code, cookie = logins.make_code(USER), await logins.begin(USER)
    eves = [User(EVE.uid, gid, EVE.name) for gid in range(MAX_CODES // CODES_OF_A_USER + 1)]
    for one in eves:
        for _ in range(CODES_OF_A_USER):
            logins.make_code(one)
    for one in eves[: MAX_SESSIONS // SESSIONS_OF_A_USER + 1]:
        for _ in range(SESSIONS_OF_A_USER):
            await logins.begin(one)
    assert logins.session_of(cookie) is not None
    assert logins.use_code(code, ADA.uid) == USER
