"""A pool of three machines on one, by the script and by the tutorial's own commands, as a user types them."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import select
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from gpushared.client.pipeline import AsyncPool, JobRequest, Pool
from tests.bed import parts
from tests.bed.engine import PrivateEngine
from tests.bed.parts import ROOT

pytestmark = [
    pytest.mark.docker,
    pytest.mark.skipif(os.getuid() != 0, reason="only root makes networks"),
]
SCRIPT = ROOT / "scripts/quickstart"
TUTORIAL = (ROOT / "docs/tutorial/one-pool.md").read_text(encoding="utf-8")
USUAL_NAME, USUAL_NET = "gpushared-quickstart", "198.51.100"
START_SECONDS = 240
PATIENCE_SECONDS = 120
NODES = ["a", "b", "c"]


@dataclass(frozen=True)
class Machines:
    """The pool under a name and on a network of its own, so that somebody's real one goes on beside it."""

    name: str
    net: str
    environ: dict[str, str]

    @property
    def run_dir(self) -> Path:
        return Path("/run") / f"{self.name}-pool"

    @property
    def state(self) -> Path:
        return Path("/var/lib") / f"{self.name}-pool"

    @property
    def shared(self) -> Path:
        return self.state / "shared"

    def script(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [SCRIPT, *words],
            env=self.environ, capture_output=True, text=True, timeout=START_SECONDS, check=False,
        )  # fmt: skip

    def started(self) -> str:
        done = self.script("--pool", "3")
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    # --- somebody on machine a

    def here(self, text: str) -> str:
        """The tutorial's words with the names that things have here."""
        return text.replace(USUAL_NAME, self.name).replace(USUAL_NET, self.net)

    def told(self, beginning: str) -> str:
        """The one command in the tutorial that begins so."""
        (line,) = {
            line.removeprefix("$ ")
            for line in TUTORIAL.splitlines()
            if line.startswith((f"$ {beginning}", beginning))
        }
        return self.here(line)

    def shell(self, *commands: str) -> subprocess.CompletedProcess[str]:
        """What a user types, one after the other, after the tutorial's preparations."""
        before = [self.told("export GPUSHARE_HOST="), self.told("shared=")]
        return subprocess.run(
            ["bash", "-c", "\n".join([*before, *commands])],
            cwd=ROOT, env=self.environ, capture_output=True, text=True,
            timeout=PATIENCE_SECONDS, check=False,
        )  # fmt: skip

    def printed(self, *commands: str) -> str:
        done = self.shell("set -e", *commands)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def on(self, node: str) -> str:
        """The words that make the commands after it those of another machine."""
        return f"export GPUSHARE_HOST=unix://{self.run_dir}/{node}/gpushared.sock"

    def usage(self, node: str, *words: str) -> Counter[str]:
        """The leases, and what they held and used, as a machine tells it."""
        told = json.loads(
            self.printed(self.on(node), f"gpushare usage --since 1d {' '.join(words)} -o json")
        )["total"]
        figures = ("held_gpu_ms", "active_gpu_ms", "idle_gpu_ms", "held_mib_seconds")
        return Counter({"leases": told["leases"], **{name: int(told["account"][name]) for name in figures}})

    def sum_of_nodes(self) -> Counter[str]:
        return sum((self.usage(node) for node in NODES), Counter())

    def nodes(self) -> dict[str, str]:
        """Each node's state."""
        items: list[dict[str, Any]] = json.loads(self.printed("gpushare nodes -o json"))["items"]
        return {item["name"]: item["presence"] for item in items}

    def wait_for_node(self, node: str, *states: str) -> None:
        until = time.monotonic() + PATIENCE_SECONDS
        while self.nodes()[node] not in states:  # each look is a command of its own
            assert time.monotonic() < until, f"{node} is {self.nodes()[node]}, not {states}"

    def jobs(self, array: str) -> list[dict[str, Any]]:
        items: list[dict[str, Any]] = json.loads(
            self.printed(f"jobs={array}", self.told("gpushare jobs --array") + " -o json")
        )["items"]
        return items

    def wait_for_jobs(self, array: str, *, running: int) -> None:
        """Until so many of an array run at the same time."""
        until = time.monotonic() + PATIENCE_SECONDS
        while Counter(job["state"] for job in self.jobs(array))["running"] < running:
            assert time.monotonic() < until, self.jobs(array)

    def done_parts(self) -> Counter[str]:
        """What the jobs themselves wrote."""
        file = self.shared / "done"
        return Counter(file.read_text().splitlines()) if file.exists() else Counter()

    def kill(self, pid_file: str) -> None:
        os.kill(int((self.run_dir / pid_file).read_text()), signal.SIGKILL)

    # --- what is left

    def processes(self) -> list[str]:
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
                words = process.cmdline()
                if any(f"{self.name}-pool" in word for word in words):
                    found.append(" ".join(words))
        return found

    def assert_nothing_is_left(self) -> None:
        assert self.processes() == []
        assert not self.run_dir.exists()
        assert not self.state.exists()
        assert not list(Path("/run/netns").glob(f"{self.name}-*"))
        assert (
            self.net not in subprocess.run(["ip", "route"], capture_output=True, text=True, check=True).stdout
        )
        assert self.name not in Path("/etc/passwd").read_text()
        assert self.name not in Path("/proc/self/mountinfo").read_text()


@pytest.fixture(scope="module")
def machines(
    docker_cli: Path, docker_environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Machines]:
    """Three of them, started. They are gone afterwards, with all that they had."""
    parts.need_file("image", parts.BUSYBOX_TAR)
    engine = PrivateEngine()
    name, net = f"gpushared-qp{os.getpid()}", f"10.231.{os.getpid() % 250}"
    environ = {
        **docker_environment,
        "DOCKER_HOST": engine.url,
        "GPUSHARED_QUICKSTART": name,
        "GPUSHARED_QUICKSTART_NET": net,
        "GPUSHARED_CACHE": str(tmp_path_factory.mktemp("cache")),
    }
    made = Machines(name, net, environ)
    try:
        engine.start()
        made.started()
        yield made
    finally:
        stopped = made.script("--stop")
        engine.dispose()
    assert stopped.returncode == 0, stopped.stderr
    made.assert_nothing_is_left()


@pytest.fixture
def empty_folder(machines: Machines) -> None:
    (machines.shared / "done").unlink(missing_ok=True)


def test_three_machines_are_one_pool_whose_coordinator_has_no_rights(machines: Machines) -> None:
    assert machines.nodes() == dict.fromkeys(NODES, "ready")
    shown = machines.printed(machines.told("gpushare nodes"))
    assert all(model in shown for model in ("2x NVIDIA H100", "2x NVIDIA GeForce RTX 4090", "4x Tesla T4"))
    coordinator = psutil.Process(int((machines.run_dir / "coordinator.pid").read_text()))
    assert coordinator.username() == machines.name
    assert coordinator.uids().effective != 0


SIZED = "until stty size | grep -q 97; do sleep 0.1; done"
"""The size travels by a request of its own, which may be later than the shell."""


def test_a_terminal_here_is_that_of_a_container_elsewhere(machines: Machines) -> None:
    """With a real terminal: what is typed, its size, and the exit code."""
    run = machines.told("gpushare run --pool")
    assert "-it" in run
    before = f"{machines.told('export GPUSHARE_HOST=')}\nstty rows 31 cols 97\n"
    said, code = in_a_terminal(
        before + run, f"{SIZED}; stty size; echo on $GPUSHARE_JOB_ID; exit 5\n", machines.environ
    )
    assert "is on node b" in said
    assert "31 97" in said
    assert re.search(r"^on [0-9a-z]{13}\r$", said, re.MULTILINE)
    assert code == 5


@pytest.mark.usefixtures("empty_folder")
def test_twenty_jobs_run_once_each_while_a_machine_is_cut_off_and_healed(machines: Machines) -> None:
    array = machines.printed(machines.told("jobs=$(gpushare submit"), "echo $jobs").strip()
    jobs = f"jobs={array}"
    machines.wait_for_jobs(array, running=16)
    where = {job["id"]: job["parts"][0]["node"] for job in machines.jobs(array) if job["parts"]}
    assert set(where.values()) == set(NODES)

    cut = machines.shell(machines.told("scripts/quickstart --pool 3 --cut"))
    assert cut.returncode == 0, cut.stderr
    assert machines.done_parts() == Counter()
    machines.wait_for_node("b", "unknown")
    unheard = [job["id"] for job in machines.jobs(array) if job["state"] == "unknown"]
    assert unheard
    assert {where[job] for job in unheard} == {"b"}
    assert "the job is kept there" in machines.printed(jobs, machines.told("gpushare why ${jobs}_5"))
    healed = machines.shell(machines.told("scripts/quickstart --pool 3 --heal"))
    assert healed.returncode == 0, healed.stderr

    counted = machines.printed(jobs, machines.told("gpushare wait $jobs"))
    assert counted.split("\n")[0].split() == ["1", "part", "0"]
    assert machines.done_parts() == Counter(f"part {number}" for number in range(20))
    machines.wait_for_node("b", "ready")


def _are_close(pool: Counter[str], sum_of: Counter[str]) -> bool:
    """Each node rounds its own figures, and the pool those of all."""
    return all(abs(pool[name] - sum_of[name]) <= len(NODES) for name in {*pool, *sum_of})


def test_the_pool_counts_what_its_nodes_count_also_while_one_was_cut_off(machines: Machines) -> None:
    """Leases of a node's own users too; and who waited in the pool's queue is told with the job."""
    cut = machines.shell(machines.told("scripts/quickstart --pool 3 --cut"))
    assert cut.returncode == 0, cut.stderr
    for node in NODES:
        machines.printed(machines.on(node), "gpushare run --gpu 0.5 --rm busybox sleep 2")
    job = machines.printed("gpushare submit --pool --node a --gpu 0.5 busybox sleep 2").strip()
    healed = machines.shell(machines.told("scripts/quickstart --pool 3 --heal"))
    assert healed.returncode == 0, healed.stderr
    machines.wait_for_node("b", "ready")
    machines.printed(f"gpushare wait {job}")

    until = time.monotonic() + PATIENCE_SECONDS
    while not _are_close(pool := machines.usage("a", "--pool"), sum_of := machines.sum_of_nodes()):
        assert time.monotonic() < until, (pool, sum_of)
        time.sleep(1)
    assert pool["leases"] >= len(NODES) + 1
    assert pool["held_gpu_ms"] > 0
    by_node = json.loads(machines.printed(machines.told("gpushare usage --pool") + " -o json"))["items"]
    assert {row["key"] for row in by_node} == set(NODES)
    told = machines.printed(f"gpushare report --pool {job}")
    assert f"{job}: job, succeeded" in told
    assert "GPU hours" in told
    gpus = json.loads(machines.printed("gpushare gpus --pool -o json"))
    assert {gpu["node"] for gpu in gpus["items"]} == set(NODES)
    assert all(gpu["temperature_celsius"] is not None for gpu in gpus["items"])
    assert not gpus["notices"]


def test_one_job_on_two_machines_meets_over_their_network(machines: Machines) -> None:
    submit, read = machines.told("pair=$(gpushare submit"), machines.told("gpushare wait $pair")
    said = machines.printed(submit, read)
    assert re.fullmatch(rf"hello from {re.escape(machines.net)}\.1[123]\n", said)


@pytest.mark.usefixtures("empty_folder")
def test_what_was_killed_is_started_again_and_no_job_suffers(machines: Machines) -> None:
    """The coordinator and a node's daemon die while jobs run and wait; the script is simply run again."""
    command = "echo part $GPUSHARE_ARRAY_INDEX >>/out/done; sleep 5"
    words = f"gpushare submit --pool --array 0-19 --gpu 0.5 -v $shared:/out busybox sh -c '{command}'"
    array = machines.printed(words).strip()
    machines.kill("coordinator.pid")
    machines.kill("c/gpushared.pid")
    shown = machines.started()
    assert "node join" not in shown
    assert "/login#" in shown
    assert machines.nodes() == dict.fromkeys(NODES, "ready")
    machines.printed(f"gpushare wait {array}")
    assert machines.done_parts() == Counter(f"part {number}" for number in range(20))


@pytest.mark.parametrize("by", ["token", "node"])
def test_the_example_pipeline_runs_as_it_stands(machines: Machines, by: str) -> None:
    variables = [machines.told("export GPUSHARE_POOL="), machines.told("export GPUSHARE_POOL_TOKEN_FILE=")]
    shown = machines.printed(
        *(variables if by == "token" else []), machines.told(".venv/bin/python examples/pipeline.py")
    )
    assert "part 0, step 3" in shown
    assert "_5 failed: exit code 9" in shown
    assert "part 5, step 3" in shown
    assert re.search(r"^done: .*\d on [abc]$", shown, re.MULTILINE)


def test_output_is_read_to_its_end_through_the_coordinators_death(machines: Machines) -> None:
    lines = [f"line {number}" for number in range(20)]
    program = "for i in $(seq 0 19); do echo line $i; sleep 0.4; done"
    address, state = f"{machines.net}.1", machines.state
    with Pool(address, ca_file=state / "pool-ca.pem", token_file=state / "token") as pool:
        job = pool.submit(JobRequest("busybox", ["sh", "-c", program], gpu="0.25"))
        pieces = pool.logs(job, follow=True)
        said = next(pieces)
        machines.kill("coordinator.pid")
        machines.started()
        said += b"".join(pieces)
        assert said.decode().splitlines() == lines
        assert pool.wait(job).state == "succeeded"
        assert b"".join(pool.logs(job, tail=1)) == b"line 19\n"


async def test_the_asynchronous_client_reads_the_same(machines: Machines) -> None:
    request = JobRequest("busybox", "sh -c 'echo one; sleep 1; echo two; exit 3'", gpu="0.25")
    door = {"ca_file": machines.state / "pool-ca.pem", "token_file": machines.state / "token"}
    async with AsyncPool(f"{machines.net}.1", **door) as pool:  # type: ignore[arg-type]  # both are files
        job = await pool.submit(request)
        assert b"".join([piece async for piece in pool.logs(job, follow=True)]) == b"one\ntwo\n"
        over = await pool.wait(job)
        assert (over.state, over.exit_code) == ("failed", 3)


def test_a_pipeline_that_is_run_again_goes_on_with_its_jobs(machines: Machines) -> None:
    command = f"{machines.told('.venv/bin/python examples/pipeline.py')} tonight"
    first, second = machines.printed(command), machines.printed(command)
    arrays = re.compile(r"^array (\w{13}):", re.MULTILINE)
    assert arrays.findall(first) == arrays.findall(second)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--pool", "9"], "2 to 8 machines"),
        (["--pool", "3", "--cut", "z"], "there is no machine z; there are a b c"),
        (["--pool", "2"], "a pool of 3 machines runs here already"),
    ],
)
def test_what_makes_no_sense_is_refused_in_words(machines: Machines, words: list[str], said: str) -> None:
    refused = machines.script(*words)
    assert refused.returncode == 1
    assert said in refused.stderr


def test_the_readme_shows_what_the_tutorial_runs() -> None:
    """Its commands are the tutorial's, but for remarks behind them."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    section = readme.partition("### One pool from many machines")[2].partition("\n## ")[0]
    commands = [line.partition("   #")[0].rstrip() for line in section.splitlines() if line.startswith("$ ")]
    assert len(commands) >= 8
    known = {line.removeprefix("$ ") for line in TUTORIAL.splitlines()}
    assert [one for one in commands if one.removeprefix("$ ") not in known] == []


def in_a_terminal(command: str, typed: str, environ: dict[str, str]) -> tuple[str, int]:
    """What is shown when this is typed at its first prompt, and the exit code."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(ROOT)
        os.execvpe("bash", ["bash", "-c", command], {**environ, "TERM": "dumb"})
    said, until = b"", time.monotonic() + PATIENCE_SECONDS
    sent = False
    while time.monotonic() < until:
        if select.select([terminal], [], [], 0.2)[0]:
            try:
                said += os.read(terminal, 4096)
            except OSError:  # EIO: the other end is closed
                break
        if not sent and b"/ $ " in said:
            os.write(terminal, typed.encode())
            sent = True
    else:
        os.kill(pid, signal.SIGKILL)
    os.close(terminal)
    return said.decode(errors="replace"), os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
