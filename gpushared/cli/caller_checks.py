"""Check the caller's side for ``gpushare doctor``: the faults that can be seen without the daemon."""

from __future__ import annotations

import grp
import os
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field

from gpushared import __version__
from gpushared.cli.config import MAIN_FILE
from gpushared.cli.docker_cli import find_docker
from gpushared.client import Client, DoctorReport, NodeStatus
from gpushared.domain.model.checkup import Check, CheckFinding, failed, ok, skipped, warning
from gpushared.domain.model.errors import ConfigError, GpushareError, NotFound

DOCKER_SECONDS = 5.0
OLDEST_DOCKER = (20, 10)
DOCKER_GROUP = "docker"
_VERSION = re.compile(r"Docker version (\d+)\.(\d+)[\w.+~-]*", re.IGNORECASE)
_USER_INFO = re.compile(r"(?<=://)[^/@\s]+@")


@dataclass(frozen=True, slots=True)
class DockerCli:
    """Describe the docker command; ``says`` is the answer to ``docker --version``."""

    path: str
    says: str = ""


@dataclass(frozen=True, slots=True)
class CallerFacts:
    """Hold the facts that the caller sees; a part that failed holds its error."""

    path: str | GpushareError
    status: NodeStatus | GpushareError
    report: DoctorReport | GpushareError
    docker: DockerCli | GpushareError
    environ: Mapping[str, str] = field(default_factory=dict)
    uid: int = 0
    groups: tuple[str, ...] = ()
    config_problem: str = ""


def caller_facts() -> CallerFacts:
    """Ask the daemon, docker and this process; this takes half a minute if the daemon hangs."""
    try:
        client = Client()
    except GpushareError as error:
        return _facts(error, error, error)
    client.retries = None  # that it is away is what is looked for
    try:
        status = client.status()
    except GpushareError as error:
        return _facts(client.path, error, error)
    try:
        return _facts(client.path, status, client.doctor())
    except GpushareError as error:
        return _facts(client.path, status, error)


def _facts(
    path: str | GpushareError, status: NodeStatus | GpushareError, report: DoctorReport | GpushareError
) -> CallerFacts:
    return CallerFacts(
        path=path,
        status=status,
        report=report,
        docker=_find_docker(),
        environ=dict(os.environ),
        uid=os.getuid(),
        groups=tuple(_group_name(gid) for gid in os.getgroups()),
        config_problem=_config_problem() if isinstance(status, GpushareError) else "",
    )


def _find_docker() -> DockerCli | GpushareError:
    try:
        path = find_docker()
        process = subprocess.run(
            [path, "--version"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=DOCKER_SECONDS,
            check=False,
        )
    except NotFound as error:
        return error
    except (OSError, subprocess.TimeoutExpired):
        return DockerCli(path)
    return DockerCli(path, process.stdout.strip().partition("\n")[0])


def _group_name(gid: int) -> str:
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)


def _config_problem() -> str:
    """Return the fault in the daemon's configuration files, as far as the caller may read them."""
    from gpushared.config import DEFAULT_PATH, load  # takes longer to import than help may take

    if DEFAULT_PATH.exists() and not os.access(DEFAULT_PATH, os.R_OK):
        return ""
    try:
        load()
    except ConfigError as error:
        return "; ".join(line.strip() for line in error.message.splitlines())
    return ""


# --- checks --------------------------------------------------------------------------------------------


def gpushare_host(facts: CallerFacts) -> CheckFinding:
    if isinstance(facts.path, GpushareError):
        return failed(facts.path.message, facts.path.hint)
    return ok(f"the daemon's socket is {facts.path}")


def daemon(facts: CallerFacts) -> CheckFinding:
    if isinstance(facts.status, GpushareError):
        return failed(facts.status.message, facts.status.hint)
    return ok(f"gpushared {facts.status.version} answers")


def daemon_version(facts: CallerFacts) -> CheckFinding:
    assert isinstance(facts.status, NodeStatus), "made after `daemon` only"
    if facts.status.version != __version__:
        return warning(
            f"this gpushare is {__version__} and the daemon {facts.status.version}",
            "`systemctl restart gpushared` after an upgrade, or install the same version of both",
        )
    return ok("command and daemon are of one version")


def daemon_checks(facts: CallerFacts) -> CheckFinding:
    if isinstance(facts.report, GpushareError):
        return failed(f"the daemon's own checks are missing: {facts.report.message}", facts.report.hint)
    return ok(f"the daemon made {len(facts.report.checks)} checks")


def config_files(facts: CallerFacts) -> CheckFinding:
    """Check the daemon's configuration files, unless the daemon runs, which checks more of them."""
    if not isinstance(facts.status, GpushareError):
        return skipped("the daemon checks it", because="daemon-checks")
    if facts.config_problem:
        return failed(facts.config_problem, "`gpushare config check` tells all that is wrong")
    return ok(f"nothing is wrong in {MAIN_FILE} and the folder beside it")


def docker_cli(facts: CallerFacts) -> CheckFinding:
    if isinstance(facts.docker, GpushareError):
        return failed(facts.docker.message, facts.docker.hint)
    match = _VERSION.search(facts.docker.says)
    if match is None:
        return warning(
            f"{facts.docker.path} does not say that it is docker",
            "install the docker CLI: the package docker-cli, docker-ce-cli or docker.io",
        )
    if (int(match[1]), int(match[2])) < OLDEST_DOCKER:
        return warning(f"{facts.docker.path} is older than 20.10 ({match[0]})", "update the docker CLI")
    return ok(f"{facts.docker.path}, {match[0]}")


def docker_environment(facts: CallerFacts) -> CheckFinding:
    """Check plain docker's endpoint; DOCKER_HOST wins over DOCKER_CONTEXT (docker's page on contexts)."""
    daemon_host, environ = f"unix://{facts.path}", facts.environ
    host, context = environ.get("DOCKER_HOST", ""), environ.get("DOCKER_CONTEXT", "")
    if host == daemon_host and environ.get("DOCKER_TLS_VERIFY"):
        return warning(
            "DOCKER_TLS_VERIFY makes docker speak TLS to a plain socket", "unset DOCKER_TLS_VERIFY"
        )
    if host == daemon_host:
        return ok("docker and compose go through gpushared (DOCKER_HOST)")
    if host or context not in {"", "default"}:
        name, value = ("DOCKER_HOST", host) if host else ("DOCKER_CONTEXT", context)
        return warning(
            f"{name}={without_user(value)}: plain docker and compose go there and get no leases; "
            "`gpushare run` does not",
            f"export DOCKER_HOST={daemon_host}" + ("" if host else " (it wins over DOCKER_CONTEXT)"),
        )
    return ok("plain docker goes to the engine; `gpushare run` goes through gpushared")


def docker_group(facts: CallerFacts) -> CheckFinding:
    if facts.uid == 0:
        return ok("you are root")
    if DOCKER_GROUP in facts.groups:
        return warning(
            "you are in the group docker: root in effect, trusted with everybody's containers, and not held "
            "to leases outside `gpushare run`",
            "`gpushare run` needs no group; ask the admin for `gpasswd -d USER docker`",
        )
    return ok("you are not in the group docker, and need not be")


def without_user(url: str) -> str:
    """Return the URL without a name or password in it."""
    return _USER_INFO.sub("", url)


CALLER_CHECKS: tuple[Check[CallerFacts], ...] = (
    Check("gpushare-host", gpushare_host),
    Check("daemon", daemon, ("gpushare-host",)),
    Check("daemon-version", daemon_version, ("daemon",)),
    Check("config-files", config_files),
    Check("docker-cli", docker_cli),
    Check("docker-environment", docker_environment, ("gpushare-host",)),
    Check("docker-group", docker_group),
    Check("daemon-checks", daemon_checks, ("daemon",)),
)
