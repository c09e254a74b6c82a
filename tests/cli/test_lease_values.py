"""Values that the command line takes without reading them as the daemon does."""

from __future__ import annotations

from itertools import product

import pytest

from gpushared.cli import lease_values
from gpushared.cli.lease_values import check_values
from gpushared.domain.model.request_spec import RequestSpec, read_request

SIZES = [*(str(count) for count in range(1, 10)), "0.01", "0.1", "0.25", "0.5", "0.99"]
TIMES = ["", "1s", "99s", "30m", "2h", "99d", "01h"]


def test_plain_values_are_right_for_the_daemon_in_every_combination() -> None:
    hosts = [("", ""), ("1500", "8589934592"), ("9" * 9, "9" * 12)]
    for gpu, time, kind, project, (cpu, memory) in product(
        SIZES, TIMES, ["", "build", "train", "infer"], ["", "lab", "x" * 64], hosts
    ):
        fields = {"gpu": gpu, "time": time, "lease_class": kind, "project": project, "host_cpu_milli": cpu}
        fields["host_memory_bytes"] = memory
        assert lease_values._are_plain(fields), fields
        read_request(RequestSpec(**fields), {})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(
            ("gpu", text)
            for text in ("0", "0.0", "0.00", "0.001", "10", "1.5", "25%", "2x0.5", ".5", "²", "1.")
        ),
        *(("time", text) for text in ("0s", "00m", "1", "h", "100d", "1h30m", "²s")),
        ("lease_class", "x"),
        ("isolation", "exclusive"),
        ("project", "x" * 65),
        ("gpu_memory", "8g"),
        ("priority", 5),
        ("after", ["l-7f3k"]),
        ("host_cpu_milli", 10**9),
    ],
)
def test_what_might_be_wrong_is_read_as_the_daemon_reads_it(name: str, value: object) -> None:
    assert not lease_values._are_plain({"gpu": "0.25", name: value})


def test_a_command_without_a_size_is_plain() -> None:
    check_values({"gpu": "", "preset": "small", "held": True, "begin_at": 1.0, "priority": 0})
