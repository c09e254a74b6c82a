"""Copy files as a container's user, in a program of its own.

The program starts as root and gives up its rights first. It reads its order as one line of JSON from its
standard input and answers on its standard output. It uses the standard library only, and imports all of it
before it sees the container's files in place of the machine's.

Between its entry into the container's files and the loss of its rights the program imports nothing and opens
nothing by a name: the container's owner may have put any file at each name.
"""

import contextlib
import io
import json
import os
import resource
import select
import signal
import stat
import sys
from pathlib import Path
from typing import Any, NamedTuple

from gpushared.gate.copies.order import (
    AGAIN,
    BLOCK_BYTES,
    START_HINT,
    STAT,
    CopyRefusedError,
    Deed,
    Order,
    RefusalKind,
    check_uncovered,
    cleaned,
    first_of,
    means_directory,
    name_of,
    refusal_of,
    resolved,
    stat_of,
)
from gpushared.gate.copies.reading import AlreadyPassedError, Picking, Tree
from gpushared.gate.copies.writing import Unpacking
from gpushared.gate.mounts import kernel, mount_helper
from gpushared.mountinfo import parse_line

MEMORY_BYTES = 512 << 20
"""The head of an archive may have any length, and is held whole."""
DEVICES = "/dev"
WORK = "gpushare-work"
"""The name of a directory beside the container's own layer, in which the kernel prepares files of that layer.

The engine has such a directory too. A mount empties the directory, while a container that root starts may
need the engine's one at that moment.
"""


class Channel:
    """Hold the two ends of the connection to the daemon."""

    def __init__(self) -> None:
        self.input = io.BufferedReader(io.FileIO(0, "rb"), BLOCK_BYTES)
        self.output = io.BufferedWriter(io.FileIO(1, "wb"), BLOCK_BYTES)
        self.has_answered = False

    def progress(self) -> None:
        """Send a sign that this process does not hang."""
        self.output.write(b"\n")
        self.output.flush()

    def answer(self, message: dict[str, Any]) -> None:
        """Answer the order; an archive may follow."""
        self.output.write(json.dumps(message).encode() + b"\n")
        self.has_answered = True


def main() -> None:
    """Carry out the order; the exit code is not 0 if the archive was begun and is not whole."""
    try:
        _main(Channel())
    except Exception:  # noqa: BLE001 - whatever it is: a traceback would be read from the container's files
        os._exit(1)


def _main(channel: Channel) -> None:
    order: Order = json.loads(channel.input.readline())
    try:
        bound()
        count_for_user(order["cgroups"])
        if order["deed"] == Deed.PICK:
            become(order)
            _pick(order, channel)
        else:
            view = _enter_files(order)
            become(order)
            _copy(order, view, channel)
    except CopyRefusedError as error:
        if channel.has_answered:
            raise  # the daemon learns by the exit code that the archive is not whole
        channel.answer({"refused": str(error), "kind": error.kind, "hint": error.hint})
    channel.output.flush()


class View(NamedTuple):
    """Hold the helper's facts about the container that it sees.

    ``no_content``: the directories that are archived without their content, the kernel's or devices.
    ``own_files``: the machine's ``/proc/self/fd``, as the container's has no place for this process.
    """

    no_content: frozenset[str]
    own_files: int


def _enter_files(order: Order) -> View:
    if order["layers"]:
        return mount(order["layers"], writes=order["deed"] == Deed.WRITE)
    return enter(order["pid"], order["container"])


def _copy(order: Order, view: View, channel: Channel) -> None:
    deed = Deed(order["deed"])
    # The engine follows links to the places of mounts too.
    mounts = [os.path.realpath(each) for each in order["mounts"]]
    if deed is Deed.WRITE:
        _unpack(order, mounts, channel)
        return
    path = resolved(order["path"])
    check_uncovered(path, mounts, "read")
    status = _status_of(path, order["path"], "read", is_directory=means_directory(order["path"]))
    target = os.path.realpath(path) if stat.S_ISLNK(status.st_mode) else ""
    tree = Tree(path, name_of(order["path"]), view.no_content, view.own_files)
    if deed is Deed.READ:
        try:
            tree.check(channel.progress)
        except OSError as error:
            raise refusal_of(error, "read", first_of(error, order["path"])) from None
    channel.answer({STAT: stat_of(order["path"], status, target)})
    if deed is Deed.READ:
        tree.write(channel.output)


def _status_of(path: str, requested_path: str, doing: str, *, is_directory: bool) -> os.stat_result:
    """Return the file's status. Raises ``CopyRefusedError``, also if the file is not the directory meant."""
    try:
        status = os.lstat(path)
    except OSError as error:
        raise refusal_of(error, doing, requested_path) from None
    if is_directory and not stat.S_ISDIR(status.st_mode):
        raise refusal_of(NotADirectoryError(0, "not a directory"), doing, requested_path)
    return status


def _pick(order: Order, channel: Channel) -> None:
    picking = Picking(order)
    try:
        status, entry = picking.find(channel.input)
    except AlreadyPassedError as past:
        channel.answer({AGAIN: past.path})
        return
    channel.answer({STAT: status})
    if not order["only_look"]:
        picking.write(entry, channel.output)


def _unpack(order: Order, mounts: list[str], channel: Channel) -> None:
    path = os.path.realpath(cleaned(order["path"]))
    check_uncovered(path, mounts, "written")
    _status_of(path, order["path"], "written", is_directory=True)
    groups = frozenset([order["gid"], *order["groups"]])
    keeps_kinds, keeps_owners = order["keeps_kinds"], order["keeps_owners"]
    unpacking = Unpacking(path, groups, mounts, keeps_kinds=keeps_kinds, keeps_owners=keeps_owners)
    unpacking.take(channel.input)
    # The bytes after the end of an archive belong to nothing, but the sender needs a reader for them.
    with contextlib.suppress(OSError):
        while channel.input.read(BLOCK_BYTES):
            pass
    channel.answer({})


def bound() -> None:
    """Set the bounds of this process, and end all imports: an image could bring the imported module along.

    Python answers an interrupt, which the user's programs outside can send, and an uncaught error with a
    traceback: Python opens the program's source by its path, where an image may have a device.
    """
    sys.meta_path.clear()
    sys.path.clear()
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    sys.tracebacklimit = 0
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def count_for_user(files: list[str]) -> None:
    """Join the user's cgroups: resources that this process takes from now on count as the user's."""
    try:
        for path in files:
            Path(path).write_text("0")
    except OSError as error:
        raise CopyRefusedError(
            RefusalKind.FAILED, f"the limits of users cannot be kept: {error.strerror}"
        ) from None


def enter(pid: int, container: str) -> View:
    """Enter the container's mount namespace; from here on the process sees no other files.

    A handle of the container's first process keeps the process's number from being reused.
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
    no_content = {each.point for each in mounts if each.kind in kernel.KERNELS_OWN}
    return View(frozenset({*no_content, DEVICES}), own_files)


def mount(layers: dict[str, Any], *, writes: bool) -> View:
    """Mount the files of a container that does not run; from here on the process sees no other files.

    The container's layers are mounted as the engine mounts them, for this process alone. As root the process
    looks up the engine's own paths to the layers, which only root can change, and no path inside a layer.
    """
    own_files = os.open("/proc/self/fd", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        opened = _open_layers(layers, writes=writes)
        # From here on descriptor numbers stand for the layers: the names of many layers are too long for an
        # option.
        os.fchdir(own_files)
        names = [str(each) for each in opened]
        top = kernel.mount_overlay(names[:-2], *names[-2:]) if writes else kernel.mount_overlay(names)
    except (mount_helper.HelperRefusedError, OSError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise CopyRefusedError(
            RefusalKind.FAILED, f"the container's layers cannot be mounted: {reason}", START_HINT
        ) from None
    os.fchdir(top)
    os.chroot(".")
    for descriptor in (top, *opened):
        os.close(descriptor)
    return View(frozenset(), own_files)


def _open_layers(layers: dict[str, Any], *, writes: bool) -> list[int]:
    """Open the layers as the engine sees them; for writing, the upper one and a work directory come last."""
    namespace = mount_helper.engine_namespace(layers["engine"])
    mount_helper.enter_machine()
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
    """Become the container's user."""
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
