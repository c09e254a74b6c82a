"""The command that runs the steps: its words, its time, and that it leaves nothing behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from bench.gpu.catalogue import STEPS, chosen
from bench.gpu.machine import Machine, Need
from bench.gpu.main import page_name
from bench.gpu.observe import Observation, read
from tests.bench.conftest import ROW, RUN, MadeUpMachine, run

STEP_NAMES = ["G0", "G1", "G2", "G3", "G4", "G6", "G7", "G8", "G5"]


@pytest.fixture
def homes() -> set[Path]:
    """The runs' own directories that were there before."""
    return found_homes()


def found_homes() -> set[Path]:
    return set(Path("/tmp").glob("gsl-*"))


def seen(out: Path) -> dict[tuple[str, str], Observation]:
    (lines,) = out.glob("*.jsonl")
    return {(one.step, one.case): one for one in read(lines)}


# --- words ---


def test_the_steps_can_be_listed_on_any_machine():
    done = run("--dry")
    assert done.returncode == 0
    assert [line.split()[0] for line in done.stdout.splitlines() if line.startswith("G")] == STEP_NAMES


def test_a_list_says_of_each_case_why_it_would_be_skipped(machine: MadeUpMachine):
    done = run("--dry", "--only", "g2", environ=machine.environ)
    lines = {line.split()[0]: line for line in done.stdout.splitlines()}
    assert "changes no mode of the GPU" in lines["without-mps-exclusive"]
    assert "skipped" not in lines["plain"]


def test_chosen_steps_come_in_the_order_of_a_run_after_the_first():
    assert [step.name for step in chosen(["G5", "G1"])] == ["G0", "G1", "G5"]


def test_faults_are_provoked_last():
    assert STEPS[-1].name == "G5"


def test_a_step_that_is_none_is_refused():
    done = run("--only", "G1,G99")
    assert done.returncode == 2
    assert "there is no step G99; the steps are G0, G1" in done.stderr


@pytest.mark.parametrize(
    "words", [("--seconds", "0"), ("--seconds", "soon"), ("--gpu", "x"), ("bogus",)], ids=str
)
def test_wrong_words_are_refused(words: tuple[str, ...]):
    assert run(*words).returncode == 2


def test_every_case_has_a_name_of_its_own_and_can_be_run_or_says_why_not():
    for step in STEPS:
        names = [case.name for case in step.cases]
        assert len(set(names)) == len(names)
        assert all((case.run is None) == bool(case.never) and case.tries for case in step.cases)


# --- machines without what is needed ---


def test_without_a_gpu_it_says_so_and_changes_nothing(tmp_path: Path, homes: set[Path]):
    empty = os.environ | {"PATH": "/nonexistent"}
    done = run("--out", str(tmp_path / "out"), environ=empty)
    assert done.returncode == 3
    assert "there is no GPU to measure on" in done.stderr
    assert not done.stdout
    assert not (tmp_path / "out").exists()
    assert found_homes() == homes


def test_an_nvidia_smi_that_fails_is_quoted(machine: MadeUpMachine):
    machine.says("NVIDIA-SMI has failed", status=9)
    done = run(environ=machine.environ)
    assert done.returncode == 3
    assert "nvidia-smi ended with 9: NVIDIA-SMI has failed" in done.stderr


def test_a_gpu_that_is_not_listed_is_no_gpu(machine: MadeUpMachine):
    done = run("--gpu", "1", environ=machine.environ)
    assert done.returncode == 3
    assert "none of index 1" in done.stderr


def test_where_nvcc_fails_what_needs_the_probe_is_skipped_and_the_rest_goes_on(
    machine: MadeUpMachine, tmp_path: Path
):
    compiler = machine.directory / "nvcc"
    compiler.write_text("#!/bin/sh\necho out of ideas >&2\nexit 1\n")
    compiler.chmod(0o755)
    assert run("--only", "G0", "--out", str(tmp_path), environ=machine.environ).returncode == 0
    found = seen(tmp_path)
    assert "out of ideas" in found["G0", "probe-build"].values["error"]
    assert "out of ideas" in found["G0", "plain"].values["skipped"]
    assert found["G0", "gpu"].values == ROW


def facts(**changes: object) -> Machine:
    known: dict[str, object] = {
        "gpu": ROW,
        "no_gpu": "",
        "mps_control": None,
        "nvcc": None,
        "modules": frozenset(),
        "root": False,
        "unshare": False,
        "cgroup2": False,
    }
    return Machine(**(known | changes))  # type: ignore[arg-type]  # a test's short form


@pytest.mark.parametrize("need", [need for need in Need if need not in {Need.GPU, Need.PROBE}])
def test_every_need_that_is_not_met_has_its_reason(need: Need):
    assert facts().lacks(need)


def test_a_newer_driver_meets_the_need_for_one():
    assert facts(gpu=ROW | {"driver_version": "615.71.09"}).lacks(Need.R615) is None


# --- runs ---


def test_a_run_leaves_lines_of_one_form_a_page_and_nothing_else(
    machine: MadeUpMachine, probe: Path, tmp_path: Path, homes: set[Path]
):
    done = run("--only", "G0,G2", "--out", str(tmp_path / "out"), environ=machine.environ)
    assert done.returncode == 0, done.stderr
    found = seen(tmp_path / "out")
    assert found["G0", "plain"].values["alloc"]["allocated_mib"] == 6144
    assert found["G2", "without-mps-exclusive"].values.keys() == {"skipped"}
    assert found["end", "as-found"].values["unchanged"] is True
    pages = [path.name for path in (tmp_path / "out").glob("*.md")]
    assert [name.split("-", 3)[3] for name in pages] == ["made-up-gpu-580-0-0.md"]
    assert found_homes() == homes


def test_a_setting_that_changed_meanwhile_is_told(machine: MadeUpMachine, tmp_path: Path):
    row = ", ".join(ROW.values())
    changed = row.replace("Default", "Exclusive_Process")
    program = machine.directory / "nvidia-smi"
    program.write_text(f'#!/bin/sh\n[ -e "$0.asked" ] && echo "{changed}" || echo "{row}"\n: >"$0.asked"\n')
    assert run("--only", "G0", "--out", str(tmp_path), environ=machine.environ).returncode == 0
    end = seen(tmp_path)["end", "as-found"]
    assert (end.rc, end.values["unchanged"]) == (1, False)


def test_a_case_that_hangs_is_cut_off_and_what_is_left_is_skipped(
    machine: MadeUpMachine, hanging_environ: dict[str, str], tmp_path: Path
):
    environ = machine.environ | {"LD_LIBRARY_PATH": hanging_environ["LD_LIBRARY_PATH"]}
    done = run("--only", "G7", "--seconds", "7", "--out", str(tmp_path), environ=environ)
    assert done.returncode == 0
    found = seen(tmp_path)
    assert "it took longer than" in found["G0", "plain"].values["timed_out"]
    assert all("skipped" in one.values for (step, _), one in found.items() if step == "G7")
    assert ("G7", "8-gib") in found


def test_a_run_that_is_ended_leaves_its_lines_and_no_process(
    machine: MadeUpMachine, hanging_environ: dict[str, str], tmp_path: Path, homes: set[Path]
):
    # The probe hangs in the driver, so that the run is in the middle of a case.
    environ = machine.environ | {"LD_LIBRARY_PATH": hanging_environ["LD_LIBRARY_PATH"]}
    words = [sys.executable, str(RUN), "--only", "G0", "--out", str(tmp_path)]
    with subprocess.Popen(words, env=environ, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if '"mps-version"' in line:
                break
        while not probes():
            time.sleep(0.005)
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 143
    assert not probes()
    assert found_homes() == homes
    assert ("G0", "gpu") in seen(tmp_path)


def probes() -> list[str]:
    """Probes of such runs that live."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            command = (entry / "cmdline").read_bytes() if entry.name.isdecimal() else b""
        except OSError:
            continue
        if command.startswith(b"/tmp/gsl-"):
            found.append(entry.name)
    return found


def test_a_page_is_named_after_day_gpu_and_driver():
    import datetime as dt

    machine = facts(gpu=ROW | {"name": "NVIDIA H100 80GB HBM3", "driver_version": "580.159.04"})
    assert page_name(machine, dt.date(2026, 11, 21)) == "2026-11-21-nvidia-h100-80gb-hbm3-580-159-04"
