"""Codes let one browser of their user in, once and soon; sessions last, within bounds."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path

import pytest

from gpushared.web import browser_server, browser_site, logins
from gpushared.web.browser_site import Access
from gpushared.web.logins import CODES_OF_A_USER, SESSIONS_OF_A_USER, Logins, User
from tests.web.raw_browser import EVE, SECONDS, USER, EchoSite, NewSite, posted, request

EVES = User(EVE.uid, EVE.gid, EVE.name)
CALL = "/gpushare.v1.Leases/List"


async def who(site: EchoSite, cookie: str, access: Access | None = None) -> str:
    """The user that the site takes the browser for; empty for nobody."""
    answer = await site.ask(request("GET", "/session", cookie=cookie), access)
    return answer.json["user"] if answer.status == 200 else ""


async def test_a_code_becomes_a_session_which_is_its_users(new_site: NewSite) -> None:
    site = new_site()
    cookie = await site.log_in()
    answer = await site.ask(request("GET", "/session", cookie=cookie))
    assert (
        answer.json.items()
        >= {
            "user": "ada",
            "uid": 1000,
            "trusted": False,
            "node": "gpu1",
            "pool": "",
            "simulated": True,
            "base": "/",
        }.items()
    )
    called = await site.ask(posted(CALL, cookie=cookie))
    assert called.json == {"user": "ada", "path": CALL}
    assert called.headers["gpushare-revision"] == "7"
    assert site.told(refused=False) == [("ada", "Web/Login", "")]


async def test_a_cookie_is_for_the_page_alone(new_site: NewSite) -> None:
    site = new_site(base="/gpus/")
    code = site.logins.make_code(USER)
    answer = await site.ask(posted("/gpus/login", {"code": code}))
    name, *parts = answer.headers["set-cookie"].split("; ")
    assert parts == ["Path=/gpus/", "Max-Age=3600", "HttpOnly", "SameSite=Strict"]
    assert name.startswith("gpushare-")
    assert "content-length" not in answer.headers


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"code": "x"}, 401),
        ({"code": ""}, 401),
        ({"code": "\ud800"}, 401),
        ({"code": None}, 400),
        ({"code": ["x"]}, 400),
        ({"token": "gsp_x"}, 400),
        ({}, 400),
        ([], 400),
        ("code", 400),
    ],
)
async def test_nobody_is_let_in_without_a_code(new_site: NewSite, body: object, status: int) -> None:
    site = new_site()
    site.logins.make_code(USER)
    answer = await site.ask(posted("/login", body))
    assert answer.status == status
    assert "set-cookie" not in answer.headers


@pytest.mark.parametrize("body", [b"", b"{", b"\xff", b"[" * 1000, b"code=x"])
async def test_a_body_that_is_no_json_lets_nobody_in(new_site: NewSite, body: bytes) -> None:
    assert (await new_site().ask(request("POST", "/login", body))).status == 400


async def test_a_code_works_once(new_site: NewSite) -> None:
    site = new_site()
    login = posted("/login", {"code": site.logins.make_code(USER)})
    assert [(await site.ask(login)).status for _ in range(2)] == [204, 401]
    assert [text for _, _, text in site.told(refused=True)] == [
        "this link was used already, or is older than 5 minutes"
    ]


async def test_two_browsers_that_send_one_code_together_are_not_both_let_in(new_site: NewSite) -> None:
    site = new_site()
    login = posted("/login", {"code": site.logins.make_code(USER)})
    answers = await asyncio.gather(*(site.ask(login) for _ in range(8)))
    assert sorted(answer.status for answer in answers) == [204, *[401] * 7]


@pytest.mark.parametrize(("seconds", "status"), [(299, 204), (300, 401), (100_000, 401)])
async def test_a_code_is_good_for_five_minutes(new_site: NewSite, seconds: int, status: int) -> None:
    site = new_site()
    code = site.logins.make_code(USER)
    site.now += seconds
    assert (await site.ask(posted("/login", {"code": code}))).status == status


async def test_a_stolen_code_does_not_work_for_another_user_and_is_used_up(new_site: NewSite) -> None:
    site = new_site()
    code = site.logins.make_code(USER)
    stolen = await site.ask(posted("/login", {"code": code}), Access(caller=EVE))
    assert stolen.status == 403
    assert (await site.ask(posted("/login", {"code": code}))).status == 401
    assert site.told(refused=True)[0] == ("eve", "Web/Login", "this link belongs to another user")


async def test_a_user_has_few_codes_and_they_crowd_out_nobody_elses(new_site: NewSite) -> None:
    site = new_site()
    eves = site.logins.make_code(EVES)
    first, *others = [site.logins.make_code(USER) for _ in range(CODES_OF_A_USER + 1)]
    assert (await site.ask(posted("/login", {"code": first}))).status == 401
    assert (await site.ask(posted("/login", {"code": others[0]}))).status == 204
    assert (await site.ask(posted("/login", {"code": eves}), Access(caller=EVE))).status == 204


async def test_a_stolen_cookie_is_refused_on_another_users_connection(new_site: NewSite) -> None:
    site = new_site()
    cookie = await site.log_in()
    answer = await site.ask(posted(CALL, cookie=cookie), Access(caller=EVE))
    assert answer.status == 401
    assert site.calls == []
    assert [(one.user, one.endpoint) for one in site.lines if one.refused] == [("eve", CALL)]


async def test_where_nothing_else_tells_the_user_the_session_does(new_site: NewSite) -> None:
    site = new_site()
    access = Access()
    ada, eve = await site.log_in(access=access), await site.log_in(EVE, access)
    assert [await who(site, cookie, access) for cookie in (ada, eve, "", "gpushare-x=y")] == [
        "ada",
        "eve",
        "",
        "",
    ]


async def test_a_proxy_that_tells_the_user_needs_no_session(new_site: NewSite) -> None:
    async def identify(exchange):
        return EVE

    assert await who(new_site(), "", Access(identify=identify)) == "eve"


@pytest.mark.parametrize("spoil", [str.upper, lambda cookie: cookie[:-1], lambda cookie: cookie + "x"])
async def test_another_cookie_is_nobodys(new_site: NewSite, spoil) -> None:
    site = new_site()
    name, _, value = (await site.log_in()).partition("=")
    assert await who(site, f"{name}={spoil(value)}") == ""


async def test_a_cookie_that_another_program_planted_does_not_log_out(new_site: NewSite) -> None:
    site = new_site()
    cookie = await site.log_in()
    name = cookie.partition("=")[0]
    assert await who(site, f"other=1; {name}=planted; {cookie}; {name}=") == "ada"


async def test_a_second_login_of_a_browser_ends_its_first_session(new_site: NewSite) -> None:
    site = new_site()
    first = await site.log_in()
    second = await site.log_in(cookie=first)
    assert [await who(site, cookie) for cookie in (first, second)] == ["", "ada"]


async def test_sessions_of_other_browsers_go_on(new_site: NewSite) -> None:
    site = new_site()
    cookies = [await site.log_in() for _ in range(2)]
    assert [await who(site, cookie) for cookie in cookies] == ["ada", "ada"]


async def test_a_user_has_few_sessions_and_they_crowd_out_nobody_elses(new_site: NewSite) -> None:
    site = new_site()
    eves = await site.log_in(EVE)
    first, *others = [await site.log_in() for _ in range(SESSIONS_OF_A_USER + 1)]
    assert await who(site, first) == ""
    assert await who(site, others[0]) == "ada"
    assert await who(site, eves, Access(caller=EVE)) == "eve"


async def test_all_users_together_have_bounded_sessions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logins, "MAX_SESSIONS", 3)
    found = Logins(None, lambda: 60.0)
    cookies = [await found.begin(User(uid, uid, str(uid))) for uid in range(5)]
    assert [found.session_of(cookie) is not None for cookie in cookies] == [False, False, True, True, True]


async def test_a_session_ends_when_it_was_not_used_for_its_hours(new_site: NewSite) -> None:
    site = new_site()
    cookie = await site.log_in()
    for _ in range(4):
        site.now += 3000
        assert await who(site, cookie) == "ada"
    site.now += 3600
    assert await who(site, cookie) == ""


async def test_the_browsers_cookie_lasts_as_long_as_the_session(new_site: NewSite) -> None:
    site = new_site()
    cookie = await site.log_in()
    assert "set-cookie" not in (await site.ask(posted(CALL, cookie=cookie))).headers
    site.now += 1000
    answer = await site.ask(posted(CALL, cookie=cookie))
    assert answer.cookie == cookie
    assert "Max-Age=3600" in answer.headers["set-cookie"]


async def test_shorter_hours_hold_for_present_sessions_after_their_next_use(new_site: NewSite) -> None:
    site = new_site(hours=100.0)
    cookie = await site.log_in()
    site.hours = 1.0
    assert await who(site, cookie) == "ada"
    site.now += 3600
    assert await who(site, cookie) == ""


async def test_logging_out_ends_the_session_and_takes_the_cookie_away(new_site: NewSite) -> None:
    site = new_site()
    cookie = await site.log_in()
    answer = await site.ask(posted("/logout", cookie=cookie))
    assert answer.status == 204
    assert "Max-Age=0" in answer.headers["set-cookie"]
    assert await who(site, cookie) == ""
    assert site.told(refused=False)[-1] == ("ada", "Web/Logout", "")


async def test_logging_out_without_a_session_is_refused(new_site: NewSite) -> None:
    assert (await new_site().ask(posted("/logout"))).status == 401


# --- streams


async def endless(exchange, caller, query):
    await exchange.start(200, [(b"Content-Type", b"text/event-stream")], b": begun\n\n")
    await asyncio.Event().wait()


async def test_a_stream_ends_with_its_session(new_site: NewSite) -> None:
    site = new_site(stream=endless)
    cookie = await site.log_in()
    async with site.connected() as browser:
        await browser.ask(request("GET", "/stream?watch=%7B%7D", cookie=cookie))
        await site.ask(posted("/logout", cookie=cookie))
        async with asyncio.timeout(SECONDS):
            assert await browser.reader.read() == b"9\r\n: begun\n\n\r\n"


async def test_a_stream_ends_after_a_time_so_that_rights_are_looked_at_again(
    new_site: NewSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(browser_server, "STREAM_SECONDS", 0.05)
    site = new_site(stream=endless)
    cookie = await site.log_in()
    async with site.connected() as browser:
        await browser.ask(request("GET", "/stream?watch=%7B%7D", cookie=cookie))
        async with asyncio.timeout(SECONDS):
            await browser.reader.read()
    assert await who(site, cookie) == "ada"


async def test_a_user_has_a_bounded_number_of_streams(new_site: NewSite) -> None:
    site = new_site(stream=endless)
    cookie, eves = await site.log_in(), await site.log_in(EVE)
    asked = request("GET", "/stream?watch=%7B%7D", cookie=cookie)
    async with asyncio.timeout(SECONDS), asyncio.TaskGroup() as group:
        done = asyncio.Event()
        begun = asyncio.Semaphore(0)

        async def hold() -> None:
            async with site.connected() as browser:
                assert (await browser.ask(asked)).status == 200
                begun.release()
                await done.wait()

        for _ in range(browser_site.STREAMS_OF_A_USER):
            group.create_task(hold())
        for _ in range(browser_site.STREAMS_OF_A_USER):
            await begun.acquire()
        assert (await site.ask(asked)).status == 429
        other = await site.ask(request("GET", "/stream?watch=%7B%7D", cookie=eves), Access(caller=EVE))
        assert other.status == 200
        done.set()


async def test_a_stream_gets_the_caller_and_the_query(new_site: NewSite) -> None:
    async def stream(exchange, caller, query):
        await exchange.respond(200, f"{caller.name} {query}".encode())

    site = new_site(stream=stream)
    data = request("GET", "/stream?watch=%7B%22a%22%7D&x=1", cookie=await site.log_in())
    assert (await site.ask(data)).body == b"ada watch=%7B%22a%22%7D&x=1"


# --- the file


async def test_sessions_outlive_a_restart_and_codes_do_not(new_site: NewSite) -> None:
    site = new_site()
    cookie, code = await site.log_in(), site.logins.make_code(USER)
    site.restart()
    assert await who(site, cookie) == "ada"
    assert (await site.ask(posted("/login", {"code": code}))).status == 401


async def test_ended_sessions_stay_ended_after_a_restart(new_site: NewSite) -> None:
    site = new_site()
    cookie = await site.log_in()
    await site.ask(posted("/logout", cookie=cookie))
    site.restart()
    assert await who(site, cookie) == ""


async def test_the_file_lets_nobody_in(new_site: NewSite, tmp_path: Path) -> None:
    site = new_site()
    cookie = await site.log_in()
    path = tmp_path / "sessions.json"
    text = path.read_text()
    assert path.stat().st_mode & 0o777 == 0o600
    assert cookie.partition("=")[2] not in text
    (session,) = json.loads(text)["sessions"]
    assert await who(site, f"{site.site.cookie_name}={session['key']}") == ""


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "{}",
        '{"version": 2, "sessions": [{}]}',
        '{"version": 1, "sessions": [{}]}',
        '{"version": 1, "sessions": [{"key": "x", "user": {}, "expires_at": 1}]}',
        '{"version": 1, "sessions": 7}',
        "[" * 100_000,
    ],
)
async def test_a_broken_file_has_no_sessions_and_is_replaced(
    new_site: NewSite, tmp_path: Path, text: str
) -> None:
    (tmp_path / "sessions.json").write_text(text)
    site = new_site()
    cookie = await site.log_in()
    site.restart()
    assert await who(site, cookie) == "ada"


async def test_a_browser_is_let_in_though_the_file_cannot_be_written(
    new_site: NewSite, tmp_path: Path
) -> None:
    (tmp_path / ".sessions.json.new").mkdir()
    site = new_site()
    assert await who(site, await site.log_in()) == "ada"
    assert not os.path.lexists(tmp_path / "sessions.json")
