"""What the words of ``docker run`` say of the machine's CPU and memory."""

from __future__ import annotations

import pytest

from gpushared.cli import lease_values
from gpushared.cli.docker_args import split

GIB = 1024**3


@pytest.mark.parametrize(
    ("words", "milli"),
    [
        (["--cpus", "2"], 2000),
        (["--cpus=1.5"], 1500),
        (["--cpus", ".25"], 250),
        (["--cpus", "0.0001"], 1),
        (["--cpu-quota", "50000"], 500),
        (["--cpu-quota", "50000", "--cpu-period", "25000"], 2000),
        (["--cpus", "1", "--cpus", "3"], 3000),
        (["--cpu-shares", "512"], 0),
        (["--cpus", "many"], 0),
        (["--cpus", "-1"], 0),
        (["--cpu-quota", "50000", "--cpu-period", "0"], 0),
        ([], 0),
    ],
)
def test_cpus_are_read_as_docker_reads_them(words: list[str], milli: int) -> None:
    assert lease_values.cpu_milli(split([*words, "busybox"])) == milli


@pytest.mark.parametrize(
    ("words", "size"),
    [
        (["--memory", "8g"], 8 * GIB),
        (["-m", "512M"], GIB // 2),
        (["-m1.5gb"], GIB * 3 // 2),
        (["--memory=1073741824"], GIB),
        (["--memory", "2GiB"], 2 * GIB),
        (["--memory", "64b"], 64),
        (["--memory", "lots"], 0),
        (["--memory-swap", "8g"], 0),
        (["busybox", "-m", "8g"], 0),
    ],
)
def test_memory_is_read_as_docker_reads_it(words: list[str], size: int) -> None:
    assert lease_values.memory_bytes(split([*words, "busybox"])) == size
