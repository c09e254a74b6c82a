"""The README's first command, on an engine of its own: what it shows, and that nothing of it stays."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.bed.engine import PrivateEngine
from tests.bed.parts import ROOT

SCRIPT = ROOT / "scripts/quickstart"
PATIENCE_SECONDS = 60


@dataclass(frozen=True)
class Quickstart:
    """The script under a name of its own, so that somebody's real quickstart goes on beside the test."""

    name: str
    engine: PrivateEngine
    environ: dict[str, str]

    @property
    def runtime_dir(self) -> Path:
        return Path("/run") / self.name

    @property
    def home(self) -> Path:
        return Path(self.environ["GPUSHARED_CACHE"]) / self.name

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [SCRIPT, *words], env=self.environ, capture_output=True, text=True, timeout=180, check=False
        )

    def gpushare(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [ROOT / ".venv/bin/gpushare", *words],
            env={**self.environ, "GPUSHARE_HOST": f"unix://{self.runtime_dir}/gpushared.sock"},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    def listed(self, *words: str) -> list[dict[str, Any]]:
        answer = self.gpushare(*words, "-o", "json")
        assert answer.returncode == 0, answer.stderr
        items: list[dict[str, Any]] = json.loads(answer.stdout)["items"]
        return items

    def lease(self, lease_id: str) -> dict[str, Any]:
        """Also one that is over."""
        (found,) = (one for one in self.listed("ps", "--all") if one["id"] == lease_id)
        return found

    def wait_active(self, lease_id: str) -> None:
        """A client has its container before the daemon has heard that it runs."""
        until = time.time() + PATIENCE_SECONDS
        while (now := self.lease(lease_id))["state"] != "active":
            assert time.time() < until, now

    def processes(self) -> list[str]:
        """Command lines of everything of it: the daemon, MPS daemons, the client that waits, the page's port."""
        found = []
        for process in psutil.process_iter():
            try:
                environ, words = process.environ(), process.cmdline()
            except (psutil.NoSuchProcess, psutil.AccessDenied):
                continue
            pipe, host = environ.get("CUDA_MPS_PIPE_DIRECTORY", ""), environ.get("GPUSHARE_HOST", "")
            # Processes inside containers have the engine's, not the script's name.
            if (
                pipe.startswith(f"{self.runtime_dir}/")
                or host.startswith(f"unix://{self.runtime_dir}/")
                or any(self.name in word for word in words)
            ):
                found.append(" ".join(words))
        return found

    def assert_nothing_is_left(self) -> None:
        assert self.engine.check("ps", "--all", "--quiet") == ""
        assert self.name not in self.engine.check("images")
        assert self.processes() == []
        assert not self.runtime_dir.exists()
        assert not self.home.exists()


@pytest.fixture
def quickstart(
    private_engine: Callable[..., PrivateEngine], docker_environment: dict[str, str], tmp_path: Path
) -> Iterator[Quickstart]:
    engine = private_engine()
    name = f"gpushared-qs{os.getpid()}"
    environ = {
        **docker_environment,
        "DOCKER_HOST": engine.url,
        "GPUSHARED_QUICKSTART": name,
        "GPUSHARED_CACHE": str(tmp_path),
    }
    made = Quickstart(name, engine, environ)
    yield made
    made.run("--stop")


def can_be_run_by_others() -> bool:
    try:
        done = subprocess.run(
            [ROOT / ".venv/bin/gpushare", "--version"],
            user=65534,
            group=65534,
            extra_groups=[],
            cwd="/",
            capture_output=True,
            timeout=60,
            check=False,
        )
    except PermissionError:
        return False
    return done.returncode == 0


def assert_the_link_lets_a_browser_in(shown: str) -> None:
    link = re.search(r"^  (http://127\.0\.0\.1:\d+)/login#(\S+)$", shown, re.MULTILINE)
    assert link, shown
    body = json.dumps({"code": link[2]}).encode()
    headers = {"Content-Type": "application/json", "Origin": link[1]}
    with urllib.request.urlopen(
        urllib.request.Request(f"{link[1]}/login", body, headers), timeout=PATIENCE_SECONDS
    ) as answer:
        assert answer.status == 204


def test_it_works_twice_in_a_row_and_stop_leaves_nothing(quickstart: Quickstart) -> None:
    """Both times four leases share one GPU and a fifth waits; afterwards nothing of it stays."""
    for _ in range(2):
        shown = quickstart.run()
        assert shown.returncode == 0, shown.stdout + shown.stderr
        assert "position 1 of 1" in shown.stdout
        assert f"export GPUSHARE_HOST=unix://{quickstart.runtime_dir}/gpushared.sock" in shown.stdout
        assert (
            f"To end it:  GPUSHARED_QUICKSTART={quickstart.name} scripts/quickstart --stop\n" in shown.stdout
        )
        assert ("Only root can run " in shown.stdout) is not can_be_run_by_others()
        leases = quickstart.listed("ps")
        assert sorted(str(lease["state"]) for lease in leases) == ["active"] * 4 + ["queued"]
        assert len(quickstart.engine.check("ps", "--quiet").split()) == 4
        assert_the_link_lets_a_browser_in(shown.stdout)
    stopped = quickstart.run("--stop")
    assert stopped.returncode == 0, stopped.stderr
    quickstart.assert_nothing_is_left()
    assert quickstart.run("--stop").returncode == 0


def test_who_takes_twice_the_lease_is_stopped_and_told_why_and_the_neighbours_run_on(
    quickstart: Quickstart,
) -> None:
    """What the README promises, by the commands that a user has; how long it took is printed, not judged."""
    assert quickstart.run().returncode == 0
    leases = {
        lease["container_name"]: lease for lease in quickstart.listed("ps") if lease["state"] == "active"
    }
    greedy = leases.pop(f"{quickstart.name}-2")
    assert {lease["memory_wall"] for lease in (greedy, *leases.values())} <= {"mps-client", "watchdog"}
    took_at = time.time()
    done = quickstart.gpushare("simulate", "--container", greedy["container_name"], "--memory", "40g")
    assert done.returncode == 0, done.stderr
    while (now := quickstart.lease(greedy["id"]))["state"] != "ended":  # each look is a command of its own
        assert time.time() - took_at < PATIENCE_SECONDS, now
    assert now["outcome"]["kind"] == "over_limit"
    assert now["outcome"]["text"] == "used 40 GiB of its 19.7 GiB on GPU 0"
    output = quickstart.gpushare("why", greedy["id"]).stdout
    assert "uses 40 GiB of its 19.7 GiB on GPU 0" in output
    running = quickstart.engine.check("ps", "--format", "{{.Names}}").split()
    assert set(leases) <= set(running)
    assert [quickstart.lease(lease["id"])["state"] for lease in leases.values()] == ["active"] * len(leases)
    examined = quickstart.gpushare("doctor")
    assert examined.returncode == 0 or "failed" in examined.stdout, examined.stdout
    (explained,) = quickstart.listed("why", greedy["id"])
    seconds = next(entry["at"] for entry in explained["story"] if entry["state"] == "draining") - took_at
    print(f"\nended after {seconds:.2f} s; doctor: exit {examined.returncode}")  # noqa: T201 - for who asks: -s


GIVING_WAY = (ROOT / "docs/tutorial/giving-way.md").read_text(encoding="utf-8")


def told_in_the_tutorial(beginning: str) -> list[str]:
    """The words of the one command there that begins so."""
    (words,) = {
        line.removeprefix("$ ")
        for line in GIVING_WAY.splitlines()
        if line.startswith(f"$ gpushare {beginning}")
    }
    return shlex.split(words.removeprefix("gpushare "))


def test_a_project_takes_back_what_it_is_guaranteed_and_those_who_gave_way_come_back(
    quickstart: Quickstart,
) -> None:
    """The tutorial's own commands, and what it says of them."""
    assert quickstart.run().returncode == 0
    before = {lease["id"] for lease in quickstart.listed("ps") if lease["state"] == "active"}
    assert quickstart.gpushare(*told_in_the_tutorial("project set")).returncode == 0
    (offer,) = quickstart.listed(*told_in_the_tutorial("offer"))
    victims = {one["lease_id"] for one in offer["gives_way"]}
    assert len(victims) == 2
    assert victims < before
    assert offer["why"] == "its project is guaranteed the room"

    image = str(quickstart.listed("ps")[0]["image"])  # one of its own where busybox cannot be pulled
    words = [image if word == "busybox" else word for word in told_in_the_tutorial("run")]
    started = quickstart.gpushare(*words)
    assert started.returncode == 0, started.stderr
    (build,) = (one for one in quickstart.listed("ps") if one["class"] == "build")
    quickstart.wait_active(build["id"])
    leases = {lease["id"]: lease for lease in quickstart.listed("ps")}
    assert {one for one in before if leases[one]["state"] != "active"} == victims
    explained = quickstart.gpushare(*told_in_the_tutorial("queue")).stdout
    assert all(one in explained for one in victims)
    for one in victims:
        assert f"gives way to {build['id']}" in quickstart.gpushare("why", one).stdout

    assert quickstart.gpushare(*told_in_the_tutorial("stop")).returncode == 0
    ended_at = time.time()
    while {lease["id"] for lease in quickstart.listed("ps") if lease["state"] == "active"} != before:
        assert time.time() - ended_at < PATIENCE_SECONDS  # each look is a command of its own


def test_stop_ends_jobs_that_run_and_wait_and_removes_their_containers(quickstart: Quickstart) -> None:
    assert quickstart.run().returncode == 0
    image = str(next(lease["image"] for lease in quickstart.listed("ps") if lease["state"] == "active"))
    assert quickstart.gpushare("stop", *(f"{quickstart.name}-{number}" for number in (1, 2))).returncode == 0
    over = quickstart.gpushare("submit", "--gpu", "0.1", image, "true").stdout.strip()
    assert quickstart.gpushare("wait", over).returncode == 0
    assert quickstart.gpushare("submit", "--gpu", "1", image, "sleep", "3600").returncode == 0
    running = quickstart.gpushare("submit", "--gpu", "0.1", image, "sleep", "3600")
    assert running.returncode == 0, running.stderr
    assert quickstart.engine.check("ps", "--all", "--quiet", "--filter", f"label=gpushare.job={over}")
    assert quickstart.run("--stop").returncode == 0
    quickstart.assert_nothing_is_left()


def test_stop_clears_up_after_a_daemon_that_was_killed(quickstart: Quickstart) -> None:
    assert quickstart.run().returncode == 0
    os.kill(int((quickstart.home / "daemon.pid").read_text()), signal.SIGKILL)
    assert quickstart.run("--stop").returncode == 0
    quickstart.assert_nothing_is_left()


def test_an_engine_that_starts_no_container_is_quoted(
    private_engine: Callable[..., PrivateEngine], docker_environment: dict[str, str], tmp_path: Path
) -> None:
    """And not a GPU that somebody else holds."""
    engine = private_engine("--add-runtime", "broken=/bin/false", "--default-runtime", "broken")
    environ = {
        **docker_environment,
        "DOCKER_HOST": engine.url,
        "GPUSHARED_QUICKSTART": f"gpushared-qe{os.getpid()}",
        "GPUSHARED_CACHE": str(tmp_path),
    }
    made = Quickstart(environ["GPUSHARED_QUICKSTART"], engine, environ)
    try:
        shown = made.run()
        assert shown.returncode == 1
        words = "quickstart: error: the Docker engine cannot start a container: Error response from daemon: "
        assert words in shown.stderr
        assert "does a lease of your own hold it?" not in shown.stderr
    finally:
        made.run("--stop")
    made.assert_nothing_is_left()


def test_off_linux_it_says_so_and_does_nothing(tmp_path: Path) -> None:
    uname = tmp_path / "uname"
    uname.write_text("#!/bin/sh\necho Darwin\n")
    uname.chmod(0o755)
    environ = {
        **os.environ,
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "GPUSHARED_CACHE": str(tmp_path / "c"),
    }
    answer = subprocess.run([SCRIPT], env=environ, capture_output=True, text=True, timeout=60, check=False)
    assert answer.returncode == 1
    assert answer.stderr == "quickstart: error: gpushared shares the GPUs of Linux machines; this is Darwin\n"
    assert not (tmp_path / "c").exists()


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become somebody without rights")
def test_without_rights_on_the_engine_it_says_what_to_do(
    docker_engine: str, docker_environment: dict[str, str], tmp_path: Path
) -> None:
    tmp_path.chmod(0o755)
    for folder in tmp_path.parents[:2]:  # pytest's own, which only their owner may enter
        folder.chmod(0o755)
    cache = tmp_path / "cache"
    cache.mkdir()
    os.chown(cache, 65534, 65534)
    answer = subprocess.run(
        [SCRIPT],
        env={**docker_environment, "GPUSHARED_CACHE": str(cache)},
        user=65534,
        group=65534,
        extra_groups=[],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert answer.returncode == 1
    assert "you may not use the Docker engine" in answer.stderr
    assert "sudo" in answer.stderr
