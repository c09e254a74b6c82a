"""Give confined callers' containers a home, a name, and an ``/etc/passwd`` with a line for the caller.

A file of the daemon's is mounted over the image's. To write into the container instead, as ``docker cp``
does, an engine before 29.5.1 would mount the container's mounts as root, at places that users can move.

Images are made for root, and have root's home and name. Programs that run as another user find neither, and
many programs need both: caches lie in the home, and Python's ``getpass.getuser`` fails without a name.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import io
import json
import logging
import posixpath
import re
import secrets
import tarfile
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

from gpushared.daemon.files import write_durably
from gpushared.domain.model.errors import EngineUnavailable, GpushareError
from gpushared.domain.model.request import Caller
from gpushared.gate.api.body import Body, objects, section, serialise, strings
from gpushared.gate.containers.inject import default_env, user_targets
from gpushared.gate.containers.ownership import CREATED, OK
from gpushared.gate.mounts.held_mounts import list_labelled
from gpushared.gate.policy.mount_rules import clean_path
from gpushared.mountinfo import is_under
from gpushared.net.http_client import EngineSocket
from gpushared.net.identity import Account, NeededPath

log = logging.getLogger(__name__)

LABEL_USERS = "gpushare.passwd"
"""This label has the name of the container's file."""
LABEL_LOOK = "gpushare.look"
"""This label marks containers that are made to look into an image, and never started."""
LOOK_PLACE = "/gpushare-look"
"""The containers with ``LABEL_LOOK`` mount the directory of the files here."""
OURS = "gpushare."
IMAGES_KEPT = 64
FAILED_SECONDS = 60.0
"""After a failed look, which can have taken minutes, the image is not looked at again for this long."""
CREATE_SECONDS = 600.0
FILE_SECONDS = 30.0
STAT_HEADER = b"x-docker-container-path-stat"
_FIRST_TYPE_BIT = 9
"""In a mode in Go the permissions lie below this bit; the bits from here on show the kind of file."""
HOME_IN_MEMORY = "rw,exec,nosuid,nodev,mode=0700,uid={uid},gid={gid}"
"""Compilers of kernels put libraries into their caches, which need ``exec``."""
OTHER_PLACE = "/gpushare-home"
"""No image has a file at this path, and no mount but one of ``/`` includes it."""
USERS_FILE = "/etc/passwd"
USERS_FILE_BYTES = 64 * 1024
"""A longer file is left as it is."""
_PLAIN = re.compile(r"\w[\w.@-]*", re.ASCII)
_NAME = re.compile(r"\w[\w.@$\\ -]*")
_HOME = re.compile(r"/[^:\n]{0,4094}")
"""A home is at most as long as a path may be: the daemon keeps a file for each different line."""


class PasswdFiles:
    """Make, keep and remove the passwd files. Without a directory no files are made.

    The name of a file is its text's digest: containers of one user and one image share a file.
    """

    def __init__(self, engine: EngineSocket, directory: Path | None) -> None:
        self._engine = engine
        self._directory = directory
        self._images: OrderedDict[str, bytes | None] = OrderedDict()
        """The files of the images that were last looked into; None if a file stays as it is."""
        self._looks: dict[str, asyncio.Task[bytes | None]] = {}
        self._look_owner = secrets.token_hex(6)
        self._making: Counter[str] = Counter()
        self._recent: set[str] = set()
        """The names that were used since the last sweep began."""
        self._lock = asyncio.Lock()

    @asynccontextmanager
    async def with_line(self, image: Body, line: bytes) -> AsyncIterator[Path | None]:
        """Yield a file for a container that the block makes; None if the image's own file will do.

        ``image`` is the engine's description of the container's image.
        """
        text = await self._text(image, line) if self._directory is not None and line else None
        if text is None:
            yield None
            return
        name = hashlib.sha256(text).hexdigest()[:32]
        self._making[name] += 1
        try:
            yield await self._file(name, text)
        finally:
            self._making -= Counter([name])  # drops names with a count of zero, which would accumulate

    async def sweep(self) -> None:
        """Remove the files that no container uses, and the containers of an earlier run's looks."""
        if self._directory is None or not self._directory.exists():
            return
        self._recent = {*self._making}
        used = {section(each, "Labels")[LABEL_USERS] for each in await self._containers(LABEL_USERS)}
        async with self._lock:
            await asyncio.to_thread(_remove, self._directory, used | self._recent)
        for container in await self._containers(LABEL_LOOK):
            owner = section(container, "Labels")[LABEL_LOOK]
            if owner not in {"", self._look_owner} and self._is_for_a_look(container):
                await self._engine.call("DELETE", f"/containers/{container['Id']}?v=1".encode())

    def _is_for_a_look(self, container: Body) -> bool:
        """Return True if the daemon made this container for a look.

        Its label does not prove that: an image can bring the label into anybody's containers.
        """
        seen = str(self._directory), LOOK_PLACE
        mounts = objects(container, "Mounts")
        return any((each.get("Source"), each.get("Destination")) == seen for each in mounts)

    async def _file(self, name: str, text: bytes) -> Path | None:
        assert self._directory is not None
        async with self._lock:
            self._recent.add(name)
            try:
                return await asyncio.to_thread(_write, self._directory, name, text)
            except OSError as error:
                log.warning("a container's user has no name inside: %s", error.strerror)
                return None

    async def _text(self, image: Body, line: bytes) -> bytes | None:
        passwd = await self._of_image(image)
        return None if passwd is None else with_line(passwd, line)

    async def _of_image(self, image: Body) -> bytes | None:
        """Return the image's file. One look serves all callers, and goes on if a caller goes away."""
        identity = str(image.get("Id") or "")
        if not identity:
            return None
        if identity in self._images:
            self._images.move_to_end(identity)
            return self._images[identity]
        look = self._looks.get(identity)
        if look is None:
            look = self._looks[identity] = asyncio.create_task(self._look(identity, image))
            look.add_done_callback(lambda _: self._looks.pop(identity, None))
        return await asyncio.shield(look)

    async def _look(self, identity: str, image: Body) -> bytes | None:
        try:
            passwd = await self._read(identity, image)
        except (GpushareError, OSError) as error:
            log.warning("an image's users are not known: %s", error)
            passwd = None
            asyncio.get_running_loop().call_later(FAILED_SECONDS, self._images.pop, identity, None)
        self._images[identity] = passwd
        while len(self._images) > IMAGES_KEPT:
            self._images.popitem(last=False)
        return passwd

    async def _read(self, identity: str, image: Body) -> bytes | None:
        """Read the file out of a container of the image that has no other purpose and is never started."""
        assert self._directory is not None
        await asyncio.to_thread(self._directory.mkdir, mode=0o700, parents=True, exist_ok=True)
        body = serialise(self._look_body(identity, section(image, "Config")))
        answer = await self._engine.call("POST", b"/containers/create", body, timeout_seconds=CREATE_SECONDS)
        if answer.status != CREATED:
            raise EngineUnavailable(str(answer.json().get("message")))
        container = answer.json()["Id"]
        try:
            return await self._read_from(container)
        finally:
            await self._engine.call("DELETE", f"/containers/{container}?force=1&v=1".encode())

    def _look_body(self, identity: str, config: Body) -> Body:
        # Labels of the image would give the container an owner.
        labels = {name: "" for name in section(config, "Labels") if name.startswith(OURS)}
        # If the engine does not see the directory, the refusal comes here, and not at the user's create.
        seen = {"Type": "bind", "Source": str(self._directory), "Target": LOOK_PLACE, "ReadOnly": True}
        empty = [{"Type": "tmpfs", "Target": path} for path in section(config, "Volumes")]
        return {
            "Image": identity,
            "Cmd": ["true"],
            "Labels": {**labels, LABEL_LOOK: self._look_owner},
            "HostConfig": {"NetworkMode": "none", "Mounts": [seen, *empty]},
        }

    async def _read_from(self, container: str) -> bytes | None:
        target = f"/containers/{container}/archive?path={quote(USERS_FILE, safe='')}".encode()
        head = await self._engine.call("HEAD", target, timeout_seconds=FILE_SECONDS)
        headers = {name.lower(): value for name, value in head.headers}
        if head.status != OK or not is_small_file(headers.get(STAT_HEADER, b"")):
            return None
        answer = await self._engine.call("GET", target, timeout_seconds=FILE_SECONDS)
        return _only_file(answer.body) if answer.status == OK else None

    async def _containers(self, label: str) -> list[Body]:
        answer = await list_labelled(self._engine, label)
        if answer.status != OK:
            raise EngineUnavailable("the Docker engine does not list its containers")
        return list(answer.json())


def is_small_file(header: bytes) -> bool:
    """Return True if the engine describes a path as a plain file that is small enough to be read."""
    try:
        status: Any = json.loads(base64.b64decode(header))
        is_plain = status["mode"] >> _FIRST_TYPE_BIT == 0
        return bool(is_plain and 0 <= status["size"] <= USERS_FILE_BYTES)
    except (ValueError, KeyError, TypeError):
        return False


def _only_file(archive: bytes) -> bytes | None:
    with contextlib.suppress(tarfile.TarError), tarfile.open(fileobj=io.BytesIO(archive), mode="r:") as tar:
        member = tar.next()
        if member is not None and member.isreg() and member.size <= USERS_FILE_BYTES:
            file = tar.extractfile(member)
            return None if file is None else file.read()
    return None


def _write(directory: Path, name: str, text: bytes) -> Path:
    path = directory / name
    if not path.exists():
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)  # the directory may have been removed
        write_durably(path, text, mode=0o644)
    return path


def _remove(directory: Path, spared: set[str]) -> None:
    for path in directory.iterdir():
        if path.name not in spared:
            path.unlink(missing_ok=True)


def put_home(
    body: Body, config: Body, account: Account, wishes: Sequence[NeededPath], resolved: Sequence[NeededPath]
) -> dict[str, str]:
    """Put HOME, USER and LOGNAME into a judged body, where neither it nor the image names them.

    The home is the caller's own if it is mounted, else one in memory. ``wishes`` has the sources of the
    body's bind mounts as the caller wrote them, ``resolved`` the same sources resolved. Returns the added
    variables.
    """
    env, host = strings(body, "Env"), body["HostConfig"]
    named = {entry.partition("=")[0] for entry in (*env, *strings(config, "Env"))}
    caller = account.caller
    added = {name: caller.name for name in ("USER", "LOGNAME") if name not in named}
    if "HOME" not in named:
        home = _mounted_home(host, account, wishes, resolved)
        if not home:
            home, is_free = _new_home(body, caller)
            if is_free:
                options = HOME_IN_MEMORY.format(uid=caller.uid, gid=caller.gid)
                host["Tmpfs"] = {**section(host, "Tmpfs"), home: options}
        added["HOME"] = home
    body["Env"] = default_env(env, added)
    return added


def passwd_line(body: Body, config: Body, caller: Caller) -> bytes:
    """Return the caller's line for ``/etc/passwd``.

    The line is empty if it cannot be written or a mount would hide it.
    """
    targets = map(clean_path, user_targets(body))
    if not _NAME.fullmatch(caller.name) or any(is_under(USERS_FILE, target) for target in targets):
        return b""
    env = _values(strings(config, "Env")) | _values(strings(body, "Env"))
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


def _mounted_home(
    host: Body, account: Account, wishes: Sequence[NeededPath], resolved: Sequence[NeededPath]
) -> str:
    """Return the path at which the caller's own home is mounted writable, empty if there is none."""
    binds = [mount for mount in objects(host, "Mounts") if mount["Type"] == "bind"]
    for bind, before, now in zip(binds, wishes, resolved, strict=True):
        if now.write and account.home in {posixpath.normpath(before.path), now.path}:
            return clean_path(str(bind["Target"]))
    return ""


def _new_home(body: Body, caller: Caller) -> tuple[str, bool]:
    """Return the path of a new home, and True if the path has no mount yet.

    The path lies in no mount, because in a mount the engine would make the directory as root.
    """
    home = f"/home/{caller.name if _PLAIN.fullmatch(caller.name) else caller.uid}"
    targets = [clean_path(target) for target in user_targets(body)]
    if home in targets:
        return home, False
    if any(is_under(home, target) for target in targets):
        home = OTHER_PLACE
    return home, home not in targets


def _values(env: Sequence[str]) -> dict[str, str]:
    """Return the variables by name; a bare name unsets the image's variable."""
    return {name: value for name, _, value in (entry.partition("=") for entry in env)}
