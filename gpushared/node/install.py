"""Puts the systemd units in place; run again after an upgrade it replaces them."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path

from gpushared.domain.errors import ConfigError, PermissionRefused

UNIT_DIR = "etc/systemd/system"
TARGETS = {
    "gpushared.service": f"{UNIT_DIR}/gpushared.service",
    "gpushared.socket": f"{UNIT_DIR}/gpushared.socket",
    "gpushared.sysusers.conf": "etc/sysusers.d/gpushared.conf",
    "gpushared.tmpfiles.conf": "etc/tmpfiles.d/gpushared.conf",
}
DAEMON_IN_UNIT = "/usr/bin/gpushared"
SYSTEMCTL_SECONDS = 60


def install_units(prefix: Path) -> Iterator[str]:
    """Write the units below ``prefix`` and, on the running system, tell systemd; a line for each deed."""
    units = _units()
    for name, target in TARGETS.items():
        yield _write(units / name, prefix / target)
    if prefix == Path("/") and Path("/run/systemd/system").is_dir():
        yield from _tell_systemd()
    yield "next: systemctl enable --now gpushared"


def _units() -> Traversable:
    """In an installed package the units are package data; in a checkout they are beside it."""
    packaged = resources.files("gpushared") / "data" / "systemd"
    if packaged.is_dir():
        return packaged
    return Path(__file__).parents[2] / "systemd"


def _write(unit: Traversable, target: Path) -> str:
    text = unit.read_text().replace(DAEMON_IN_UNIT, str(_daemon()))
    if target.is_file() and target.read_text() == text:
        return f"unchanged {target}"
    verb = "replaced" if target.exists() else "wrote"
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
    except PermissionError as error:
        raise PermissionRefused(f"{target} cannot be written", hint="run it with sudo") from error
    return f"{verb} {target}"


def _daemon() -> Path:
    """The ``gpushared`` beside the Python that runs us, so that a virtual environment stays in use."""
    beside = Path(sys.executable).parent / "gpushared"
    found = str(beside) if beside.is_file() else shutil.which("gpushared")
    if found is None:
        raise ConfigError("the command gpushared is not installed", hint="pip install gpushared")
    return Path(found)


def _tell_systemd() -> Iterator[str]:
    for words in (["systemd-sysusers"], ["systemd-tmpfiles", "--create"], ["systemctl", "daemon-reload"]):
        if shutil.which(words[0]) is None:
            yield f"skipped {words[0]}: it is not installed"
            continue
        try:
            subprocess.run(words, check=True, capture_output=True, timeout=SYSTEMCTL_SECONDS, text=True)
        except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
            raise ConfigError(f"{' '.join(words)} failed: {error}", hint="see journalctl -xe") from error
        yield f"ran {' '.join(words)}"
