"""``gpushare top`` in a real terminal, before a real daemon: keys, and all that happens to terminals and daemons."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest

from tests.bed import parts
from tests.cli.top.tmux import Tmux, tmux
from tests.node.daemon import GPUSHARE, DaemonProcess, wait_until
from tests.node.test_pool_admin import USER, coordinator, member

__all__ = ["coordinator", "member"]

ALICE, BOB = 61001, 61002
Opened = Callable[..., Tmux]


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Opened]:
    """Open a terminal with ``gpushare top`` on a daemon, and wait for its first picture."""
    with ExitStack() as stack:

        def open_top(
            daemon: DaemonProcess,
            *words: str,
            width: int = 110,
            height: int = 30,
            until: str = "LEASES",
            **environ: str,
        ) -> Tmux:
            window = stack.enter_context(tmux(tmp_path))
            settings = {
                "PATH": f"{parts.DOCKER.parent}:{os.environ['PATH']}",
                "HOME": "/tmp",
                "LANG": "C.UTF-8",
                "TERM": "screen-256color",
                "DOCKER_CONFIG": "/nonexistent",
                "PYTHONPATH": os.environ.get("PYTHONPATH", ""),
                "GPUSHARE_HOST": f"unix://{daemon.socket}",
            }
            window.start([str(GPUSHARE), "top", *words], settings | environ, width, height)
            window.wait_for(until)
            return window

        yield open_top


@pytest.fixture
def leased(lone_daemon: DaemonProcess) -> DaemonProcess:
    """Alice and Bob hold a quarter each, and Alice waits for both GPUs."""
    for uid, gpu in ((ALICE, "0.25"), (BOB, "0.25"), (ALICE, "2")):
        lone_daemon.request(gpu, uid=uid)
    return lone_daemon


def rows(shown: str) -> list[str]:
    """The ids of the leases on the screen."""
    return re.findall(r"^[ >](?: +\d+  )?(l-[0-9a-z]{4})\b", shown, re.MULTILINE)


def test_the_picture_has_the_figures_of_the_commands(leased: DaemonProcess, opened: Opened) -> None:
    shown = opened(leased).wait_for("SIMULATED", "QUEUE 1")
    assert len(rows(shown)) == 3
    assert "2 GPUs, 2 leases, 1 waiting" in shown
    for listing, columns in (("ps", "lease,user,gpu,share,memory"), ("gpus", "memory,power,free")):
        for line in leased.gpushare_says(listing, "--no-headers", "-o", f"columns={columns}").splitlines():
            assert set(line.split()) <= set(shown.split()), line


def test_one_picture_is_plain_where_nobody_looks(leased: DaemonProcess) -> None:
    once = leased.gpushare_says("top", "--once")
    assert "\x1b" not in once
    assert len(rows(once)) == 3
    assert rows(leased.gpushare_says("top")) == rows(once), "a pipe is no terminal"
    mine = leased.gpushare("top", "--once", "--mine", uid=BOB)
    assert len(rows(mine.stdout)) == 1, mine.stderr


def test_programs_get_a_document_a_line(leased: DaemonProcess) -> None:
    shown = json.loads(leased.gpushare_says("top", "--json", "--once"))
    listed = json.loads(leased.gpushare_says("ps", "-o", "json"))
    assert shown["schema"] == "gpushare.top/1"
    assert shown["simulated"] is True
    assert shown["leases"] == listed["items"]
    assert [gpu["uuid"] for gpu in shown["gpus"]] == leased.gpushare_says("gpus", "-q").splitlines()
    with subprocess.Popen(
        [str(GPUSHARE), "top", "--json", "-n", "0.5"],
        stdout=subprocess.PIPE,
        env={**os.environ, "GPUSHARE_HOST": f"unix://{leased.socket}"},
        text=True,
    ) as running:
        assert running.stdout is not None
        times = [json.loads(running.stdout.readline())["at"] for _ in range(2)]
        running.terminate()
    assert times[0] < times[1]


def test_keys_filter_sort_and_explain(leased: DaemonProcess, opened: Opened) -> None:
    window = opened(leased)
    window.press("?")
    window.wait_for("KEYS", "the story of the lease")
    window.press("q")
    window.wait_without("KEYS")
    window.type(f"/{BOB}")
    shown = window.wait_for(f"1 of 2 with '{BOB}'", f"show only: {BOB}_")
    window.press("Enter")
    assert len(rows(window.wait_without("show only"))) == 1
    window.press("Escape")
    window.wait_without("with '")
    window.press("s")
    window.wait_for("by user")
    (lease, *_) = rows(window.shown())
    window.press("Enter")
    window.wait_for(f"gpushare why {lease}", "story", "asked for 0.25")
    window.press("q")
    window.wait_without(f"gpushare why {lease}")
    window.press("w")
    shown = window.wait_for(f"gpushare why {lease}", "holds")
    assert "story" not in shown.replace("enter story", "")
    window.press("q", "Tab", "Enter")
    window.wait_for("needs", "place    1 of 1")
    window.press("q", "g")
    window.wait_for("THE LAST HOUR", "the user who held most")


def test_a_lease_is_stopped_after_a_question(daemon: DaemonProcess, opened: Opened) -> None:
    lease = daemon.hold("0.5", command=("sh", "-c", "echo the first line; exec sleep 1000"))
    window = opened(daemon)
    window.wait_for(f"k stop {lease['id']}")
    window.press("l")
    window.wait_for(f"$ gpushare logs -f -n 100 {lease['id']}", "the first line")
    window.press("C-c")
    window.wait_for("Enter: back to gpushare top")
    window.press("Enter")
    window.wait_for("LEASES 1")
    window.press("k")
    window.wait_for(f"gpushare stop {lease['id']}", "y or n?")
    window.press("n")
    window.wait_for("nothing was done")
    assert daemon.lease(lease["id"])["state"] == "active"
    window.press("k", "y")
    window.wait_for("no leases")
    assert daemon.lease(lease["id"])["outcome"]["kind"] == "stopped"


def test_what_the_daemon_refuses_is_said(leased: DaemonProcess, opened: Opened) -> None:
    window = opened(leased)
    window.press("e")
    window.wait_for("extend l-", "by: 1h_")
    window.press("BSpace", "BSpace")
    window.type("soon")
    window.press("Enter")
    window.wait_without("by: soon_")
    window.wait_for("'soon'", "LEASES 2")


def test_a_daemon_that_ends_and_begins_again_is_followed(leased: DaemonProcess, opened: Opened) -> None:
    window = opened(leased, "-n", "0.5")
    leased.kill()
    shown = window.wait_for("no answer for", "LEASES 2")
    assert rows(shown), "what was known stays"
    window.press("?")
    window.wait_for("KEYS")
    window.press("q")
    leased.start()
    window.wait_without("no answer for")


def test_keys_work_while_the_daemon_hangs(leased: DaemonProcess, opened: Opened) -> None:
    window = opened(leased, "-n", "0.5")
    leased.signal(signal.SIGSTOP)
    try:
        window.wait(lambda shown: re.search(r"\b[3-9]s old", shown) is not None, "the age to grow")
        window.press("?")
        window.wait_for("KEYS")
        window.press("q", "q")
        window.wait(lambda shown: shown.rstrip().endswith("$"), "the shell to be back")
    finally:
        leased.signal(signal.SIGCONT)


def test_the_picture_follows_the_size_of_the_terminal(leased: DaemonProcess, opened: Opened) -> None:
    window = opened(leased)
    window.resize(60, 12)
    shown = window.wait(
        lambda shown: "? help" in shown.splitlines()[-1] and len(shown.splitlines()) == 12, "12 lines"
    )
    assert max(map(len, shown.splitlines())) <= 60
    window.resize(150, 40)
    window.wait(lambda shown: len(shown.splitlines()) == 40 and "TREND" in shown, "40 lines")


def process_of(window: Tmux) -> psutil.Process:
    """The process of ``gpushare top`` in the window."""
    shell = psutil.Process(int(window.told("pane_pid")))
    (found,) = (one for one in shell.children(recursive=True) if "top" in one.cmdline())
    return found


def test_the_terminal_is_in_order_after_each_end(leased: DaemonProcess, opened: Opened) -> None:
    """Of Ctrl-C, of q and of SIGTERM: the shell's prompt is back, and what is typed is seen."""
    for end in ("q", "C-c", "SIGTERM"):
        window = opened(leased)
        if end == "SIGTERM":
            process_of(window).terminate()
        else:
            window.press(end)
        window.wait(lambda shown: shown.rstrip().endswith("$"), "the shell to be back")
        window.type("echo code $? end")
        window.press("Enter")
        window.wait_for({"q": "code 0 end", "C-c": "code 130 end", "SIGTERM": "code 143 end"}[end])


def test_it_is_suspended_and_comes_back(leased: DaemonProcess, opened: Opened) -> None:
    window = opened(leased)
    window.press("C-z")
    window.wait(lambda shown: "Stopped" in shown or "Suspended" in shown, "the shell to be back")
    window.type("fg")
    window.press("Enter")
    window.wait_for("LEASES 2", "? help")
    window.press("?")
    window.wait_for("KEYS")


def test_a_dumb_terminal_gets_one_picture(leased: DaemonProcess, opened: Opened) -> None:
    shown = opened(leased, TERM="dumb").wait_for("LEASES 2", "QUEUE 1")
    assert shown.isascii()
    assert "? help" not in shown


def test_an_unknown_terminal_is_refused_in_a_sentence(leased: DaemonProcess, opened: Opened) -> None:
    opened(leased, until="is not known", TERM="no-such-terminal").wait_for("hint: set TERM")


@pytest.mark.parametrize("environ", [{"NO_COLOR": "1"}, {"TERM": "vt100"}, {"LC_ALL": "C"}])
def test_other_terminals_are_drawn_on(leased: DaemonProcess, opened: Opened, environ: dict[str, str]) -> None:
    window = opened(leased, **environ)
    shown = window.wait_for("LEASES 2", "QUEUE 1")
    assert shown.isascii() or "LC_ALL" not in environ
    coloured = window.shown_with_looks()
    assert not re.search(r"\x1b\[[0-9;]*3[1-7]m", coloured) or "NO_COLOR" not in environ


def test_it_costs_one_thread_and_sleeps(leased: DaemonProcess, opened: Opened) -> None:
    process = process_of(opened(leased, "-n", "3600"))
    wait_until(lambda: process.status() == psutil.STATUS_SLEEPING, "it sleeps")
    assert process.num_threads() == 2, "one for the terminal, one that asks"


def test_a_pool_is_shown_with_its_nodes(member: DaemonProcess, opened: Opened) -> None:
    """The lease of a node has an id of that node only, so that no command here is offered for it."""
    lease = member.request("0.25", uid=USER)["id"]
    window = opened(member, "--pool", until="NODES 1")
    shown = window.wait_for("pool lab", "ws1", lease)
    assert "k stop" not in shown
    window.press("k")
    window.wait_for("choose a lease that commands on this machine can name")
    window.press("g")
    window.wait_for("the last hour is shown for one machine")
    once = member.gpushare_says("top", "--node", "ws2", "--once")
    assert lease not in once
    assert json.loads(member.gpushare_says("top", "--pool", "--json", "--once"))["nodes"][0]["name"] == "ws1"
