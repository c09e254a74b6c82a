"""Limit the GPU memory of a container's cgroup before its program starts, as a container runtime's hook.

The hook runs on its own (``python -I -S limit_hook.py ROOT GPU=BYTES...``) and imports only a few parts of
the standard library, because every start of a container waits for it. OCI's ``createRuntime`` hooks run as
root, in the namespaces of the runtime, when the container's cgroup exists and holds its first process; the
state with that process's PID comes on standard input.

The hook always ends with 0, because any other code would keep the container from starting, and a limit that
cannot be set here is no reason for that: the lease's own cgroup above already has the limit. Errors go to
standard error and to the system's log. A driver that hangs is left to a child process, which the hook does
not wait for.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import sys
import syslog

PATIENCE_SECONDS = 5.0
LIBRARY = "libnvidia-ml.so.1"
LIBRARY_VARIABLE = "GPUSHARE_NVML_LIBRARY"
FUNCTION = "nvmlDeviceSetMemoryLimits_v1"
MAX_MESSAGE_BYTES = 4096


class LimitRefused(Exception):
    """Report that the limit could not be set; the text states the reason."""


class MemoryLimits(ctypes.Structure):
    """Mirror ``nvmlSetMemoryLimits_v1_t`` of nvml.h: the cgroup's full path, then bytes."""

    _fields_ = (
        ("cgroup", ctypes.c_char_p),
        ("soft_bytes", ctypes.c_ulonglong),
        ("hard_bytes", ctypes.c_ulonglong),
    )


def main(arguments: list[str]) -> None:
    """Set the limits that the arguments name; never raises, never waits for long."""
    try:
        root, *limits = arguments
        cgroup = cgroup_of(json.load(sys.stdin)["pid"], root)
        trouble = _in_child(cgroup, dict(_limit(argument) for argument in limits))
    except (LimitRefused, OSError, ValueError, ArithmeticError, LookupError, TypeError) as error:
        trouble = str(error) or repr(error)
    if trouble:
        _tell(trouble)


def cgroup_of(pid: int, root: str) -> str:
    """Return the full path of a process's cgroup of v2, as the driver needs it.

    Raises LimitRefused, OSError.
    """
    if not os.access(f"{root}/cgroup.controllers", os.F_OK):
        raise LimitRefused(f"{root} is not cgroup v2, which the driver needs")
    with open(f"/proc/{int(pid)}/cgroup") as file:  # noqa: PTH123 - importing pathlib takes as long as the rest
        paths = [line.rstrip("\n")[3:] for line in file if line.startswith("0::/")]
    if not paths or paths[0] == "/":
        raise LimitRefused(f"process {pid} has no cgroup of its own")
    return root + paths[0]


def limit(cgroup: str, limits: dict[str, int]) -> None:
    """Set the hard limit of each GPU (by UUID, in bytes), and no guarantee. Raises LimitRefused."""
    try:
        nvml = ctypes.CDLL(os.environ.get(LIBRARY_VARIABLE, LIBRARY))
        change = getattr(nvml, FUNCTION)
    except (OSError, AttributeError) as error:
        raise LimitRefused(f"the driver sets no limits: {error}") from error
    _check(nvml.nvmlInit_v2(), "nvmlInit_v2")
    for gpu, limit_bytes in limits.items():
        handle = ctypes.c_void_p()
        code = nvml.nvmlDeviceGetHandleByUUID(gpu.encode(), ctypes.byref(handle))
        _check(code, f"nvmlDeviceGetHandleByUUID {gpu}")
        memory_limits = MemoryLimits(cgroup.encode(), 0, limit_bytes)
        _check(change(handle, ctypes.byref(memory_limits)), f"{FUNCTION} {gpu} {cgroup}")


def _limit(argument: str) -> tuple[str, int]:
    gpu, _, limit_bytes = argument.partition("=")
    return gpu, int(limit_bytes)


def _check(code: int, call: str) -> None:
    if code != 0:
        raise LimitRefused(f"{call} answered {code}")


def _in_child(cgroup: str, limits: dict[str, int]) -> str:
    """Set the limits in a child, and return the child's error, or an empty text."""
    reader, writer = os.pipe()
    if os.fork() == 0:
        _be_child(writer, cgroup, limits)
    os.close(writer)
    if not select.select([reader], [], [], PATIENCE_SECONDS)[0]:
        return f"the driver did not answer within {PATIENCE_SECONDS:g} s"
    return os.read(reader, MAX_MESSAGE_BYTES).decode(errors="replace").removeprefix("done")


def _be_child(writer: int, cgroup: str, limits: dict[str, int]) -> None:
    """Do the child's work and end the process.

    The runtime waits until no process holds its pipes open any more.
    """
    text = "done"
    try:
        nowhere = os.open(os.devnull, os.O_RDWR)
        for descriptor in range(3):
            os.dup2(nowhere, descriptor)
        limit(cgroup, limits)
    except (LimitRefused, OSError) as error:
        text = str(error)
    finally:
        # The child must not continue the parent's own work.
        os.write(writer, text.encode()[:MAX_MESSAGE_BYTES])
        os._exit(0)


def _tell(trouble: str) -> None:
    text = f"no limit on the container's own cgroup: {trouble}"
    sys.stderr.write(f"gpushared: {text}\n")
    syslog.openlog("gpushared", 0, syslog.LOG_DAEMON)
    syslog.syslog(syslog.LOG_WARNING, text)


if __name__ == "__main__":
    main(sys.argv[1:])
