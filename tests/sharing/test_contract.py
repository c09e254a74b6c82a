"""The fake control program answers as the real one, in all that the real one can answer without a GPU."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from gpushared.sharing.control import DaemonLimits, MpsControl
from tests.sharing import daemons
from tests.sharing.fake_mps import FakeMps
from tests.sharing.samples import FIRST


@pytest.fixture(params=[pytest.param("real", marks=pytest.mark.mps), "fake"])
def binary(request: pytest.FixtureRequest, runtime_dir: Path) -> Path:
    if request.param == "fake":
        return FakeMps(runtime_dir / "fake").binary
    found: Path = request.getfixturevalue("mps_control_binary")
    return found


@pytest.fixture
async def daemon(binary: Path, runtime_dir: Path) -> MpsControl:
    control = MpsControl(binary, runtime_dir / "one", (FIRST,), multiuser=False)
    await control.start()
    return control


@pytest.mark.parametrize(
    ("commands", "answer"),
    [
        (["get_server_list"], ""),
        (["get_server_status 123"], "Server 123 not found\n"),
        (["get_server_status"], "A server PID is required\n"),
        (["get_client_list 123"], "Server 123 not found\n"),
        (["get_client_list"], "Server 0 not found\n"),
        (["terminate_client 1 2"], "Server 1 not found\nServer 1 not found!\n1\n"),
        (["terminate_client"], "Server 0 not found\nServer 0 not found!\n1\n"),
        (["shutdown_server 5"], "Server 5 not found\n"),
        (["shutdown_server 5 -f"], "Server 5 not found\n"),
        (["bogus"], 'Unknown command "bogus"\n'),
        (["get_default_active_thread_percentage"], "100.0\n"),
        (["set_default_active_thread_percentage 12.34", "get_server_list"], "12.3\n"),
        (["set_default_active_thread_percentage 0"], "100.0\n"),
        (["set_default_device_pinned_mem_limit 0 1536M", "get_default_device_pinned_mem_limit 0"], "1G\n"),
        (["set_default_device_pinned_mem_limit 0 900M", "get_default_device_pinned_mem_limit 0"], "900M\n"),
    ],
    ids=lambda value: value[-1] if isinstance(value, list) else "",
)
async def test_it_answers(daemon: MpsControl, binary: Path, commands: list[str], answer: str) -> None:
    assert await daemons.ask(binary, daemon.pipe_dir, *commands) == answer


async def test_limits_are_read_back_and_lost_with_the_daemon(daemon: MpsControl) -> None:
    await daemon.set_limits(DaemonLimits((4096,), 25))
    assert await daemon.ask("get_default_active_thread_percentage") == ["25.0"]
    await daemon.restart_servers()
    await daemon.start()
    assert await daemon.ask("get_default_active_thread_percentage") == ["100.0"]


async def test_without_a_daemon_nobody_is_reached(binary: Path, runtime_dir: Path) -> None:
    done = subprocess.run(  # noqa: ASYNC221 - it ends at once
        [binary],
        input="get_server_list\n",
        env=daemons.environment(runtime_dir),
        capture_output=True,
        text=True,
        check=False,
        timeout=20,
    )
    assert done.returncode == 1
    assert "Cannot find MPS control daemon process" in done.stdout + done.stderr


def test_the_fake_says_that_it_is_one(runtime_dir: Path) -> None:
    fake = FakeMps(runtime_dir / "fake")
    env = daemons.environment(runtime_dir)
    said = subprocess.run(
        [fake.binary, "-v"], env=env, capture_output=True, text=True, check=True, timeout=20
    )
    assert "FAKE" in said.stdout
