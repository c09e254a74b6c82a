"""The hook as the runtime runs it: a program with the container's state on its standard input."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from gpushared.sharing import limit_hook
from tests.gpus.fake_nvml import NO_MEMORY_LIMITS, FakeGpu, FakeMachine, fake_nvml_library
from tests.sharing import cgroups

LIMITS = ("GPU-a=1073741824", "GPU-b=2147483648")


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fake_nvml_library(tmp_path_factory.mktemp("nvml"))


@dataclass
class Container:
    """A process in a cgroup of its own, on a machine with two GPUs."""

    pid: int
    cgroup: Path
    machine: FakeMachine
    library: Path

    def hook(
        self, *limits: str, root: Path | None = None, stdin: str | None = None
    ) -> subprocess.CompletedProcess[str]:
        state = json.dumps({"ociVersion": "1.0.2", "pid": self.pid, "status": "creating"})
        return subprocess.run(
            [sys.executable, "-I", "-S", limit_hook.__file__, str(root or self.cgroup.parent), *limits],
            input=state if stdin is None else stdin,
            env=self.machine.environment(self.library),
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )


@pytest.fixture
def container(tmp_path: Path, library: Path) -> Iterator[Container]:
    root = cgroups.real_root()
    machine = FakeMachine(tmp_path / "state", gpus=[FakeGpu("GPU-a"), FakeGpu("GPU-b")], cgroups=root)
    cgroup = root / f"gpushared-hook-{os.getpid()}"
    with cgroups.process_in(cgroup) as pid:
        yield Container(pid, cgroup, machine, library)


def test_it_limits_the_cgroup_of_the_containers_process(container: Container) -> None:
    """Found by its PID; each GPU gets its own limit, and no guarantee that would outlive the cgroup."""
    done = container.hook(*LIMITS)
    assert (done.returncode, done.stderr) == (0, "")
    cgroup = str(container.cgroup)
    assert container.machine.memory_limits() == {("GPU-a", cgroup): (0, 2**30), ("GPU-b", cgroup): (0, 2**31)}


def test_on_a_machine_with_cgroup_v1_it_says_so(container: Container, tmp_path: Path) -> None:
    """The container starts all the same, and its parent's limit holds it, where there can be one."""
    done = container.hook(*LIMITS, root=tmp_path)
    assert done.returncode == 0
    assert f"{tmp_path} is not cgroup v2" in done.stderr


def test_it_never_touches_the_top_of_the_tree(container: Container) -> None:
    """A process that is in no cgroup of its own would have the whole machine limited."""
    first_process = json.dumps({"pid": 1})
    done = container.hook(*LIMITS, stdin=first_process)
    in_top = "0::/\n" in Path("/proc/1/cgroup").read_text()
    assert done.returncode == 0
    assert ("no cgroup of its own" in done.stderr) == in_top


@pytest.mark.parametrize(
    "stdin", ["", "{", "[]", "{}", '{"pid": null}', '{"pid": "x"}', '{"pid": 0}', "\0", '{"pid": 1e400}']
)
def test_whatever_it_reads_it_does_not_keep_a_container_from_starting(
    container: Container, stdin: str
) -> None:
    """Any code but 0 would; it says what is wrong instead."""
    done = container.hook(*LIMITS, stdin=stdin)
    assert done.returncode == 0
    assert done.stderr.startswith("gpushared: no limit on the container's own cgroup: ")
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("word", ["GPU-a", "GPU-a=", "GPU-a=x", "GPU-none=1"])
def test_a_limit_that_makes_no_sense_is_told(container: Container, word: str) -> None:
    """Nothing is set then."""
    done = container.hook(word)
    assert done.returncode == 0
    assert done.stderr
    assert container.machine.memory_limits() == {}


@pytest.mark.parametrize(
    ("errors", "sentence"),
    [
        ({"nvmlDeviceSetMemoryLimits_v1": 4}, "nvmlDeviceSetMemoryLimits_v1 GPU-a"),
        ({"nvmlInitWithFlags": 999}, "nvmlInit_v2 answered 999"),
    ],
)
def test_a_driver_that_refuses_is_quoted(
    container: Container, errors: dict[str, int | tuple[int, int]], sentence: str
) -> None:
    """By function and number."""
    container.machine.errors = errors
    container.machine.write()
    done = container.hook(*LIMITS)
    assert done.returncode == 0
    assert sentence in done.stderr


def test_an_older_driver_has_no_such_function(container: Container, tmp_path: Path) -> None:
    """Its library is loaded, and lacks it."""
    container.library = fake_nvml_library(tmp_path / "old", without=NO_MEMORY_LIMITS)
    done = container.hook(*LIMITS)
    assert done.returncode == 0
    assert "nvmlDeviceSetMemoryLimits_v1" in done.stderr


def test_a_machine_without_a_driver_has_no_library(container: Container, tmp_path: Path) -> None:
    """The loader's own words are told."""
    container.library = tmp_path / "none" / "libnvidia-ml.so.1"
    done = container.hook(*LIMITS)
    assert done.returncode == 0
    assert "libnvidia-ml.so.1" in done.stderr


def test_a_driver_that_hangs_is_not_waited_for(container: Container) -> None:
    """The child that waits for it holds none of the runtime's pipes, and ends when the driver is back."""
    container.machine.hang = "nvmlDeviceSetMemoryLimits_v1"
    container.machine.write()
    done = container.hook(*LIMITS)
    assert done.returncode == 0
    assert "did not answer" in done.stderr
    container.machine.hang = None
    container.machine.write()
