"""NVIDIA's own user library: it has what is asked of it, and without a driver everybody says so.

The tests of the adapter play the driver by a library of their own, which must not promise more than NVIDIA's.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.bed.parts import ROOT
from tests.gpus.fake_nvml import NO_MEMORY_LIMITS

NAMED = re.compile(r"""["'.]f?(nvml[A-Z][A-Za-z]+(?:_v\d)?)["'(]""")
"""Functions of NVML as strings or attributes in the package's source."""
SAY_WHY = """
import asyncio, sys
from gpushared.domain.model.errors import GpusUnavailable
from gpushared.gpus.nvml import NvmlGpus
try:
    asyncio.run(NvmlGpus(library=sys.argv[1]).survey())
except GpusUnavailable as error:
    print(error.message, error.hint, sep="\\n")
"""


def exported(library: Path) -> frozenset[str]:
    """The functions by their versioned names."""
    listed = subprocess.run(
        ["nm", "--dynamic", "--defined-only", library], check=True, capture_output=True, text=True
    )
    names = [line.split()[-1].partition("@")[0] for line in listed.stdout.splitlines()]
    return frozenset(name for name in names if name.startswith("nvml"))


def test_it_has_all_functions_of_the_stand_in_but_the_two_of_r615_and_one_with_an_older_form(
    nvidia_library: Path, library: Path
) -> None:
    there = exported(nvidia_library)
    assert exported(library) - there == {*NO_MEMORY_LIMITS, "nvmlDeviceGetTemperatureV"}
    assert "nvmlDeviceGetTemperature" in there


def test_the_stand_in_has_every_function_that_the_package_names(library: Path) -> None:
    """So that the test before this one speaks of all of them. A version or flags may follow the name."""
    files = [file for folder in ("gpus", "sharing") for file in (ROOT / "gpushared" / folder).glob("*.py")]
    named = {name for file in files for name in NAMED.findall(file.read_text())}
    assert {"nvmlInit", "nvmlDeviceGetUUID", "nvmlDeviceSetMemoryLimits_v1", "nvmlEventSetWait_v2"} <= named
    there = exported(library)
    assert sorted(name for name in named if not any(one.startswith(name) for one in there)) == []


def adapter_says(nvidia_library: Path) -> list[str]:
    """What the adapter says of it. In a process of its own: a library that is loaded stays."""
    words = [sys.executable, "-c", SAY_WHY, str(nvidia_library)]
    return subprocess.run(words, check=True, capture_output=True, text=True, timeout=60).stdout.splitlines()


def test_without_a_driver_the_adapter_says_that_it_is_not_loaded_and_what_to_try(
    nvidia_library: Path,
) -> None:
    message, hint = adapter_says(nvidia_library)
    assert message == "The NVIDIA driver is not loaded"
    assert "modprobe nvidia" in hint


@pytest.mark.skipif(os.getuid() != 0, reason="only for root it makes the node")
def test_the_scripts_see_no_driver_where_only_the_library_was_at_work(nvidia_library: Path) -> None:
    """Its node ``/dev/nvidiactl`` looks like a driver's."""
    adapter_says(nvidia_library)
    assert Path("/dev/nvidiactl").is_char_device()
    seen = subprocess.run(["bash", "-c", f". {ROOT}/scripts/lib/common.sh && has_driver"], check=False)
    assert seen.returncode == 1
