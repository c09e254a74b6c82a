"""Which files of the machine a container sees, by where its mounts begin in which file system."""

from __future__ import annotations

import pytest

from gpushared.engine.reality import exposures, parse, rules_of_list
from gpushared.ports import DeviceRule, Exposure

MACHINE = """\
22 1 8:1 / / rw shared:1 - ext4 /dev/sda1 rw
23 22 0:21 / /run rw - tmpfs tmpfs rw
24 22 8:2 /@home /home rw - btrfs /dev/sda2 rw
25 24 8:2 /@home/shared /srv/with\\040blank rw - btrfs /dev/sda2 rw
26 22 0:5 / /dev rw - devtmpfs udev rw
"""
BARRED = ("/run/gpushare", "/run/docker.sock", "/home/state")
CASES = {
    "nothing of the machine": ("50 49 0:90 / / rw - overlay overlay rw", ()),
    "the directory itself": ("51 50 0:21 /gpushare /x rw - tmpfs tmpfs rw", (("/x", "/run/gpushare"),)),
    "something in it": (
        "51 50 0:21 /gpushare/leases/l-1 /x rw - tmpfs tmpfs rw",
        (("/x", "/run/gpushare/leases/l-1"),),
    ),
    "a file": ("51 50 0:21 /docker.sock /s rw - tmpfs tmpfs rw", (("/s", "/run/docker.sock"),)),
    "a directory around": (
        "51 50 0:21 / /r rw - tmpfs tmpfs rw",
        (("/r", "/run/gpushare"), ("/r", "/run/docker.sock")),
    ),
    "one that only begins alike": ("51 50 0:21 /gpushare-pins/1 /x rw - tmpfs tmpfs rw", ()),
    "the same place of another file system": ("51 50 0:99 /gpushare /x rw - tmpfs tmpfs rw", ()),
    "by the place in the file system": (
        "51 50 8:2 /@home/state /x rw - btrfs /dev/sda2 rw",
        (("/x", "/home/state"),),
    ),
    "the machine's devices": ("51 50 0:5 / /d rw - devtmpfs udev rw", (("/d", "/dev"),)),
    "an unknown form": ("51 50", ()),
}


@pytest.mark.parametrize("case", CASES)
def test_a_mount_shows_what_lies_at_its_place_and_below(case: str) -> None:
    line, expected = CASES[case]
    assert exposures(line, MACHINE, BARRED) == tuple(Exposure(*each) for each in expected)


def test_blanks_in_paths_are_read_back() -> None:
    assert "/srv/with blank" in [each.point for each in parse(MACHINE)]


def test_rules_of_a_cgroup_are_read_and_unknown_lines_left_out() -> None:
    assert rules_of_list("a *:* rwm\nc 195:255 rw\nsomething else\n") == (
        DeviceRule("a", None, None, "rwm"),
        DeviceRule("c", 195, 255, "rw"),
    )
