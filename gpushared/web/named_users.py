"""Identify the users whom proxies name in a header.

A header says nothing about its sender, so each way in decides first if its other end is a proxy.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from gpushared.domain.leases.project_settings import is_user_name
from gpushared.domain.model.errors import PermissionRefused
from gpushared.domain.model.request import Caller
from gpushared.domain.model.units import shown
from gpushared.net.http_server import HeaderList

NameUser = Callable[[str], Awaitable[Caller]]
"""Return the user of a name. It raises PermissionRefused for a name that nobody has."""


def named_user(headers: HeaderList, name: str) -> str:
    """Return the user whom the header ``name`` gives. Raises PermissionRefused unless it gives just one."""
    values = [value for key, value in headers if key == name.lower().encode()]
    if not values:
        raise PermissionRefused(
            f"the proxy in front of this page names no user: the header {name} is missing",
            hint="docs/how-to/page-behind-a-proxy.md has what the proxy must send",
        )
    try:
        user = values[0].decode()
    except UnicodeDecodeError:
        user = ""
    # Proxies join headers of one name by commas, and is_user_name takes no comma.
    if len(values) > 1 or not is_user_name(user):
        header_value = shown(b", ".join(values).decode(errors="replace"))
        raise PermissionRefused(
            f"the header {name} is {header_value}, which is not one user's name",
            hint="the proxy is to send its own value only: it must drop the header that a browser sends",
        )
    return user


async def identified(headers: HeaderList, name: str, user_of: NameUser) -> Caller:
    """Return the caller whom the header names. Raises PermissionRefused, also for root."""
    caller = await user_of(named_user(headers, name))
    if caller.uid == 0:
        raise PermissionRefused(
            "a proxy cannot say that its user is root", hint="root sees the page by `gpushare web`"
        )
    return caller
