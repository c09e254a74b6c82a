"""Builds by BuildKit: what a client and the engine say to each other over a session arrives on both ways."""

from __future__ import annotations

import json
import os
import uuid
from pathlib import Path
from typing import Any

import pytest

from gpushared.gate.docker_gate import Gate
from tests.bed.parts import need_file
from tests.gate.docker import CommandResult, Docker
from tests.gate.lease_services import FakeLeaseService
from tests.gate.serving import ALICE, serving_gate
from tests.parity.conftest import PACKAGED_CLI
from tests.parity.pairs import Pair, with_client

DOCKERFILE = """\
FROM {image} AS made
ARG WHAT
COPY copied /copied
RUN --mount=type=secret,id=word cat /run/secrets/word > /read && echo $WHAT >> /read
CMD ["cat", "/copied", "/read"]
FROM scratch AS files
COPY --from=made /copied /read /
FROM {image} AS broken
RUN echo said before it fails && exit 7
"""
BY_USERS_ONLY = b"images are built on this machine by trusted users only"
WAY_OUT = b"build elsewhere, with rootless podman or buildah"


def context_in(folder: Path, image: str) -> Path:
    """A context, new each time: what the engine has from another build, no client sends again."""
    context = folder / f"context-{uuid.uuid4().hex}"
    context.mkdir()
    (context / "copied").write_text(f"{context.name}\n")
    (context / "word").write_text("a secret\n")
    (context / "Dockerfile").write_text(DOCKERFILE.format(image=image))
    return context


@pytest.fixture(autouse=True)
def builders_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Buildx keeps what it knows of builders in a folder."""
    monkeypatch.setenv("BUILDX_CONFIG", str(tmp_path / "buildx"))


def with_buildx(docker: Docker) -> Docker:
    url = docker.environment["DOCKER_HOST"]
    environment = {**docker.environment, "BUILDX_CONFIG": os.environ["BUILDX_CONFIG"]}
    return Docker(url, environment, docker.image)


async def build(docker: Docker, context: Path, *words: str) -> CommandResult:
    """A build whose steps have no network, which the CDI engine has not either."""
    secret = ("--secret", f"id=word,src={context}/word")
    given = ("--network", "none", "--progress", "plain", "--build-arg", "WHAT=it", *secret)
    return await docker("build", *given, *words, str(context))


async def test_a_build_by_buildx_gives_the_same_image(engine_pair: Pair) -> None:
    """Files and secrets come from the client's side of the session."""
    made: list[Any] = []
    for side in engine_pair.sides:
        docker, name = with_buildx(side.docker), f"{engine_pair.mark}-{side.name}"
        context = context_in(engine_pair.directory / side.name, docker.image)
        built = await build(docker, context, "--target", "made", "-t", name)
        ran = await docker.run(name)
        inspected = await docker("image", "inspect", "-f", "{{json .Config}}", name)
        await docker("rmi", "-f", name)
        assert built.code == 0, built.err
        assert b"transferring context" in built.err
        assert (ran.code, ran.out.decode()) == (0, f"{context.name}\na secret\nit\n")
        made.append(json.loads(inspected.out))
    assert made[0] == made[1]


async def test_what_a_build_exports_comes_back_to_the_client(engine_pair: Pair) -> None:
    for side in engine_pair.sides:
        docker, own = with_buildx(side.docker), engine_pair.directory / side.name
        context = context_in(own, docker.image)
        built = await build(docker, context, "--target", "files", "-o", f"type=local,dest={own}/exported")
        assert built.code == 0, built.err
        files = {path.name: path.read_text() for path in (own / "exported").iterdir()}
        assert files == {"copied": f"{context.name}\n", "read": "a secret\nit\n"}


async def test_a_build_that_fails_says_the_same_of_its_step_and_ends_the_same(engine_pair: Pair) -> None:
    for side in engine_pair.sides:
        docker = with_buildx(side.docker)
        built = await build(docker, context_in(engine_pair.directory / side.name, docker.image))
        assert built.code == 1
        assert b"said before it fails" in built.err
        assert b"exit code: 7" in built.err


@pytest.mark.parametrize(
    "words", [("buildx", "inspect"), ("buildx", "ls"), ("builder", "prune", "-f", "--filter", "until=99999h")]
)
async def test_the_builder_is_described_the_same(engine_pair: Pair, words: tuple[str, ...]) -> None:
    direct, gate = [await with_buildx(side.docker)(*words) for side in engine_pair.sides]
    lines = [
        [line.split() for line in done.out.splitlines() if b"Last Activity" not in line]
        for done in (direct, gate)
    ]
    assert (direct.code, lines[0]) == (gate.code, lines[1]) == (0, lines[0]), gate.err
    assert lines[0]


async def test_the_builder_inside_an_old_client_sends_its_files_the_same_way(pair: Pair) -> None:
    """That of 20.10 has BuildKit in itself and needs no buildx."""
    need_file("engine", PACKAGED_CLI)
    for side in pair.sides:
        name = f"{pair.mark}-{side.name}"
        environment = with_client(side.docker.environment, PACKAGED_CLI)
        docker = Docker(environment["DOCKER_HOST"], {**environment, "DOCKER_BUILDKIT": "1"}, pair.image)
        context = context_in(pair.directory / side.name, docker.image)
        built = await build(docker, context, "--target", "made", "-t", name)
        ran = await docker.run(name)
        await docker("rmi", "-f", name)
        assert built.code == 0, built.err
        assert b"load build context" in built.err
        assert (ran.code, ran.out.decode()) == (0, f"{context.name}\na secret\nit\n")


REFUSED = {
    "build": ("build", "{context}"),
    "the classic builder": ("build", "{context}"),
    "buildx": ("buildx", "build", "--load", "-t", "mine", "{context}"),
    "buildx, a builder of one's own": ("buildx", "create", "--bootstrap", "--driver", "docker-container"),
    "bake": ("buildx", "bake", "-f", "{context}/compose.yaml"),
    "compose build": ("compose", "-f", "{context}/compose.yaml", "build"),
    "compose up": ("compose", "-f", "{context}/compose.yaml", "up", "--build"),
}


@pytest.mark.parametrize("case", REFUSED)
async def test_who_may_not_build_reads_why_and_what_to_do_instead(
    case: str,
    docker_engine: str,
    docker_environment: dict[str, str],
    busybox_image: str,
    tmp_path: Path,
) -> None:
    """Whichever client asks, and whatever it tries next: here most begin a builder of their own."""
    context = context_in(tmp_path, busybox_image)
    (context / "compose.yaml").write_text("services: {one: {build: .}}\n")
    classic = {"DOCKER_BUILDKIT": "0"} if case == "the classic builder" else {}
    async with serving_gate(Gate(docker_engine, FakeLeaseService()), ALICE) as served:
        docker = with_buildx(Docker(served.url, {**docker_environment, **classic}, busybox_image))
        done = await docker(*(word.format(context=context) for word in REFUSED[case]))
    assert done.code not in (0, 125), done.out
    assert BY_USERS_ONLY in done.out + done.err
    assert WAY_OUT in done.out + done.err


async def test_the_builder_inside_an_old_client_says_the_status_or_why(
    docker_engine: str, docker_environment: dict[str, str], busybox_image: str, tmp_path: Path
) -> None:
    """Such a client opens a session and asks for the build at the same time, and says what is refused first.

    The client looks at nothing but the status in an answer to its session.
    """
    need_file("engine", PACKAGED_CLI)
    context = context_in(tmp_path, busybox_image)
    environment = with_client(docker_environment, PACKAGED_CLI)
    async with serving_gate(Gate(docker_engine, FakeLeaseService()), ALICE) as served:
        by_buildkit, classic = [
            await Docker(served.url, {**environment, "DOCKER_BUILDKIT": kind}, busybox_image)(
                "build", str(context)
            )
            for kind in ("1", "0")
        ]
    assert (by_buildkit.code, classic.code) == (1, 1)
    assert b"received 403" in by_buildkit.err or BY_USERS_ONLY in by_buildkit.err
    assert BY_USERS_ONLY in classic.err
    assert WAY_OUT in classic.err
