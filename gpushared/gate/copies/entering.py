"""The way of the helper into a container's files, as root, and out of all its rights. Standard library only.

Nothing is imported or opened by a name between the two: there is whatever the container's owner put there.
"""

import os
import resource
import select
import signal
import sys
from pathlib import Path
from typing import Any, NamedTuple

from gpushared.gate.copies.order import START, CopyRefusedError, Order, RefusalKind
from gpushared.gate.mounts import kernel
from gpushared.gate.mounts import mount_helper as pins
from gpushared.mountinfo import parse_line

MEMORY_BYTES = 512 << 20
"""A head of an archive may be of any length, and is held whole."""
DEVICES = "/dev"
WORK = "gpushare-work"
"""A directory beside the container's own layer, in which the kernel prepares files of that layer.

The engine has one of its own. A mount empties it, while a container that root starts just now may need it.
"""


def bound() -> None:
    """Set the bounds of this process. Nothing is imported any more: an image could bring that along.

    Python answers an interrupt, which the user's programs outside can send, and an error that nobody catches
    with a traceback: it opens the program's source by its path, where an image may have a device.
    """
    sys.meta_path.clear()
    sys.path.clear()
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    sys.tracebacklimit = 0
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def count_for_user(files: list[str]) -> None:
    """Join the user's cgroups: the resources that this process takes from now on count as the user's."""
    try:
        for path in files:
            Path(path).write_text("0")
    except OSError as error:
        raise CopyRefusedError(
            RefusalKind.FAILED, f"the limits of users cannot be kept: {error.strerror}"
        ) from None


class View(NamedTuple):
    """Hold the helper's facts about the container that it sees.

    ``barren``: the directories whose content is the kernel's, or devices. ``own_files``: the machine's
    ``/proc/self/fd``, as the container's has no place for this process.
    """

    barren: frozenset[str]
    own_files: int


def enter(pid: int, container: str) -> View:
    """See the container's files and no others from here on.

    By a handle of its first process: while that lives, its number is no other's.
    """
    own = os.open("/proc/self", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        handle = os.pidfd_open(pid)
        cgroups = Path(f"/proc/{pid}/cgroup").read_text()
        namespace = os.open(f"/proc/{pid}/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
        root = os.open(f"/proc/{pid}/root", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    except (FileNotFoundError, ProcessLookupError):
        raise ended() from None
    if container not in cgroups or has_ended(handle):
        raise ended()
    kernel.enter(namespace)
    os.fchdir(root)
    os.chroot(".")
    with os.fdopen(os.open("mountinfo", os.O_RDONLY | os.O_CLOEXEC, dir_fd=own), "rb") as lines:
        mounts = [parse_line(os.fsdecode(line)) for line in lines]
    own_files = os.open("fd", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=own)
    for descriptor in (handle, namespace, root, own):
        os.close(descriptor)
    barren = {each.point for each in mounts if each.kind in kernel.KERNELS_OWN}
    return View(frozenset({*barren, DEVICES}), own_files)


def mount(layers: dict[str, Any], *, writes: bool) -> View:
    """See the files of a container that does not run from here on, and no others.

    The container's layers are mounted as the engine mounts them, for this process alone. As root it looks up
    the engine's own paths to the layers, which only root can change, and nothing that lies in a layer.
    """
    own_files = os.open("/proc/self/fd", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        opened = _opened(layers, writes=writes)
        # By numbers of descriptors from here on: the names of many layers are too long for an option.
        os.fchdir(own_files)
        names = [str(each) for each in opened]
        top = kernel.mount_overlay(names[:-2], *names[-2:]) if writes else kernel.mount_overlay(names)
    except (pins.HelperRefusedError, OSError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise CopyRefusedError(
            RefusalKind.FAILED, f"the container's layers cannot be mounted: {reason}", START
        ) from None
    os.fchdir(top)
    os.chroot(".")
    for descriptor in (top, *opened):
        os.close(descriptor)
    return View(frozenset(), own_files)


def _opened(layers: dict[str, Any], *, writes: bool) -> list[int]:
    """Open the layers as the engine sees them; for writing, the upper one and a work directory come last."""
    namespace = pins.engine_namespace(layers["engine"])
    pins.enter_machine()
    if namespace is not None:
        kernel.enter(namespace)
        os.close(namespace)
    paths = [layers["upper"], *layers["lower"]]
    if writes:
        work = Path(layers["upper"]).with_name(WORK)
        work.mkdir(mode=0o700, exist_ok=True)
        paths = [*layers["lower"], layers["upper"], str(work)]
    return [kernel.open_as_named(each) for each in paths]


def become(order: Order) -> None:
    """Be the container's user."""
    kernel.become(order["uid"], order["gid"], order["groups"])
    kernel.die_with_parent()


def has_ended(handle: int) -> bool:
    """Return True if the process of the handle is over."""
    poll = select.poll()
    poll.register(handle, select.POLLIN)
    return bool(poll.poll(0))


def ended() -> CopyRefusedError:
    """Return the error for a container that does not run any more."""
    return CopyRefusedError(RefusalKind.FAILED, "the container has just ended", "try again")
