"""Ask, before a wait in the queue, if the container would be refused when its turn comes.

The policy's refusals end the command. A refusal that holds only at this moment, as for a missing directory,
becomes a warning: it may be gone by then.
"""

from __future__ import annotations

from gpushared.cli import docker_cli
from gpushared.cli.capture import Captured, can_be_read_twice, capture
from gpushared.cli.docker_args import RUN_ALONE, RunWords
from gpushared.cli.errors import say
from gpushared.client import Client
from gpushared.domain.model.errors import GpushareError, PermissionRefused


def check_run(client: Client, program: str, words: RunWords, captured: Captured | None) -> None:
    """Ask what would become of a container. Raises PermissionRefused.

    ``captured``: what docker would create, None where docker has not read the words yet.
    """
    captured = captured or _captured(client, program, words)
    if captured is None:
        return
    check_captured(client, captured)
    if captured.name:
        _warn_of_name(client, captured.name)


def _captured(client: Client, program: str, words: RunWords) -> Captured | None:
    if not can_be_read_twice(words):
        return None
    try:
        return capture(program, words.docker_without(*RUN_ALONE), docker_cli.api_version_of(client))
    except GpushareError:
        return None  # docker tells when its turn comes


def check_captured(client: Client, captured: Captured) -> None:
    """Ask the daemon. Raises PermissionRefused. Without an answer the gate judges at the start."""
    try:
        answer = client.explain_policy(captured.body, captured.version)
    except GpushareError:
        return
    refused = [one for one in answer.findings if one.verdict == "refused"]
    for one in refused:
        if not one.may_change:
            raise PermissionRefused(one.why, hint=one.hint)
    for one in refused:
        say(f"warning: as things are now, docker will refuse the container: {one.why}", one.hint)


def _warn_of_name(client: Client, name: str) -> None:
    try:
        status = client.docker("GET", f"/containers/{name.removeprefix('/')}/json").status
    except GpushareError:
        return
    if status == docker_cli.OK:
        say(
            f"warning: a container named {name} is there, and docker will refuse another one",
            f"docker rm {name}, or give another --name",
        )
