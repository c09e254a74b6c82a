"""Choose the home and the name in a confined caller's container. Pure.

Images are made for root, and have root's home and name. Programs that run as another user find neither, and
many programs need both: caches lie in the home, and Python's ``getpass.getuser`` fails without a name.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Sequence

from gpushared.domain.model.request import Caller
from gpushared.gate.api.body import Body, objects, section, strings
from gpushared.gate.containers.inject import default_env, user_targets
from gpushared.net.accounts import Account, PathWish

HOME_IN_MEMORY = "rw,exec,nosuid,nodev,mode=0700,uid={uid},gid={gid}"
"""Compilers of kernels put libraries into their caches, which need ``exec``."""
OTHER_PLACE = "/gpushare-home"
"""No image has a file at this path, and no mount but one of ``/`` lies around it."""
USERS_FILE = "/etc/passwd"
USERS_FILE_BYTES = 64 * 1024
"""A longer file is left as it is."""
_PLAIN = re.compile(r"\w[\w.@-]*", re.ASCII)
_NAME = re.compile(r"\w[\w.@$\\ -]*")
_HOME = re.compile(r"/[^:\n]{0,4094}")
"""A home is at most as long as a path may be: the daemon keeps a file for each different line."""


def put_home(
    body: Body, image: Body, account: Account, asked: Sequence[PathWish], held: Sequence[PathWish]
) -> dict[str, str]:
    """Put HOME, USER and LOGNAME into a judged body, where neither it nor the image names them.

    The home is the caller's own where it is mounted, else one in memory. ``asked`` are the sources of the
    body's bind mounts as the caller wrote them, ``held`` the same as they were found. Gives what was put in.
    """
    env, host = strings(body, "Env"), body["HostConfig"]
    said = {entry.partition("=")[0] for entry in (*env, *strings(image, "Env"))}
    caller = account.caller
    ours = {name: caller.name for name in ("USER", "LOGNAME") if name not in said}
    if "HOME" not in said:
        place = _mounted_home(host, account, asked, held)
        if not place:
            place, is_free = _place(body, caller)
            if is_free:
                options = HOME_IN_MEMORY.format(uid=caller.uid, gid=caller.gid)
                host["Tmpfs"] = {**section(host, "Tmpfs"), place: options}
        ours["HOME"] = place
    body["Env"] = default_env(env, ours)
    return ours


def passwd_line(body: Body, image: Body, caller: Caller) -> bytes:
    """Return the caller's line for ``/etc/passwd``, empty if none can be written, or be seen."""
    targets = map(_clean, user_targets(body))
    if not _NAME.fullmatch(caller.name) or any(_is_in(USERS_FILE, target) for target in targets):
        return b""
    env = _values(strings(image, "Env")) | _values(strings(body, "Env"))
    home = env.get("HOME", "")
    home = home if _HOME.fullmatch(home) else "/"
    return f"{caller.name}:x:{caller.uid}:{caller.gid}::{home}:/bin/sh\n".encode()


def with_line(passwd: bytes, line: bytes) -> bytes | None:
    """Return the passwd file's text with the line added; None if its name or its number is taken."""
    name, _, uid, _ = line.split(b":", 3)
    for row in passwd.splitlines():
        fields = row.split(b":")
        if fields[0] == name or (len(fields) > 2 and fields[2].lstrip(b"0") == uid):  # noqa: PLR2004 - the uid
            return None
    return passwd + (b"" if passwd.endswith(b"\n") or not passwd else b"\n") + line


def _mounted_home(host: Body, account: Account, asked: Sequence[PathWish], held: Sequence[PathWish]) -> str:
    """Return the path at which the caller's own home is mounted writable, empty if there is none."""
    binds = [mount for mount in objects(host, "Mounts") if mount["Type"] == "bind"]
    for bind, before, now in zip(binds, asked, held, strict=True):
        if now.write and account.home in {posixpath.normpath(before.path), now.path}:
            return _clean(str(bind["Target"]))
    return ""


def _place(body: Body, caller: Caller) -> tuple[str, bool]:
    """Return the path of a new home, and True if nothing is mounted there yet.

    The path lies in no mount, because in a mount the engine would make the directory as root.
    """
    place = f"/home/{caller.name if _PLAIN.fullmatch(caller.name) else caller.uid}"
    targets = [_clean(target) for target in user_targets(body)]
    if place in targets:
        return place, False
    if any(_is_in(place, target) for target in targets):
        place = OTHER_PLACE
    return place, place not in targets


def _is_in(path: str, around: str) -> bool:
    return f"{path}/".startswith(f"{around.rstrip('/')}/")


def _clean(path: str) -> str:
    return "/" + posixpath.normpath(path).lstrip("/")


def _values(env: Sequence[str]) -> dict[str, str]:
    """Return the variables by name; a bare name unsets the image's variable."""
    return {name: value for name, _, value in (entry.partition("=") for entry in env)}
