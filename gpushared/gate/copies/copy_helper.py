"""A program of its own that copies files as a container's user; it starts as root and gives that up first.

It is told what to do in one line of JSON on its standard input and answers on its standard output. Standard
library only, all of it imported before the container's files are the ones that it sees.
"""

import contextlib
import io
import json
import os
import stat
from typing import Any

from gpushared.gate.copies import entering
from gpushared.gate.copies.order import (
    AGAIN,
    BLOCK_BYTES,
    STAT,
    CopyRefusedError,
    Deed,
    Order,
    check_uncovered,
    cleaned,
    first_of,
    means_directory,
    name_of,
    refusal_of,
    resolved,
    stat_of,
)
from gpushared.gate.copies.picking import PastError, Picking
from gpushared.gate.copies.reading import Tree
from gpushared.gate.copies.writing import Unpacking


class Channel:
    """The two ends of the line to the daemon."""

    def __init__(self) -> None:
        self.input = io.BufferedReader(io.FileIO(0, "rb"), BLOCK_BYTES)
        self.output = io.BufferedWriter(io.FileIO(1, "wb"), BLOCK_BYTES)
        self.has_answered = False

    def progress(self) -> None:
        """Tell that this process does not hang."""
        self.output.write(b"\n")
        self.output.flush()

    def answer(self, words: dict[str, Any]) -> None:
        """Tell what came of the order; an archive may follow."""
        self.output.write(json.dumps(words).encode() + b"\n")
        self.has_answered = True


def main() -> None:
    """Do what is ordered; the exit code tells whether an archive that was begun is whole."""
    try:
        _main(Channel())
    except Exception:  # noqa: BLE001 - whatever it is: a traceback would be read from the container's files
        os._exit(1)


def _main(channel: Channel) -> None:
    order: Order = json.loads(channel.input.readline())
    try:
        entering.bound()
        entering.count_for_user(order["cgroups"])
        if order["deed"] == Deed.PICK:
            entering.become(order)
            _pick(order, channel)
        else:
            view = _entered(order)
            entering.become(order)
            _do(order, view, channel)
    except CopyRefusedError as error:
        if channel.has_answered:
            raise  # the daemon learns by the exit code that the archive is not whole
        channel.answer({"refused": str(error), "kind": error.kind, "hint": error.hint})
    channel.output.flush()


def _entered(order: Order) -> entering.View:
    if order["layers"]:
        return entering.mount(order["layers"], writes=order["deed"] == Deed.WRITE)
    return entering.enter(order["pid"], order["container"])


def _do(order: Order, view: entering.View, channel: Channel) -> None:
    deed = Deed(order["deed"])
    # The engine follows links to the places of mounts as well.
    mounts = [os.path.realpath(each) for each in order["mounts"]]
    if deed is Deed.WRITE:
        _unpack(order, mounts, channel)
        return
    path, found = _looked_up(order["path"], mounts)
    target = os.path.realpath(path) if stat.S_ISLNK(found.st_mode) else ""
    tree = Tree(path, name_of(order["path"]), view.barren, view.own_files)
    if deed is Deed.READ:
        try:
            tree.check(channel.progress)
        except OSError as error:
            raise refusal_of(error, "read", first_of(error, order["path"])) from None
    channel.answer({STAT: stat_of(order["path"], found, target)})
    if deed is Deed.READ:
        tree.write(channel.output)


def _looked_up(asked: str, mounts: list[str]) -> tuple[str, os.stat_result]:
    """Return the path with its links resolved, and the file's status."""
    path = resolved(asked)
    check_uncovered(path, mounts, "read")
    try:
        found = os.lstat(path)
    except OSError as error:
        raise refusal_of(error, "read", asked) from None
    if means_directory(asked) and not stat.S_ISDIR(found.st_mode):
        raise refusal_of(NotADirectoryError(0, "not a directory"), "read", asked)
    return path, found


def _pick(order: Order, channel: Channel) -> None:
    picking = Picking(order)
    try:
        told, entry = picking.find(channel.input)
    except PastError as past:
        channel.answer({AGAIN: past.path})
        return
    channel.answer({STAT: told})
    if not order["only_look"]:
        picking.write(entry, channel.output)


def _unpack(order: Order, mounts: list[str], channel: Channel) -> None:
    path = os.path.realpath(cleaned(order["path"]))
    check_uncovered(path, mounts, "written")
    try:
        found = os.lstat(path)
    except OSError as error:
        raise refusal_of(error, "written", order["path"]) from None
    if not stat.S_ISDIR(found.st_mode):
        raise refusal_of(NotADirectoryError(0, "not a directory"), "written", order["path"])
    groups = frozenset([order["gid"], *order["groups"]])
    keeps_kinds, keeps_owners = order["keeps_kinds"], order["keeps_owners"]
    unpacking = Unpacking(path, groups, mounts, keeps_kinds=keeps_kinds, keeps_owners=keeps_owners)
    unpacking.take(channel.input)
    # What follows the end of an archive is nobody's, but whoever sends it wants to be rid of it.
    with contextlib.suppress(OSError):
        while channel.input.read(BLOCK_BYTES):
            pass
    channel.answer({})
