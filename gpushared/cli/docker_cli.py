"""Start the docker CLI that ``gpushare run`` and others become, pointed at the daemon's socket."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence

from gpushared.cli.docker_args import RunArguments
from gpushared.client import Client
from gpushared.client.http import HttpAnswer, docker_message
from gpushared.domain.model.errors import EngineUnavailable, NotFound, PermissionRefused
from gpushared.light import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import NoReturn

OK, MISSING, REFUSED = 200, 404, 403
FAILED = 125
"""``docker run`` ends with this code if docker itself failed, and not the container's program."""
_OTHER_ENDPOINTS = ("DOCKER_CONTEXT", "DOCKER_TLS_VERIFY", "DOCKER_TLS", "DOCKER_CERT_PATH")
"""These settings would win over DOCKER_HOST, or make docker speak TLS to a unix socket."""

_IN_PATHS = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~/:@")


def find_docker() -> str:
    """Return the path of the docker CLI; raises NotFound."""
    for folder in os.get_exec_path():
        path = os.path.join(folder, "docker")  # noqa: PTH118 - importing pathlib costs 5 ms
        if os.access(path, os.X_OK) and not os.path.isdir(path):  # noqa: PTH112 - the same
            return path
    raise NotFound(
        "there is no docker command on PATH, and gpushare run becomes docker run",
        hint="install the docker CLI alone: the package docker-cli, docker-ce-cli or docker.io",
    )


def api_version_of(client: Client) -> str:
    """Return the version of the Engine API of this node's engine; empty if it is not known."""
    engine = client.status().engine
    return engine.api_version if engine else ""


def environment(client: Client) -> dict[str, str]:
    """Return this process's environment with docker pointed at the daemon."""
    return environment_for(f"unix://{client.path}")


def environment_for(host: str) -> dict[str, str]:
    """Return this process's environment with docker pointed at ``host``."""
    environ = {name: value for name, value in os.environ.items() if name not in _OTHER_ENDPOINTS}
    return environ | {"DOCKER_HOST": host}


def run_command(args: RunArguments, lease_id: str) -> list[str]:
    return ["docker", "run", "--label", f"gpushare.lease={lease_id}", *args.docker]


def become(docker: str, argv: Sequence[str], environ: dict[str, str]) -> NoReturn:
    """Replace this process by docker, which must not get Python's own setting for SIGPIPE."""
    sys.stdout.flush()
    sys.stderr.flush()
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    os.execve(docker, list(argv), environ)  # noqa: S606 - becoming docker is the purpose


# --- the image, before a GPU is held for it


def has_to_pull(client: Client, args: RunArguments) -> bool:
    """Return True if docker run would pull the image."""
    policy = args.value("pull") or "missing"
    return policy == "always" or (policy != "never" and not _is_present(client, args.image))


def pull_image(client: Client, docker: str, args: RunArguments) -> int:
    """Pull the image as docker run would; return docker's exit code."""
    import subprocess

    pull = [docker, "pull", args.image]
    if platform := args.value("platform"):
        pull[2:2] = ["--platform", platform]
    if args.is_set("quiet"):
        pull[2:2] = ["--quiet"]
    # Progress goes where docker run shows it, so that stdout stays the container's.
    return subprocess.run(pull, env=environment(client), stdout=sys.stderr, check=False).returncode


def _is_present(client: Client, image: str) -> bool:
    answer = client.docker("GET", f"/images/{_quoted(image)}/json")
    if answer.status in {OK, MISSING}:
        return answer.status == OK
    message = message_of(answer)
    if answer.status == REFUSED:
        raise PermissionRefused(message)
    raise EngineUnavailable(
        f"docker cannot say whether the image is there: {message}",
        hint="`gpushare gpus` shows what is wrong with the node",
    )


def _quoted(image: str) -> str:
    """Quote a name for a URL's path. An import of ``urllib.parse`` takes as long as the request."""
    return "".join(chr(byte) if chr(byte) in _IN_PATHS else f"%{byte:02X}" for byte in os.fsencode(image))


def message_of(answer: HttpAnswer) -> str:
    """Return the error's message in docker's answer."""
    return docker_message(answer.status, answer.body)
