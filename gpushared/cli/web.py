"""Serve ``gpushare web``: forward a local port to the daemon for the user's browsers, and print a link."""

from __future__ import annotations

import asyncio
import os
import webbrowser
from contextlib import suppress

import click

from gpushared.cli import text
from gpushared.cli.errors import UsageError, say
from gpushared.cli.web_forwarder import LOOPBACK, Forwarder
from gpushared.client import Client
from gpushared.client.pool_calls import pool_socket

SSH_PORT = "22"
SSH_WORDS = 4


@click.command("web")
@click.option(
    "--port",
    type=click.IntRange(1, 65535),
    metavar="PORT",
    help="Listen at this port of 127.0.0.1.  [default: a free one, 8642 first]",
)
@click.option("--no-browser", "--no-open", is_flag=True, help="Do not open a browser, only print the link.")
@click.option(
    "--allow-host",
    "hosts",
    multiple=True,
    metavar="NAME",
    help="Also serve the page where a browser calls this machine so, as behind a proxy; may be repeated.",
)
@click.option(
    "--link", "only_link", is_flag=True, help="Print a link to the page's own address on the network."
)
@click.option("--pool", "of_pool", is_flag=True, help="The page of the pool, on its coordinator's machine.")
def web(*, port: int | None, no_browser: bool, hosts: tuple[str, ...], only_link: bool, of_pool: bool) -> int:
    """Open the web page of this node in a browser, with your rights.

    The link works once, for five minutes; the browser stays logged in. The page works as long as this
    command runs. In an ssh session the command also prints the line that makes the page reachable from your
    own machine.

    Where the administrators serve the page to the network (web.listen), --link prints a link to it, and the
    command ends.

    \b
    Examples:
      gpushare web
      gpushare web --no-browser --port 8700
      gpushare web --link
    """
    client = Client(f"unix://{pool_socket()}" if of_pool else None)
    if only_link:
        if port is not None or hosts:
            raise UsageError(
                "--link needs no --port and no --allow-host", hint="the daemon listens by itself"
            )
        link = client.web_link(network=True)
        _print(f"{link.url}login#{link.code}")
        say(f"the link works once, within {text.span(link.valid_seconds)}")
        return 0
    with suppress(KeyboardInterrupt):
        asyncio.run(_serve(client, port, hosts, opens=not no_browser))
    return 0


async def _serve(client: Client, port: int | None, hosts: tuple[str, ...], *, opens: bool) -> None:
    for host in hosts:
        if not host.isascii() or any(c in host for c in ", \r\n/"):
            raise UsageError(
                f"--allow-host {host!r} is no host name", hint="give a name, as gpu1.example.org"
            )
    link = await asyncio.to_thread(client.web_link)
    server, port = await Forwarder(client.path, hosts, say).listen(port)
    address = f"http://{LOOPBACK}:{port}{link.base_path}login#"
    if line := ssh_line(port):
        say(f"on your own machine first run:  {line}")
    _print(address + link.code)
    say("the link works once, within 5 minutes; the page works until you end this command")
    if opens and _has_browser():
        await asyncio.to_thread(webbrowser.open, address + link.code)
    try:
        await asyncio.Event().wait()
    finally:
        server.close()  # later versions of Python would wait for all connections, and streams do not end


def _print(link: str) -> None:
    print(link, flush=True)


def _has_browser() -> bool:
    """Return True if a browser would open where the user sits: editors' terminals set BROWSER for that."""
    has_display = os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    is_remote = "SSH_CONNECTION" in os.environ
    return bool(os.environ.get("BROWSER") or (has_display and not is_remote))


def ssh_line(port: int) -> str:
    """Return the line to type at home, empty outside of ssh sessions (SSH_CONNECTION, ssh(1))."""
    fields = os.environ.get("SSH_CONNECTION", "").split()
    if len(fields) != SSH_WORDS:
        return ""
    _, _, address, ssh_port = fields
    user = os.environ.get("USER", "")
    to = f"{user}@{address}" if user else address
    option = "" if ssh_port == SSH_PORT else f"-p {ssh_port} "
    return f"ssh -N {option}-L {port}:{LOOPBACK}:{port} {to}"
