"""Install the systemd units and the command; a run after an upgrade replaces them."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path

from gpushared.domain.model.errors import ConfigError, GpushareError, PermissionRefused

ROOT = Path("/")
UNIT_DIR = "etc/systemd/system"
COMMANDS_IN_UNITS = re.compile(r"/usr/bin/(gpushared-pool|gpushared?)\b")
MANAGER_RUNS = Path("/run/systemd/system")
"""The path exists exactly if systemd is the running service manager (sd_booted(3))."""
SYSTEMCTL_SECONDS = 60


@dataclass(frozen=True, slots=True)
class Package:
    """Name a daemon's files for systemd. ``restart_note`` tells people what a restart leaves unchanged."""

    daemon: str
    units: tuple[str, ...]
    restart_note: str

    @property
    def targets(self) -> dict[str, str]:
        """Return each file's path by its name."""
        return {name: f"{UNIT_DIR}/{name}" for name in self.units} | {
            f"{self.daemon}.sysusers.conf": self.sysusers,
            f"{self.daemon}.tmpfiles.conf": self.tmpfiles,
        }

    @property
    def sysusers(self) -> str:
        return f"etc/sysusers.d/{self.daemon}.conf"

    @property
    def tmpfiles(self) -> str:
        return f"etc/tmpfiles.d/{self.daemon}.conf"


def install_package(prefix: Path, package: Package, command_files: Mapping[str, str]) -> Iterator[str]:
    """Write the units and the command's files below ``prefix``; yield a line for each action.

    On the running system, systemd loads the units before the command's files are written, which the daemon
    does not need. Raises PermissionRefused without the rights, and ConfigError if there is no systemd to
    install for, no command to run as the daemon, or systemd does not accept the units.
    """
    if prefix == ROOT and not MANAGER_RUNS.is_dir() and shutil.which("systemctl") is None:
        raise ConfigError(
            "there is no systemd on this machine",
            hint=f"run `{package.daemon}` under your own service manager, "
            "or write the units elsewhere with --prefix",
        )
    texts = {target: _unit_text(unit) for unit, target in package.targets.items()}
    for target, text in texts.items():
        yield _write(prefix / target, text)
    is_running = prefix == ROOT and MANAGER_RUNS.is_dir()
    if is_running:
        yield from _tell_systemd(package)
    for target, text in command_files.items():
        yield _write(prefix / target, text)
    if is_running:
        yield _next_step(package)


def _unit_text(name: str) -> str:
    return COMMANDS_IN_UNITS.sub(lambda match: _command(match[1]), (_units() / name).read_text())


def _units() -> Traversable:
    """Find the units: package data in an installed package, a folder beside the package in a checkout."""
    packaged = resources.files("gpushared") / "data" / "systemd"
    if packaged.is_dir():
        return packaged
    return Path(__file__).parents[2] / "systemd"


def _command(name: str) -> str:
    """Return the command beside the Python that runs us, so that a virtual environment stays in use."""
    beside = Path(sys.executable).parent / name
    path = str(beside) if beside.is_file() else shutil.which(name)
    if path is None:
        raise ConfigError(f"the command {name} is not installed", hint="pip install gpushared")
    if re.search(r"[\s%$\"'\\]", path):
        raise ConfigError(
            f"systemd cannot run {path}: its path has characters that units give a meaning",
            hint="install gpushared below /opt",
        )
    return path


def _write(target: Path, text: str) -> str:
    """Write a whole file or none, because systemd may read it at any time."""
    part = target.with_name(f".{target.name}.part")
    try:
        if target.is_file() and target.read_text() == text:
            return f"unchanged {target}"
        verb = "replaced" if target.exists() else "wrote"
        target.parent.mkdir(parents=True, exist_ok=True)
        part.write_text(text)
        part.chmod(0o755 if text.startswith("#!") else 0o644)
        part.replace(target)
    except OSError as error:
        raise _cannot_write(target, error) from error
    return f"{verb} {target}"


def _cannot_write(target: Path, error: OSError) -> GpushareError:
    message = f"{target} cannot be written: {error.strerror}"
    if isinstance(error, PermissionError):
        return PermissionRefused(message, hint="run it with sudo" if os.geteuid() else "")
    return ConfigError(message, hint="is the file system full or read-only?")


def _tell_systemd(package: Package) -> Iterator[str]:
    yield _run(["systemd-sysusers", f"/{package.sysusers}"])
    yield _run(["systemd-tmpfiles", "--create", f"/{package.tmpfiles}"])
    yield _run(["systemctl", "daemon-reload"])


def _run(args: Sequence[str]) -> str:
    if shutil.which(args[0]) is None:
        return f"skipped {args[0]}: it is not installed"
    try:
        result = subprocess.run(args, capture_output=True, timeout=SYSTEMCTL_SECONDS, text=True, check=False)
    except subprocess.TimeoutExpired as error:
        raise ConfigError(f"{' '.join(args)} does not come to an end", hint="see journalctl -xe") from error
    if result.returncode:
        raise ConfigError(f"{' '.join(args)} failed: {result.stderr.strip()}", hint="see journalctl -xe")
    return f"ran {' '.join(args)}"


def _next_step(package: Package) -> str:
    args = ["systemctl", "is-active", "--quiet", f"{package.daemon}.service"]
    result = subprocess.run(args, timeout=SYSTEMCTL_SECONDS, check=False)
    if result.returncode == 0:
        return f"next: systemctl restart {package.daemon}   ({package.restart_note})"
    return f"next: systemctl enable --now {package.daemon}"
