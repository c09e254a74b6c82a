"""What docker's commands print, and how they end, is the same on both ways."""

from __future__ import annotations

import asyncio
import io
import json
import os
import re
import tarfile
import time
from pathlib import Path

import pytest

from tests.gate.docker import CommandResult, Docker
from tests.node import registry
from tests.parity.creates import assert_same
from tests.parity.differences import differences
from tests.parity.pairs import Pair, Side

SHORT_ID = re.compile(r"\b[0-9a-f]{12}\b")
# The client says so when two answers come in another order, or one before all that it sends.
OWN_LOG = re.compile(r"""time="\S+" level=error msg="(error waiting for container|Can't add file)""")
Step = tuple[str, ...]
LOOP = "trap 'exit 9' TERM; echo ready; touch /dev/shm/ready; while :; do sleep 0.1; done"
READY = ("exec", "{name}", "sh", "-c", "until [ -e /dev/shm/ready ]; do sleep 0.05; done")
ONE_AFTER_THE_OTHER = {"a build", "images"}
"""They make the same layers, which the engine keeps once."""

STORIES: dict[str, tuple[Step, ...]] = {
    "exit codes": (
        ("run", "--rm", "{image}", "sh", "-c", "echo out; echo err >&2; exit 3"),
        ("run", "--rm", "{image}", "no-such-program"),
        ("run", "--rm", "{image}", "/etc"),
        ("run", "--rm", "--memory", "1", "{image}", "true"),
        ("run", "--rm", "{image}", "sh", "-c", "kill -9 $$; true"),
        ("run", "--rm", "--init", "{image}", "sh", "-c", "kill -TERM $$"),
        ("run", "--rm", "--init", "{image}", "sh", "-c", "kill -KILL $$"),
        ("run", "--no-such-flag", "{image}"),
        ("run", "--rm", "--pull", "never", "no-such-image-{mark}"),
    ),
    "a life": (
        ("run", "-d", "--name", "{name}", "--network", "none", "{image}", "sh", "-c", LOOP),
        READY,
        ("top", "{name}", "-o", "comm"),
        ("exec", "{name}", "sh", "-c", "echo out; echo err >&2; touch /new; exit 4"),
        ("exec", "-w", "/tmp", "-e", "A=b", "-u", "1000", "{name}", "sh", "-c", "pwd; echo $A; id -u"),
        ("exec", "{name}", "no-such-program"),
        ("diff", "{name}"),
        ("stats", "--no-stream", "--format", "{{.Name}}", "{name}"),
        ("port", "{name}"),
        ("rename", "{name}", "{name}-2"),
        ("ps", "-a", "--filter", "name={name}", "--format", "{{.Names}} {{.Image}} {{.Command}} {{.Ports}}"),
        ("rename", "{name}-2", "{name}"),
        (
            "update",
            "--memory",
            "64m",
            "--memory-swap",
            "128m",
            "--cpus",
            "0.5",
            "--restart",
            "on-failure:2",
            "{name}",
        ),
        (
            "inspect",
            "-f",
            "{{.HostConfig.Memory}} {{.HostConfig.NanoCpus}} {{.HostConfig.RestartPolicy}}",
            "{name}",
        ),
        ("pause", "{name}"),
        ("exec", "{name}", "true"),
        ("unpause", "{name}"),
        ("update", "--restart", "no", "{name}"),
        ("kill", "--signal", "TERM", "{name}"),
        ("wait", "{name}"),
        ("logs", "{name}"),
        ("logs", "--tail", "1", "--details", "{name}"),
        ("kill", "{name}"),
        ("start", "{name}"),
        READY,
        ("exec", "-d", "{name}", "touch", "/detached"),
        ("restart", "-t", "20", "{name}"),
        READY,
        ("stop", "-t", "20", "{name}"),
        ("inspect", "-f", "{{.State.ExitCode}} {{.State.Status}}", "{name}"),
        ("start", "-a", "no-such-container"),
        ("rm", "{name}"),
        ("rm", "{name}"),
    ),
    "files": (
        ("create", "--name", "{name}", "{image}", "true"),
        ("cp", "{shared}/file", "{name}:/in"),
        ("cp", "-a", "{shared}/tree", "{name}:/tree"),
        ("cp", "{name}:/in", "{own}/out"),
        ("cp", "{name}:/tree", "{own}/tree"),
        ("cp", "{shared}/file", "{name}:/no/such/directory/"),
        ("cp", "{name}:/no-such-file", "{own}/nothing"),
        ("cp", "{shared}/file", "no-such-container:/in"),
        ("diff", "{name}"),
        ("export", "-o", "{own}/exported.tar", "{name}"),
    ),
    "images": (
        ("create", "--name", "{name}", "--label", "a=b", "{image}", "true"),
        ("commit", "-c", 'CMD ["echo", "committed"]', "-m", "why", "-a", "who", "{name}", "{name}:1"),
        ("run", "--rm", "--network", "none", "{name}:1"),
        ("image", "inspect", "-f", "{{.Config.Cmd}} {{.Author}} {{.Comment}}", "{name}:1"),
        ("tag", "{name}:1", "{name}:2"),
        ("images", "--format", "{{.Repository}}:{{.Tag}}", "--filter", "reference={name}"),
        ("history", "-q", "no-such-image-{mark}"),
        ("save", "-o", "{own}/saved.tar", "{name}:1"),
        ("rmi", "{name}:1", "{name}:2"),
        ("load", "-q", "-i", "{own}/saved.tar"),
        ("rmi", "-f", "{name}:1"),
        ("import", "-c", 'CMD ["sh"]', "{shared}/image.tar", "{name}:3"),
        ("rmi", "{name}:3"),
        ("push", "127.0.0.1:9/no-such-{mark}"),
        ("pull", "127.0.0.1:9/no-such-{mark}"),
    ),
    "networks and volumes": (
        (
            "network",
            "create",
            "--internal",
            "--label",
            "a=b",
            "-o",
            "com.docker.network.bridge.name=",
            "{name}",
        ),
        ("network", "inspect", "-f", "{{.Driver}} {{.Internal}} {{.Labels.a}}", "{name}"),
        ("network", "ls", "--filter", "name={name}", "--format", "{{.Name}} {{.Driver}}"),
        ("create", "--name", "{name}", "{image}", "true"),
        ("network", "connect", "--alias", "other", "{name}", "{name}"),
        ("inspect", "-f", "{{json .NetworkSettings.Networks}}", "{name}"),
        ("network", "disconnect", "{name}", "{name}"),
        ("network", "rm", "{name}"),
        ("network", "rm", "{name}"),
        ("volume", "create", "--label", "a=b", "{name}"),
        ("volume", "inspect", "-f", "{{.Driver}} {{.Labels}} {{.Options}}", "{name}"),
        ("volume", "ls", "-q", "--filter", "name={name}"),
        ("run", "--rm", "-v", "{name}:/v", "{image}", "touch", "/v/file"),
        ("run", "--rm", "-v", "{name}:/v:ro", "{image}", "ls", "/v"),
        ("volume", "rm", "{name}"),
        ("volume", "rm", "{name}"),
    ),
    "the engine": (
        ("version", "--format", "{{json .Server.Version}} {{.Client.APIVersion}}"),
        ("info", "--format", "{{.Driver}} {{.CgroupDriver}} {{.Name}}"),
        ("plugin", "ls"),
        ("inspect", "no-such-thing"),
    ),
    "a build": (
        ("build", "-q", "--label", "a=b", "--build-arg", "WHAT=it", "-t", "{name}:1", "{shared}/context"),
        ("run", "--rm", "--network", "none", "{name}:1"),
        ("build", "--target", "no-such-stage", "{shared}/context"),
        ("build", "-f", "no-such-file", "{shared}/context"),
        ("rmi", "-f", "{name}:1"),
    ),
}


@pytest.mark.parametrize("story", STORIES)
async def test_each_step_prints_the_same_and_ends_the_same(engine_pair: Pair, story: str) -> None:
    put_files(engine_pair)
    engine_pair.set_environment(DOCKER_BUILDKIT="0")
    at_once = asyncio.Semaphore(1 if story in ONE_AFTER_THE_OTHER else 2)
    told = (tell(engine_pair, STORIES[story], side, at_once) for side in engine_pair.sides)
    direct, gate = await asyncio.gather(*told)
    assert len(direct) == len(STORIES[story])
    assert_same(
        [
            f"{' '.join(step)}: {line}"
            for step, ours, theirs in zip(STORIES[story], direct, gate, strict=True)
            for line in differences(ours, theirs, ())
        ]
    )
    assert trees(engine_pair, "direct") == trees(engine_pair, "gate")


async def tell(pair: Pair, story: tuple[Step, ...], side: Side, turn: asyncio.Semaphore) -> list[object]:
    name = f"{pair.mark}-{side.name}"
    async with turn:
        steps = (pair.words(step, side.name, name) for step in story)
        return [plain(pair, step, await side.docker(*step), name) for step in steps]


def plain(pair: Pair, step: list[str], done: CommandResult, name: str) -> object:
    """Without what is in another order each time, directly too."""
    out, err = (text.decode().splitlines(keepends=True) for text in (done.out, done.err))
    listed = sorted(out) if step[0] == "diff" else out
    said = [f"exit {done.code}", "".join(listed), "".join(line for line in err if not OWN_LOG.match(line))]
    return pair.plain([SHORT_ID.sub("<id>", each) for each in said], name)


def put_files(pair: Pair) -> None:
    shared = pair.directory / "shared"
    (shared / "file").write_bytes(os.urandom(2_000_000))
    (shared / "tree").mkdir()
    (shared / "tree" / "program").write_text("#!/bin/sh\n")
    (shared / "tree" / "program").chmod(0o4755)
    (shared / "tree" / "link").symlink_to("program")
    os.chown(shared / "tree" / "program", 1000, 1001)
    (shared / "context").mkdir()
    (shared / "context" / "copied").write_text("copied")
    (shared / "context" / "Dockerfile").write_text(
        f"FROM {pair.image}\nARG WHAT\nCOPY copied /copied\nENV WHAT=$WHAT\nCMD echo $WHAT; cat /copied\n"
    )
    with tarfile.open(shared / "image.tar", "w") as archive:
        archive.addfile(tarfile.TarInfo("empty"), io.BytesIO())


def trees(pair: Pair, side: str) -> list[tuple[object, ...]]:
    """All files of a side: path, mode, owner, length."""
    own = pair.directory / side
    files = sorted(path for path in own.rglob("*") if path.suffix != ".tar")
    facts = [(path, path.lstat()) for path in files]
    return [(str(path.relative_to(own)), s.st_mode, s.st_uid, s.st_gid, s.st_size) for path, s in facts]


async def test_events_between_two_times_are_the_same_events(pair: Pair) -> None:
    """They are the engine's, so that each way is asked for the same ones."""
    name, since = f"{pair.mark}-watched", int(time.time())
    await pair.direct.run("--name", name, pair.image, "true")
    times = ("--since", str(since), "--until", str(int(time.time()) + 1))
    words = ("events", *times, "--format", "{{json .}}", "--filter", f"container={name}")
    direct, gate = await asyncio.gather(pair.direct(*words), pair.gate(*words))
    actions = [json.loads(line)["Action"] for line in gate.out.splitlines()]
    assert direct == gate
    assert (actions[0], actions[-1]) == ("create", "destroy")


async def test_a_pull_shows_its_progress(pair: Pair, docker_engine: str, tmp_path: Path) -> None:
    with registry.serving(docker_engine, pair.image, tmp_path) as served:
        served.let_go.set()
        lines = []
        for side in pair.sides:
            done = await side.docker("pull", served.image)
            lines.append((done.code, sorted(set(done.out.splitlines()))))
            await side.docker("rmi", served.image)
    assert lines[0] == lines[1]
    assert b"Status: Downloaded newer image for " + served.image.encode() in lines[1][1]


async def test_big_input_goes_in_up_to_its_end_and_comes_back(pair: Pair) -> None:
    """Half of the connection is closed while the other half still carries the answer."""
    data = os.urandom(30_000_000)

    async def through(docker: Docker) -> CommandResult:
        return await docker.run("-i", pair.image, "sh", "-c", "cat; sleep 0.2; echo over; exit 5", stdin=data)

    direct, gate = await asyncio.gather(through(pair.direct), through(pair.gate))
    assert (gate.code, gate.out, gate.err) == (5, data + b"over\n", b"")
    assert direct == gate


async def test_a_tar_stream_is_copied_in_and_out(pair: Pair) -> None:
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        info = tarfile.TarInfo("file")
        info.size = 5_000_000
        tar.addfile(info, io.BytesIO(os.urandom(info.size)))
    results = []
    for side in pair.sides:
        name, docker = f"{pair.mark}-{side.name}", side.docker
        await docker("create", "--name", name, pair.image, "true")
        copied = await docker("cp", "-", f"{name}:/tmp", stdin=archive.getvalue())
        back = await docker("cp", f"{name}:/tmp/file", "-")
        with tarfile.open(fileobj=io.BytesIO(back.out)) as tar:
            member = tar.extractfile("file")
            assert member is not None
            results.append((copied.code, copied.out, back.code, member.read()))
    assert results[0] == results[1]
    assert len(results[1][3]) == 5_000_000
