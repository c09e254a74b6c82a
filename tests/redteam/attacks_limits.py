"""More than one's share: identities, ports, ends and volumes by which one user would be many."""

from __future__ import annotations

import json
import subprocess
import sys

from tests.bed import parts
from tests.node.daemon import connected
from tests.redteam.attack import BOTH, Attack, How, Response, Threat, creates, encoded, plain_body
from tests.redteam.attacked_machine import (
    ATTACKER,
    MOST_PORTS,
    SUBORDINATE,
    VICTIM,
    AttackedMachine,
    last_answer,
)

AVAILABLE, IDENTITY, FILES = Threat.AVAILABILITY, Threat.IDENTITY, Threat.FILES
IDS = 65_536
INSIDE = 9
"""Of the namespace's ids the one that asks."""
IN_A_NAMESPACE = """
import ctypes, os, socket, sys
os.setgroups([])
os.setresgid(*3 * [int(sys.argv[3])])
os.setresuid(*3 * [int(sys.argv[3])])
made = ctypes.CDLL(None).unshare(0x10000000) == 0  # CLONE_NEWUSER
print("made" if made else "none", flush=True)
sys.stdin.readline()
os.setresgid(9, 9, 9)
os.setresuid(9, 9, 9)
s = socket.socket(socket.AF_UNIX)
s.connect(sys.argv[1])
s.sendall(sys.argv[2].encode())
sys.stdout.buffer.write(b"".join(iter(lambda: s.recv(9999), b"")))
"""
TOO_MANY = f"a user may publish {MOST_PORTS} here"
SUBORDINATE_ID = "is a subordinate id of"


def as_a_subordinate(method: str, target: str, body: str = "") -> How:
    """As an id that the attacker has in a user namespace. Root writes the map, as ``newuidmap`` would."""
    request = (
        f"{method} {target} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
        f"Content-Length: {len(body)}\r\n\r\n{body}"
    )

    def how(machine: AttackedMachine) -> Response:
        words = [IN_A_NAMESPACE, str(machine.daemon.socket), request, str(ATTACKER)]
        pipe = subprocess.PIPE
        command = [sys.executable, "-I", "-c", *words]
        with subprocess.Popen(command, stdin=pipe, stdout=pipe) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            if process.stdout.readline() != b"made\n":
                process.kill()
                return _as_another(machine, request)
            for kind in ("uid", "gid"):
                with open(f"/proc/{process.pid}/{kind}_map", "w") as file:  # noqa: PTH123 - one write
                    file.write(f"0 {ATTACKER} 1\n1 {SUBORDINATE} {IDS}\n")
            said, _ = process.communicate(b"\n", timeout=30)
        machine.attacker.seen.append(said)
        return last_answer(said)

    return how


def _as_another(machine: AttackedMachine, request: str) -> Response:
    """Where the machine gives nobody a namespace: the id itself."""
    with connected(machine.daemon.socket, SUBORDINATE + INSIDE - 1) as channel:
        channel.sendall(request.encode())
        said = b"".join(iter(lambda: channel.recv(65536), b""))
    machine.attacker.seen.append(said)
    return last_answer(said)


def ports(first: int, count: int) -> dict[str, object]:
    return {f"{port}/tcp": [{"HostPort": ""}] for port in range(first, first + count)}


def little_by_little(machine: AttackedMachine) -> Response:
    """No container has too many; stopped ones count, for the engine may start them again by itself."""
    for first in range(2000, 2000 + 2 * MOST_PORTS, 3):
        told = creates({"PortBindings": ports(first, 3)})(machine)
        if told.is_refusal:
            return told
    return Response(0, "there were ports for all")


def image_that_exposes(machine: AttackedMachine) -> Response:
    baked = "EXPOSE " + " ".join(map(str, range(3000, 3000 + 4 * MOST_PORTS)))
    machine.engine.check("import", "--change", baked, str(parts.BUSYBOX_TAR), "evil/ports:latest")
    try:
        body = plain_body(
            Image="evil/ports:latest", HostConfig={"NetworkMode": "none", "PublishAllPorts": True}
        )
        return machine.run_body(json.dumps(body).encode())
    finally:
        machine.engine.check("rmi", "--force", "evil/ports:latest")


def image_changed_after_the_create(machine: AttackedMachine) -> Response:
    """The engine, not the gate, made the container: what it is to publish is looked at again."""
    baked = "EXPOSE " + " ".join(map(str, range(3000, 3000 + 4 * MOST_PORTS)))
    machine.engine.check("import", "--change", baked, str(parts.BUSYBOX_TAR), "evil/ports:latest")
    try:
        body = plain_body(
            Image="evil/ports:latest",
            User=f"{ATTACKER}:{ATTACKER}",
            Labels={"gpushare.owner": str(ATTACKER), "gpushare.published-ports": "1"},
            HostConfig={
                "NetworkMode": "none", "PublishAllPorts": True, "CapDrop": ["ALL"],
                "SecurityOpt": ["no-new-privileges"], "CgroupParent": machine.attackers_place,
            },
        )  # fmt: skip
        made = machine.as_engine("POST", "/containers/create", body)["Id"]
        return machine.ask("POST", f"/containers/{made}/start")
    finally:
        machine.engine.check("rmi", "--force", "evil/ports:latest")


def volume_without_a_name(machine: AttackedMachine) -> Response:
    """The victim's, once its container is gone: nobody but its owner finds, mounts or prunes it."""
    words = ("--network", "none", "-v", "/x", parts.BUSYBOX_IMAGE)
    container = machine.daemon.check("create", *words, uid=VICTIM)
    mounts = machine.as_engine("GET", f"/containers/{container}/json")["Mounts"]
    [mount] = [each for each in mounts if each["Type"] == "volume"]
    machine.as_engine("DELETE", f"/containers/{container}")
    name = mount["Name"]
    try:
        listed = machine.ask("GET", "/volumes")
        pruned = machine.ask("POST", "/volumes/prune?" + encoded(filters="{}"))
        body = plain_body(HostConfig={"NetworkMode": "none", "Binds": [f"{name}:/x"]})
        if name in listed.message + pruned.message:
            return Response(0, "it was found")
        told = machine.run_body(json.dumps(body).encode())
        left = machine.daemon.check("volume", "ls", "-q", uid=VICTIM).split()
        return told if name in left else Response(0, "it is gone")
    finally:
        machine.as_engine("DELETE", f"/volumes/{name}")


ATTACKS = [
    Attack(
        "ids-of-a-user-namespace",
        IDENTITY,
        as_a_subordinate("GET", "/containers/json"),
        refused=SUBORDINATE_ID,
    ),
    Attack(
        "ids-of-a-user-namespace-for-leases",
        AVAILABLE,
        as_a_subordinate("POST", "/gpushare.v1.Leases/Request", '{"gpu": "1"}'),
        refused=SUBORDINATE_ID,
    ),
    Attack(
        "ports-by-the-thousand",
        AVAILABLE,
        creates({"PortBindings": ports(2000, 2000)}),
        refused=TOO_MANY,
        on=BOTH,
    ),
    Attack(
        "ports-by-all-that-is-exposed",
        AVAILABLE,
        creates({"PublishAllPorts": True}, ExposedPorts={f"{port}/tcp": {} for port in range(1, 4000)}),
        refused=TOO_MANY,
    ),
    Attack(
        "ports-by-a-range-that-is-exposed",
        AVAILABLE,
        creates({"PublishAllPorts": True}, ExposedPorts={"1-65535/tcp": {}}),
        refused=TOO_MANY,
    ),
    Attack("ports-by-an-image", AVAILABLE, image_that_exposes, refused=TOO_MANY, on=BOTH),
    Attack("ports-by-another-image", AVAILABLE, image_changed_after_the_create, refused="was created for 1"),
    Attack("ports-little-by-little", AVAILABLE, little_by_little, refused=TOO_MANY),
    Attack("end-that-never-comes", AVAILABLE, creates(StopTimeout=-1), refused="hold up the engine's end"),
    Attack(
        "end-in-a-hundred-years",
        AVAILABLE,
        creates(StopTimeout=1 << 31),
        refused="hold up the engine's end",
        on=BOTH,
    ),
    Attack(
        "volume-without-a-name-of-another", FILES, volume_without_a_name, refused="o such volume", on=BOTH
    ),
]
