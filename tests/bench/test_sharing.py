"""The sharing benchmark without a GPU: its figures on made-up lines, its rounds with stand-ins for torch."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from bench.gpu.lab import Lab
from bench.gpu.observe import Observation, Recorder
from bench.gpu.sharing import Sharing, measure_all, overview
from bench.gpu.sharing_figures import CROWDS, STEP, Crowd, Way, ratios, summary
from bench.gpu.sharing_worker import figures
from tests.bench.conftest import ROOT, MadeUpMachine
from tests.bench.test_leases import made_up

PAIR = Crowd("infer", (500, 500))
UNEQUAL = Crowd("infer", (500, 250, 250))

WORKER = """
import json, os, sys
print(json.dumps({"action": "ready"}), flush=True)
sys.stdin.readline()
env = {name: value for name, value in os.environ.items() if name.startswith("CUDA")}
print(json.dumps({"action": "worked", "rounds": 10, "seconds": 2.0, "p50_seconds": 0.1,
                  "p99_seconds": 0.3, "memory_bytes": 1}), flush=True)
open(os.environ["HOME"] + "/seen", "a").write(json.dumps(env) + "\\n")
sys.stdin.readline()
"""


def line(rounds: int, seconds: float) -> dict[str, Any]:
    return {"rounds": rounds, "seconds": seconds, "p50_seconds": 0.1, "p99_seconds": 0.2}


def throughput(crowd: str, way: Way, value: float) -> Observation:
    return Observation(
        STEP, f"{crowd}-{way}", 0, {"crowd": crowd, "way": str(way), "rounds_per_second": value}
    )


def test_clients_at_the_same_time_add_up():
    assert summary((500, 500), [line(100, 2.0), line(300, 2.0)], in_turns=False)["rounds_per_second"] == 200


def test_clients_in_turns_share_the_time():
    assert summary((500, 500), [line(100, 2.0), line(300, 2.0)], in_turns=True)["rounds_per_second"] == 100


def test_fairness_is_what_was_got_over_what_was_leased():
    got = summary((500, 250, 250), [line(200, 2.0), line(100, 2.0), line(100, 2.0)], in_turns=False)
    assert got["fairness"] == [1.0, 1.0, 1.0]
    greedy = summary((500, 500), [line(300, 2.0), line(100, 2.0)], in_turns=False)
    assert greedy["fairness"] == [1.5, 0.5]


def test_ratios_are_of_the_medians_of_rounds():
    lines = [throughput("2-infer", Way.BY_HAND, value) for value in (90.0, 100.0, 500.0)]
    lines += [throughput("2-infer", Way.GPUSHARED, value) for value in (98.0, 99.0, 10.0)]
    lines.append(throughput("2-infer", Way.TIME_SLICING, 50.0))
    found = ratios(lines)
    assert found["gpushared_to_by_hand"] == {"2-infer": pytest.approx(0.98)}
    assert found["gpushared_to_time_slicing"] == {"2-infer": pytest.approx(1.96)}


def test_there_is_no_ratio_to_what_was_not_measured():
    failed = Observation(STEP, "x", None, {"crowd": "2-infer", "way": str(Way.BY_HAND), "error": "why"})
    found = ratios([throughput("2-infer", Way.GPUSHARED, 1.0), failed])
    assert found == {"gpushared_to_by_hand": {}, "gpushared_to_time_slicing": {}}


def test_percentiles_are_of_all_rounds():
    assert figures([0.004, 0.001, 0.002, 0.003]) == {
        "rounds": 4,
        "seconds": pytest.approx(0.010),
        "p50_seconds": 0.002,
        "p99_seconds": 0.003,
    }


def test_the_crowds_are_those_that_share_a_gpu():
    assert [crowd.name for crowd in CROWDS] == [
        "1-infer",
        "2-infer",
        "4-infer",
        "8-infer",
        "2-train",
        "3-infer-unequal",
    ]
    assert all(sum(crowd.shares) == 1000 for crowd in CROWDS)


# --- rounds ---


@pytest.fixture
async def lab(
    mps_control_binary: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Lab]:
    monkeypatch.setenv("HOME", str(tmp_path))
    made = Lab(made_up(mps_control_binary), tmp_path)
    yield made
    await made.close()


def bench(lab: Lab, recorder: Recorder, worker: str) -> Sharing:
    program = lab.home / "worker.py"
    program.write_text(worker)
    return Sharing(lab, recorder, [sys.executable, program], seconds=1.0)


@pytest.fixture
def recorder(tmp_path: Path) -> Recorder:
    return Recorder(tmp_path / "sharing.jsonl", io.StringIO())


async def test_every_way_starts_all_clients_and_sums_them_up(lab: Lab, recorder: Recorder):
    await measure_all(bench(lab, recorder, WORKER), [PAIR, UNEQUAL], lab.machine, 1, 60)
    assert [one.values.get("error") for one in recorder.seen] == [None] * 6
    by_way = {one.values["way"]: one.values["rounds_per_second"] for one in recorder.seen[:4]}
    assert by_way == {"one-by-one": 5.0, "time-slicing": 10.0, "mps-by-hand": 10.0, "gpushared": 10.0}
    assert recorder.seen[-1].values["shares"] == [500, 250, 250]
    recorder.close()


async def test_a_client_of_gpushareds_gets_its_leases_environment(lab: Lab, recorder: Recorder):
    await bench(lab, recorder, WORKER).measure(UNEQUAL, Way.UNEQUAL, 1)
    seen = (Path(os.environ["HOME"]) / "seen").read_text()
    for share in ("50", "25"):
        assert f'"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "{share}"' in seen
    assert "error" not in recorder.seen[0].values
    recorder.close()


async def test_a_client_that_dies_makes_an_error_and_no_figure(lab: Lab, recorder: Recorder):
    await bench(lab, recorder, "raise SystemExit('out of luck')").measure(PAIR, Way.TIME_SLICING, 1)
    (one,) = recorder.seen
    assert "did not get to `ready` (1): out of luck" in one.values["error"]
    assert "rounds_per_second" not in one.values
    assert "out of luck" in overview(recorder.seen)
    recorder.close()


async def test_without_mps_only_the_ways_without_it_are_measured(tmp_path: Path, recorder: Recorder):
    lab = Lab(made_up(None), tmp_path)
    await measure_all(bench(lab, recorder, WORKER), [PAIR], lab.machine, 1, 60)
    skipped = {one.values["way"]: one.values.get("skipped") for one in recorder.seen}
    missing = "nvidia-cuda-mps-control is not installed"
    assert skipped == {"one-by-one": None, "time-slicing": None, "mps-by-hand": missing, "gpushared": missing}
    recorder.close()
    await lab.close()


async def test_what_there_is_no_time_for_is_skipped(lab: Lab, recorder: Recorder):
    await measure_all(bench(lab, recorder, WORKER), [PAIR], lab.machine, 1, -1)
    assert {one.values.get("skipped") for one in recorder.seen} == {"the run's time is used up"}
    recorder.close()


def test_without_a_gpu_the_command_says_so_and_makes_nothing(tmp_path: Path):
    words: list[str | Path] = [sys.executable, ROOT / "bench/gpu/sharing.py", "--out", tmp_path / "out"]
    environ = os.environ | {"PATH": "/nonexistent"}
    done = subprocess.run(words, env=environ, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 3
    assert "nothing to measure: there is no GPU here" in done.stderr
    assert not (tmp_path / "out").exists()


def test_without_torch_the_command_says_so(machine: MadeUpMachine, tmp_path: Path):
    import importlib.util

    if importlib.util.find_spec("torch"):
        pytest.skip("torch is installed here")
    words: list[str | Path] = [sys.executable, ROOT / "bench/gpu/sharing.py", "--out", tmp_path / "out"]
    done = subprocess.run(words, env=machine.environ, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 3
    assert "torch is not installed" in done.stderr
