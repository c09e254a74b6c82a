"""One Chromium and one played machine for all tests of the page, and a visitor for each user."""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Final

import pytest
import pytest_asyncio
from playwright.async_api import Browser, async_playwright

from tests.web.browser.busy_machine import ADMIN, ALICE, BOB, BusyMachine, play, start_daemon
from tests.web.browser.forwarder import Forwarder
from tests.web.browser.visitor import Visitor

FLAGS: Final = (
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-gpu",
    "--disable-quic",
    "--disable-sync",
    "--no-first-run",
    # No name is resolved, so that nothing leaves the machine, whatever a page asks for.
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
)
HERE: Final = Path(__file__).parent

NewVisitor = Callable[..., Awaitable[Visitor]]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let all tests here run on the loop that the browser is spoken to on."""
    for item in items:
        if HERE in item.path.parents and pytest_asyncio.is_async_test(item):
            item.add_marker(pytest.mark.asyncio(loop_scope="session"), append=False)


@pytest.fixture(scope="session")
def network() -> Iterator[tuple[str, ...]]:
    """The words that run a command in a network of its own, which has loopback only.

    In the machine's network each container of another test adds an interface, and Chromium gives up its
    requests whenever one does (ERR_NETWORK_CHANGED).
    """
    words = ["unshare", "--net", "sh", "-c", "ip link set lo up && echo up && exec sleep infinity"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "up\n"
        yield ("nsenter", f"--net=/proc/{holder.pid}/ns/net", "--")
        holder.kill()


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def browser(
    chromium: Path, network: tuple[str, ...], tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Browser]:
    program = tmp_path_factory.mktemp("browser") / "chromium"
    program.write_text(f'#!/bin/sh\nexec {shlex.join(network)} {chromium} "$@"\n')
    program.chmod(0o755)
    async with async_playwright() as playwright:
        started = await playwright.chromium.launch(executable_path=program, args=list(FLAGS))
        yield started
        await started.close()


@pytest.fixture(scope="session")
def busy_machine(docker_engine: str) -> Iterator[BusyMachine]:
    """A machine that the tests look at, and leave as it is."""
    daemon = start_daemon()
    try:
        yield play(daemon)
    finally:
        daemon.dispose()


@pytest.fixture(scope="session")
def forwarders(
    busy_machine: BusyMachine, network: tuple[str, ...], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[int, Forwarder]]:
    """``gpushare web`` of each user."""
    logs = tmp_path_factory.mktemp("web")
    started = {
        uid: Forwarder(busy_machine.daemon, uid, logs / str(uid), network=network)
        for uid in (ALICE, BOB, ADMIN)
    }
    yield started
    for forwarder in started.values():
        forwarder.end()


@pytest_asyncio.fixture(loop_scope="session")
async def new_visitor(browser: Browser, request: pytest.FixtureRequest) -> AsyncIterator[NewVisitor]:
    """Makes visitors: call it with a user, and with options for the context, such as ``color_scheme``.

    A user's uid stands for the user on the machine that all look at; a forwarder may lead to another one.

    A test fails if anything went wrong in a page of theirs: an error on the console or of a script, a request
    to elsewhere, a violation of the page's policy.
    """
    visitors: list[Visitor] = []
    async with AsyncExitStack() as contexts:

        async def make(
            user: int | Forwarder = ALICE, *, logs_in: bool = True, link: str = "", **options: Any
        ) -> Visitor:
            context = await contexts.enter_async_context(await browser.new_context(**options))
            led = user if isinstance(user, Forwarder) else request.getfixturevalue("forwarders")[user]
            visitor = Visitor(context, led)
            visitors.append(visitor)
            visitor.page = await context.new_page()
            if logs_in:
                await visitor.log_in(link)
            return visitor

        yield make
    for visitor in visitors:
        visitor.check()


@pytest_asyncio.fixture(loop_scope="session")
async def alice(new_visitor: NewVisitor) -> Visitor:
    return await new_visitor(ALICE)


@pytest_asyncio.fixture(loop_scope="session")
async def bob(new_visitor: NewVisitor) -> Visitor:
    return await new_visitor(BOB)


@pytest_asyncio.fixture(loop_scope="session")
async def admin(new_visitor: NewVisitor) -> Visitor:
    return await new_visitor(ADMIN)
