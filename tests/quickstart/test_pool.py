"""A pool of three machines on one, by the script and by the tutorial's own commands, as a user types them."""

from __future__ import annotations

import json
import os
import re
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from gpushared.client.pipeline import AsyncPool, JobRequest, Pool
from tests.bed.parts import ROOT
from tests.quickstart.machines import NODES, PATIENCE_SECONDS, TUTORIAL, Machines, in_a_terminal, running

pytestmark = [
    pytest.mark.docker,
    pytest.mark.skipif(os.getuid() != 0, reason="only root makes networks"),
]


@pytest.fixture(scope="module")
def machines(
    docker_cli: Path, docker_environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Machines]:
    with running(docker_environment, tmp_path_factory.mktemp("cache")) as made:
        yield made


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
    output = machines.printed(f"gpushare report --pool {job}")
    assert f"{job}: job, succeeded" in output
    assert "GPU hours" in output
    gpus = json.loads(machines.printed("gpushare gpus --pool -o json"))
    assert {gpu["node"] for gpu in gpus["items"]} == set(NODES)
    assert all(gpu["temperature_celsius"] is not None for gpu in gpus["items"])
    assert not gpus["notices"]


def test_one_job_on_two_machines_meets_over_their_network(machines: Machines) -> None:
    submit, read = machines.told("pair=$(gpushare submit"), machines.told("gpushare wait $pair")
    output = machines.printed(submit, read)
    assert re.fullmatch(rf"hello from {re.escape(machines.net)}\.1[123]\n", output)


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
    trust = {"ca_file": machines.state / "pool-ca.pem", "token_file": machines.state / "token"}
    async with AsyncPool(f"{machines.net}.1", **trust) as pool:  # type: ignore[arg-type]  # both are files
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
        (["--pool", "3", "--ha"], "a pool with one coordinator runs here already"),
        (["--pool", "3", "--ha", "--cut", "a"], "unknown: --pool 3 --ha --cut a; there are"),
        (["--pool", "3", "--cut", "b", "c"], "unknown: --pool 3 --cut b c; there are"),
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
