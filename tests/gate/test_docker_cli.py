"""The real docker CLI and the real engine, with the gate between them."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest

from tests.gate.docker import Docker
from tests.gate.lease_services import FakeLeaseService
from tests.gate.serving import ServedSocket, raw_client, request
from tests.gate.terminal import terminal

pytestmark = pytest.mark.docker


@pytest.mark.parametrize(
    ("command", "code"),
    [
        (("sh", "-c", "exit 3"), 3),
        (("no-such-program",), 127),
        (("/etc",), 126),
        (("--no-such-flag-of-docker",), 127),
    ],
)
async def test_the_exit_code_is_the_containers_own(
    docker: Docker, command: tuple[str, ...], code: int
) -> None:
    assert (await docker.run(docker.image, *command)).code == code


async def test_what_docker_refuses_ends_with_125(docker: Docker) -> None:
    done = await docker.run("--memory", "1", docker.image, "true")
    assert done.code == 125
    assert b"Minimum memory limit" in done.err


async def test_standard_input_reaches_the_container_and_its_end_too(docker: Docker) -> None:
    done = await docker.run("-i", docker.image, "sh", "-c", "cat; echo over", stdin=b"line\n")
    assert (done.code, done.out) == (0, b"line\nover\n")


async def test_output_and_errors_stay_apart(docker: Docker) -> None:
    done = await docker.run(docker.image, "sh", "-c", "echo out; echo err >&2")
    assert (done.out, done.err) == (b"out\n", b"err\n")


async def test_who_watches_a_container_reads_at_its_end_why_its_lease_was_ended(
    docker: Docker, lease_service: FakeLeaseService
) -> None:
    """After all that the program itself wrote, on standard error, and with its exit code."""
    lease_service.words = "gpushare: l-1 over_limit: used 40 GiB"
    done = await docker.run(docker.image, "sh", "-c", "echo out; echo err >&2; exit 3")
    assert (done.code, done.out) == (3, b"out\n")
    assert done.err == b"err\ngpushare: l-1 over_limit: used 40 GiB\n"


@pytest.mark.parametrize(
    ("words", "options"), [("", ()), ("why", ("-a", "stdout"))], ids=["nothing to say", "only output is read"]
)
async def test_otherwise_nothing_is_added(
    docker: Docker, lease_service: FakeLeaseService, words: str, options: tuple[str, ...]
) -> None:
    lease_service.words = words
    done = await docker.run(*options, docker.image, "echo", "out")
    assert (done.code, done.out, done.err) == (0, b"out\n", b"")


async def test_on_a_terminal_the_reason_stands_on_lines_of_its_own(
    docker: Docker, lease_service: FakeLeaseService
) -> None:
    lease_service.words = "gpushare: l-1 expired\n  hint: more"
    words = ("run", "--rm", "-it", "--network", "none", docker.image, "printf", "out")
    async with terminal(docker, *words) as screen:
        await screen.until(b"out\r\ngpushare: l-1 expired\r\n  hint: more\r\n")
        assert await screen.end() == 0


async def test_sixty_interactive_runs_twenty_at_a_time_all_come_out_right(docker: Docker) -> None:
    async def one(number: int) -> bool:
        text = f"{number}\n".encode() * 100
        done = await docker.run("-i", docker.image, "cat", stdin=text)
        return (done.code, done.out) == (0, text)

    results: list[bool] = []
    for batch in range(3):
        results += await asyncio.gather(*(one(batch * 20 + number) for number in range(20)))
    assert results.count(True) == 60


async def test_a_signal_to_the_client_reaches_the_containers_trap(docker: Docker) -> None:
    script = "trap 'exit 9' TERM; echo ready; while :; do sleep 0.1; done"
    process = await docker.start("run", "--rm", "--network", "none", docker.image, "sh", "-c", script)
    assert process.stdout is not None
    assert await process.stdout.readline() == b"ready\n"
    process.send_signal(signal.SIGTERM)
    await process.communicate()
    assert process.returncode == 9


async def test_exec_reads_standard_input_and_gives_its_exit_code(docker: Docker, sleeper: str) -> None:
    done = await docker("exec", "-i", sleeper, "sh", "-c", "cat; exit 4", stdin=b"text")
    assert (done.code, done.out) == (4, b"text")


async def test_logs_can_be_followed_while_they_are_written(docker: Docker, name: str) -> None:
    script = "echo first; read line; echo got $line"
    await docker("run", "-di", "--network", "none", "--name", name, docker.image, "sh", "-c", script)
    follower = await docker.start("logs", "-f", name)
    assert follower.stdout is not None
    assert await follower.stdout.readline() == b"first\n"
    await docker("attach", name, stdin=b"more\n")
    assert await follower.stdout.readline() == b"got more\n"
    async with asyncio.timeout(30):
        assert await follower.wait() == 0
    await docker("rm", "-f", name)


async def test_events_arrive_as_they_happen(docker: Docker, sleeper: str) -> None:
    watcher = await docker.start(
        "events", "--since", "0", "--format", "{{.Action}}", "--filter", f"container={sleeper}"
    )
    assert watcher.stdout is not None
    await docker("pause", sleeper)
    await docker("unpause", sleeper)
    async with asyncio.timeout(30):
        actions = [await watcher.stdout.readline() for _ in range(4)]
    watcher.terminate()
    await watcher.communicate()
    assert actions[-2:] == [b"pause\n", b"unpause\n"]


async def test_files_are_copied_in_and_out(docker: Docker, sleeper: str, tmp_path) -> None:
    data = os.urandom(3_000_000)
    (tmp_path / "in").write_bytes(data)
    there = await docker("cp", str(tmp_path / "in"), f"{sleeper}:/tmp/in")
    back = await docker("cp", f"{sleeper}:/tmp/in", str(tmp_path / "out"))
    assert (there.code, back.code) == (0, 0), there.err + back.err
    assert (tmp_path / "out").read_bytes() == data


async def test_copying_into_a_container_that_is_not_there_fails_with_dockers_words(
    docker: Docker, tmp_path
) -> None:
    (tmp_path / "in").write_bytes(bytes(5_000_000))
    done = await docker("cp", str(tmp_path / "in"), "no-such-container:/tmp/in")
    assert done.code == 1
    assert b"No such container" in done.err


async def test_stats_and_top_and_listing_answer(docker: Docker, sleeper: str) -> None:
    stats = await docker("stats", "--no-stream", "--format", "{{.Name}}", sleeper)
    top = await docker("top", sleeper)
    listing = await docker("ps", "--format", "{{.Names}}", "--filter", f"name={sleeper}")
    assert (stats.out.decode().strip(), listing.out.decode().strip()) == (sleeper, sleeper)
    assert b"sleep 600" in top.out


async def test_a_slow_reader_of_much_output_holds_up_nobody_and_loses_nothing(docker: Docker) -> None:
    command = ("run", "--rm", "--network", "none", docker.image, "sh", "-c", "head -c 100000000 /dev/zero")
    slow = await docker.start(*command)
    assert slow.stdout is not None
    received = len(await slow.stdout.readexactly(100_000))
    # Nothing more is read for now: the pipe is full, and so is every buffer on the way.
    other = await docker.run(docker.image, "echo", "meanwhile")
    assert (other.code, other.out) == (0, b"meanwhile\n")
    while data := await slow.stdout.read(1 << 20):
        received += len(data)
    assert (received, await slow.wait()) == (100_000_000, 0)


async def test_update_and_rename_and_stop_work(docker: Docker, sleeper: str) -> None:
    update = await docker("update", "--memory", "64m", "--memory-swap", "64m", sleeper)
    assert update.code == 0, update.err
    renamed = await docker("rename", sleeper, f"{sleeper}-2")
    back = await docker("rename", f"{sleeper}-2", sleeper)
    stopped = await docker("stop", "-t", "1", sleeper)
    assert (renamed.code, back.code, stopped.code) == (0, 0, 0)


async def test_an_attach_without_an_upgrade_leaves_http_the_old_way(
    docker: Docker, served: ServedSocket, name: str
) -> None:
    await docker(
        "create", "-i", "--name", name, "--network", "none", docker.image, "sh", "-c", "cat; echo over"
    )
    async with raw_client(served) as client:
        target = f"/containers/{name}/attach?stream=1&stdin=1&stdout=1"
        await client.send(request("POST", target))
        status, headers = await client.head()
        await docker("start", name)
        await client.send(b"line\n")
        client.writer.write_eof()
        async with asyncio.timeout(30):
            output = await client.reader.read()
    await docker("rm", "-f", name)
    assert (status, headers["content-type"]) == (200, "application/vnd.docker.raw-stream")
    # Each piece has a header of eight bytes, the last four its length.
    assert output.replace(b"\x01\0\0\0\0\0\0\x05", b"") == b"line\nover\n"


async def test_much_input_for_a_program_that_reads_none_of_it_loses_no_output(docker: Docker) -> None:
    script = "exec <&-; seq 20000"
    done = await docker.run("-i", docker.image, "sh", "-c", script, stdin=bytes(5_000_000))
    assert (done.code, len(done.out.splitlines())) == (0, 20000)
