"""Keep lease devices: one CDI spec for each lease, which the engine applies at each start of its container.

Format: the Container Device Interface's SPEC.md, https://github.com/cncf-tags/container-device-interface.

Engines follow the directory by inotify and act on a file that is renamed *within* it; they do not see a file
that is renamed into it from elsewhere, or created in place, before some other event there. Hence a temporary
file beside the spec, under a name that no spec has, and a rename.

These functions touch the disk: call them off the event loop.
"""

from __future__ import annotations

import json
import os
import re
import tempfile
from pathlib import Path
from typing import Any

from gpushared.domain.model.errors import EngineUnavailable, RequestError
from gpushared.ports import EditMount, Edits, Hook

KIND = "gpushare.io/lease"
DEFAULT_SPEC_DIR = Path("/var/run/cdi")
"""Every engine with CDI looks here for specs that need not outlive a boot, unless configured otherwise."""

VERSION = "0.5.0"
"""This is the oldest version with all used features: names with a digit first came with it."""

_PREFIX = "gpushare.io-lease-"
_SUFFIX = ".json"
_TEMPORARY = ".tmp"
_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,126}[A-Za-z0-9])?")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def qualified_name(device_name: str) -> str:
    """Return the name that a container asks for: ``gpushare.io/lease=<device_name>``."""
    return f"{KIND}={device_name}"


class LeaseSpecs:
    """Keep our specs in one directory.

    Errors: ``RequestError`` for names and values that no spec can hold, ``EngineUnavailable`` if the
    directory cannot be used.
    """

    def __init__(self, directory: Path = DEFAULT_SPEC_DIR) -> None:
        self.directory = directory

    def write(self, device_name: str, edits: Edits) -> None:
        """Make the device known, or give it other edits; running containers keep their edits."""
        self._put(self._path(device_name), json.dumps(_spec(device_name, edits), indent=1))

    def remove(self, device_name: str) -> None:
        """Forget the device; an unknown device is no error."""
        path = self._path(device_name)
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            raise _unusable(self.directory, error) from error

    def names(self) -> tuple[str, ...]:
        """Return the device names that have a spec, sorted."""
        try:
            file_names = [path.name for path in self.directory.glob(f"{_PREFIX}*{_SUFFIX}")]
        except OSError as error:
            raise _unusable(self.directory, error) from error
        return tuple(sorted(name.removeprefix(_PREFIX).removesuffix(_SUFFIX) for name in file_names))

    def in_directory(self, directory: Path) -> LeaseSpecs:
        """Return the same specs in another directory; return ``self`` if they are already there."""
        if directory == self.directory:
            return self
        moved = LeaseSpecs(directory)
        for name in self.names():
            try:
                moved._put(moved._path(name), self._path(name).read_text())
            except FileNotFoundError:
                continue  # removed in between
            except OSError as error:
                raise _unusable(self.directory, error) from error
            self.remove(name)
        return moved

    def _path(self, device_name: str) -> Path:
        if not _NAME.fullmatch(device_name):
            raise RequestError(
                f"{device_name!r} cannot name a device",
                hint="letters, digits, `_`, `.` and `-` only, a letter or digit at both ends, at most 128",
            )
        return self.directory / f"{_PREFIX}{device_name}{_SUFFIX}"

    def _put(self, path: Path, text: str) -> None:
        try:
            self.directory.mkdir(mode=0o755, parents=True, exist_ok=True)
            handle, name = tempfile.mkstemp(_TEMPORARY, f".{_PREFIX}", self.directory)
            temporary = Path(name)
            try:
                with os.fdopen(handle, "w") as file:
                    file.write(text)
                temporary.rename(path)
            finally:
                temporary.unlink(missing_ok=True)
        except OSError as error:
            raise _unusable(self.directory, error) from error


def _unusable(directory: Path, error: OSError) -> EngineUnavailable:
    return EngineUnavailable(
        f"lease devices cannot be kept in {directory}: {error.strerror}",
        hint="the daemon must be able to write there; the engine names its directories in `docker info`",
    )


def _spec(device_name: str, edits: Edits) -> dict[str, Any]:
    container_edits = {
        "env": [_variable(name, value) for name, value in edits.env.items()],
        "mounts": [_mount(mount) for mount in edits.mounts],
        "deviceNodes": [{"path": _absolute(path), "permissions": "rw"} for path in edits.devices],
        **({"hooks": [_hook(hook) for hook in edits.hooks]} if edits.hooks else {}),
    }
    if not any(container_edits.values()):
        raise RequestError(f"device {device_name} has no edits, which the format does not allow")
    return {
        "cdiVersion": VERSION,
        "kind": KIND,
        "devices": [{"name": device_name, "containerEdits": container_edits}],
    }


def _variable(name: str, value: str) -> str:
    if not _VARIABLE.fullmatch(name) or "\0" in value:
        raise RequestError(f"{name!r} cannot be set in a container's environment")
    return f"{name}={value}"


def _hook(hook: Hook) -> dict[str, Any]:
    if any("\0" in text for text in (*hook.args, *hook.env)):
        raise RequestError(f"{hook.path} cannot be run as a hook")
    return {
        "hookName": "createRuntime",
        "path": _absolute(hook.path),
        "args": list(hook.args),
        "env": list(hook.env),
        "timeout": hook.timeout_seconds,
    }


def _mount(mount: EditMount) -> dict[str, Any]:
    access = "ro" if mount.read_only else "rw"
    return {
        "hostPath": _absolute(mount.source),
        "containerPath": _absolute(mount.target),
        "options": [access, "nosuid", "nodev", "bind"],
    }


def _absolute(path: str) -> str:
    if not path.startswith("/") or "\0" in path:
        raise RequestError(f"{path!r} is not an absolute path")
    return path
