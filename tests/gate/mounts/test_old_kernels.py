"""Where the kernel is too old for what holds mounts, or a filter takes its calls away, people are told."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gpushared.gate.mounts.held_mounts import ROOT
from gpushared.gate.mounts.helper_process import COMMAND

pytestmark = pytest.mark.docker

WITHOUT_CALL = """
import ctypes, os, struct, sys
# struct sock_filter of linux/filter.h, for seccomp(2): load the call's number, compare, answer.
load, equal, answer, allowed, enosys = 0x20, 0x15, 0x06, 0x7FFF0000, 0x00050000 | 38
steps = [(load, 0, 0, 0), (equal, 0, 1, int(sys.argv[1])), (answer, 0, 0, enosys), (answer, 0, 0, allowed)]
code = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *step) for step in steps))
program = ctypes.create_string_buffer(struct.pack("@HP", len(steps), ctypes.addressof(code)))
libc = ctypes.CDLL(None, use_errno=True)
assert libc.prctl(38, 1, 0, 0, 0) == 0  # no new privileges
assert libc.prctl(22, 2, program, 0, 0) == 0, ctypes.get_errno()  # a filter of calls
os.execv(sys.argv[2], sys.argv[2:])
"""
"""Runs a command in a kernel that has not got the call of the given number, as an old one has not."""


def told(number: int, place: Path) -> Any:
    wish = {"path": str(place), "write": False, "fixed": False}
    order = {"deed": "hold", "name": "", "uid": 1000, "gid": 1000, "groups": [], "engine": None, "root": ROOT}
    order |= {"prefixes": [str(place)], "barred": [], "wishes": [wish]}
    order["name"] = f"old-kernel-{number}"
    command = [sys.executable, "-c", WITHOUT_CALL, str(number), *COMMAND]
    done = subprocess.run(command, input=json.dumps(order).encode(), stdout=subprocess.PIPE, check=True)
    return json.loads(done.stdout)


@pytest.mark.parametrize(("number", "name"), [(428, "open_tree"), (442, "mount_setattr")])
def test_a_kernel_without_a_call_that_mounts_need_is_named_as_what_is_in_the_way(
    home: Path, number: int, name: str
) -> None:
    said = told(number, home / "own" / "d")
    assert said == {"refused": f"the kernel has no {name}, Linux 5.12 is needed"}


@pytest.mark.parametrize("number", [437, 439])
def test_a_kernel_in_which_the_caller_cannot_be_asked_for_is_told_with_the_path(
    home: Path, number: int
) -> None:
    [found] = told(number, home / "own" / "d")["found"]
    assert "(openat2, faccessat2); its service or its kernel forbids that" in found["trouble"]
