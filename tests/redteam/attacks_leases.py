"""GPUs without a lease, others' leases, and the calls that only trusted users may make."""

from __future__ import annotations

import json

from tests.node.daemon import connected
from tests.node.grpc_client import ask
from tests.redteam.attack import BOTH, Attack, How, Response, Threat, calls, creates, docker, plain_body, runs
from tests.redteam.attacked_machine import ATTACKER, VICTIM, AttackedMachine

GPU, LEASES, IDENTITY = Threat.GPU, Threat.LEASES, Threat.IDENTITY
NOT_YOURS = "may not be set by you"
NO_LEASE = "would be a GPU without a lease"
THEIRS = "belongs to"
SLEEPS = plain_body(Cmd=["sleep", "100"])
PATIENCE_SECONDS = 20.0


def reserved_by(machine: AttackedMachine, uid: int) -> str:
    return str(machine.daemon.request("0.1", uid=uid)["id"])


def claimed(machine: AttackedMachine, lease: str) -> Response:
    body = plain_body(Labels={"gpushare.lease": lease})
    return machine.ask("POST", "/containers/create", json.dumps(body).encode())


def claim_of_another(machine: AttackedMachine) -> Response:
    lease = reserved_by(machine, VICTIM)
    try:
        return claimed(machine, lease)
    finally:
        machine.daemon.call("Leases/Release", {"lease_id": lease}, uid=VICTIM)


def claimed_twice(machine: AttackedMachine) -> Response:
    lease = reserved_by(machine, ATTACKER)
    assert not claimed(machine, lease).is_refusal
    return claimed(machine, lease)


def held(machine: AttackedMachine, **host: object) -> tuple[str, str]:
    """A running container of the attacker's own with a lease: both ids."""
    lease = reserved_by(machine, ATTACKER)
    body = {**SLEEPS, "Labels": {"gpushare.lease": lease}, "HostConfig": {"NetworkMode": "none", **host}}
    own = machine.made(body)
    started = machine.ask("POST", f"/containers/{own}/start")
    assert not started.is_refusal, started
    return own, lease


def claimed_after_its_end(machine: AttackedMachine) -> Response:
    own, lease = held(machine)
    machine.daemon.call("Leases/Stop", {"lease_id": lease, "grace_seconds": 0}, uid=ATTACKER)
    machine.daemon.wait_lease(lease, "ended")
    machine.as_engine("DELETE", f"/containers/{own}?force=1")
    return claimed(machine, lease)


def restarted_past_the_end(machine: AttackedMachine) -> Response:
    """A container that the engine starts again by itself must not have a GPU that its lease lost."""
    own, lease = held(machine, RestartPolicy={"Name": "always"})
    machine.daemon.call("Leases/Stop", {"lease_id": lease, "grace_seconds": 0}, uid=ATTACKER)
    machine.daemon.wait_lease(lease, "ended")
    running = machine.as_engine("GET", f"/containers/{own}/json")["State"]["Running"]
    leases = [one for one in machine.daemon.leases().values() if one["container_id"] == own]
    return Response(200) if leases or not running else Response(0, "it runs without a lease")


def started_past_the_end(machine: AttackedMachine) -> Response:
    """A start of a container whose lease is over gets a lease of its own first."""
    own, lease = held(machine)
    machine.daemon.call("Leases/Stop", {"lease_id": lease, "grace_seconds": 0}, uid=ATTACKER)
    machine.daemon.wait_lease(lease, "ended")
    told = machine.ask("POST", f"/containers/{own}/start")
    leases = [one for one in machine.daemon.leases().values() if one["container_id"] == own]
    return told if leases or told.is_refusal else Response(0, "it was started without a lease")


def program_without_the_leases_limits(machine: AttackedMachine) -> Response:
    """What joins a leased container is told what the lease says, not what the caller says."""
    own, _ = held(machine)
    body = b'{"Cmd": ["env"], "AttachStdout": true, "Env": ["NVIDIA_VISIBLE_DEVICES=all"]}'
    made = machine.ask("POST", f"/containers/{own}/exec", body)
    said = machine.ask("POST", f"/exec/{json.loads(made.message)['Id']}/start", b"{}")
    return Response(0, said.message) if "DEVICES=all" in said.message else said


def hidden(machine: AttackedMachine) -> Response:
    """A mount at the place of the lease's own, which says how much of the GPU there is."""
    lease = reserved_by(machine, ATTACKER)
    body = plain_body(Labels={"gpushare.lease": lease}, Volumes={"/run/gpushare/mps": {}})
    return machine.ask("POST", "/containers/create", json.dumps(body).encode())


def through_grpc(name: str, /, **fields: object) -> How:
    """The same call by an unmodified gRPC client, which is another way in."""

    def how(machine: AttackedMachine) -> Response:
        message = json.loads(machine.fill_body(fields))
        (answer,) = ask(machine.daemon.socket, [(name, message)], uid=ATTACKER)
        return Response(403, f"{answer['message']}") if "code" in answer else Response(200, str(answer))

    return how


def who(machine: AttackedMachine, **headers: str) -> Response:
    """What the daemon takes the attacker for."""
    told = machine.ask("POST", "/gpushare.v1.Node/Status", b"{}", headers=headers)
    status = json.loads(told.message)
    seen = (status["caller_uid"], status.get("caller_trusted", False))
    return told if seen == (str(ATTACKER), False) else Response(0, str(seen))


def in_a_user_namespace(machine: AttackedMachine) -> Response:
    """Root of a namespace of one's own is still who one is."""
    request = (
        "POST /gpushare.v1.Node/Status HTTP/1.1\r\nHost: x\r\n"
        "Connection: close\r\nContent-Length: 2\r\n\r\n{}"
    )
    code = (
        "import socket, sys; s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1]);"
        "s.sendall(sys.argv[2].encode()); print(b''.join(iter(lambda: s.recv(9999), b'')).decode())"
    )
    words = (
        "unshare",
        "--user",
        "--map-root-user",
        "python3",
        "-I",
        "-c",
        code,
        str(machine.daemon.socket),
        request,
    )
    status, out, err = machine.attacker.command(*words)
    if status:
        return Response(200, f"this machine gives nobody a namespace: {err.decode()}")
    return Response(200) if f'"{ATTACKER}"'.encode() in out else Response(0, out.decode())


def inner_socket(machine: AttackedMachine) -> Response:
    """Behind it a caller is believed by the name of its socket."""
    code = """
s = socket.socket(socket.AF_UNIX)
try:
    s.bind("\\0gpushared/0/1/0/0/1")
    s.connect(path)
    answer = "connected"
except PermissionError as error:
    answer = str(error)
"""
    inner = machine.daemon.runtime_dir / "inner" / "grpc.sock"
    return Response(403, machine.attacker.python(code, path=str(inner)))


PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0"


def next_names_taken(machine: AttackedMachine) -> Response:
    """The names of the front's sockets stand in /proc/net/unix; who had the next one could cut others off."""
    code = """
import re
shown = open("/proc/net/unix").read()
names = re.findall(r"@(gpushared/[0-9a-f]+)/([0-9]+)/%d/([0-9]+/[0-9]+)" % victim, shown)
answer = len(names)
held = []
for secret, number, rest in names:
    for later in range(int(number) + 1, int(number) + 200):
        s = socket.socket(socket.AF_UNIX)
        held.append(s)
        try:
            s.bind("\\0%s/%d/%d/%s" % (secret, later, victim, rest))
        except OSError:
            pass
"""
    with connected(machine.daemon.socket, VICTIM) as first:
        first.sendall(PREFACE)
        assert first.recv(9)
        machine.attacker.python(code, victim=VICTIM)
        with connected(machine.daemon.socket, VICTIM) as second:
            second.sendall(PREFACE)
            return Response(200) if second.recv(9) else Response(0, "the victim was cut off")


def flood_of_requests(machine: AttackedMachine) -> Response:
    """Many requests of one user's; whoever asks after them still gets what is free."""
    for _ in range(60):
        machine.ask("POST", "/gpushare.v1.Leases/Request", b'{"gpu": "2"}')
    lease = machine.daemon.request("0.1", uid=VICTIM)
    machine.daemon.call("Leases/Release", {"lease_id": lease["id"]}, uid=VICTIM)
    for one in machine.daemon.leases().values():
        if one["owner_uid"] == str(ATTACKER):
            machine.daemon.call("Leases/Release", {"lease_id": one["id"]})
    return Response(200, lease["state"])


VERBS: dict[str, dict[str, object]] = {
    "Release": {},
    "Stop": {},
    "Resize": {"gpu": "0.01"},
    "Extend": {"time": "1h"},
    "SetPriority": {"priority": 1},
    "Pause": {},
    "Resume": {},
    "Hold": {"held": True},
}
ATTACKS = [
    Attack(
        "gpu-by-its-number",
        GPU,
        docker("run", "--rm", "--gpus", "device=0", "{image}"),
        refused="cannot be chosen by name",
    ),
    Attack(
        "gpu-by-its-device",
        GPU,
        creates({"Devices": [{"PathOnHost": "/dev/nvidia0", "PathInContainer": "/dev/nvidia0"}]}),
        refused=NO_LEASE,
        on=BOTH,
    ),
    Attack(
        "gpu-by-a-crooked-path",
        GPU,
        creates({"Devices": [{"PathOnHost": "/dev//../dev/./nvidiactl", "PathInContainer": "/x"}]}),
        refused=NO_LEASE,
    ),
    Attack(
        "gpu-by-the-link-of-its-number",
        GPU,
        creates({"Devices": [{"PathOnHost": "/dev/char/195:0", "PathInContainer": "/x"}]}),
        refused="is not for you",
    ),
    Attack(
        "gpu-by-a-device-in-small-letters",
        GPU,
        creates({"Devices": [{"pathOnHost": "/dev/nvidia0"}]}),
        refused="is not a field",
    ),
    Attack(
        "device-by-a-pattern-and-dots",
        Threat.ROOT,
        creates({"Devices": [{"PathOnHost": "/dev/infiniband/uverbs/../../mem"}]}),
        refused="is not for you",
    ),
    Attack(
        "device-under-another-name",
        GPU,
        creates({"Devices": [{"PathOnHost": "/dev/fuse", "PathInContainer": "/dev/nvidia0"}]}),
        refused="has its own name inside",
    ),
    Attack(
        "gpu-by-a-rule-of-the-cgroup",
        GPU,
        runs("--device-cgroup-rule", "c 195:* rwm"),
        refused="DeviceCgroupRules " + NOT_YOURS,
        on=BOTH,
    ),
    Attack(
        "gpu-by-a-cdi-name",
        GPU,
        creates({"DeviceRequests": [{"Driver": "cdi", "DeviceIDs": ["nvidia.com/gpu=0"]}]}),
        refused="cannot be chosen by name",
        on=BOTH,
    ),
    Attack(
        "gpu-by-a-cdi-name-of-another-vendor",
        GPU,
        creates({"DeviceRequests": [{"Driver": "cdi", "DeviceIDs": ["evil.com/gpu=0"]}]}),
        refused="DeviceRequests " + NOT_YOURS,
        on=BOTH,
    ),
    Attack(
        "gpu-by-the-name-of-anothers-lease",
        LEASES,
        creates({"DeviceRequests": [{"Driver": "cdi", "DeviceIDs": ["gpushare.io/lease={lease}"]}]}),
        refused="cannot be asked for by name",
        on=BOTH,
    ),
    Attack(
        "gpu-by-the-name-of-a-lease-as-a-device",
        LEASES,
        creates({"Devices": [{"PathOnHost": "gpushare.io/lease={lease}"}]}),
        refused="cannot be asked for by name",
        on=BOTH,
    ),
    Attack(
        "gpu-by-a-driver-in-capitals",
        GPU,
        creates({"DeviceRequests": [{"Driver": "CDI", "DeviceIDs": ["nvidia.com/gpu=all"]}]}),
        refused=NOT_YOURS,
        on=BOTH,
    ),
    Attack(
        "gpu-by-capabilities-only",
        GPU,
        creates({"DeviceRequests": [{"Capabilities": [["gpu"]]}]}),
        refused="is no number of GPUs",
    ),
    Attack("gpu-by-the-runtime", GPU, runs("--runtime", "nvidia"), refused="without a lease"),
    Attack(
        "gpu-by-a-mount-for-the-runtime",
        GPU,
        runs("-v", "/dev/null:/var/run/nvidia-container-devices/all"),
        refused="past the lease",
    ),
    Attack(
        "gpu-by-a-baked-label",
        GPU,
        creates(Labels={"gpushare.device": "{lease}"}),
        harmless="the label is the gate's to set",
        on=BOTH,
    ),
    Attack(
        "gpu-by-a-label-nobody-knows",
        GPU,
        creates(Labels={"gpushare.root": "1"}),
        refused="is not a label of gpushare's",
    ),
    Attack("lease-of-another-claimed", LEASES, claim_of_another, refused="there is no lease", on=BOTH),
    Attack(
        "lease-of-another-in-use-claimed",
        LEASES,
        lambda machine: claimed(machine, machine.lease),
        refused="there is no lease",
    ),
    Attack("lease-claimed-twice", LEASES, claimed_twice, refused="lease", on=BOTH),
    Attack("lease-claimed-after-its-end", LEASES, claimed_after_its_end, refused="lease"),
    Attack(
        "lease-outlived-by-restarts", GPU, restarted_past_the_end, harmless="without a lease it does not run"
    ),
    Attack(
        "lease-outlived-by-a-start", GPU, started_past_the_end, harmless="it gets a lease of its own first"
    ),
    Attack(
        "lease-with-other-variables",
        LEASES,
        program_without_the_leases_limits,
        harmless="the lease's variables win",
        on=BOTH,
    ),
    Attack(
        "lease-directory-of-another",
        LEASES,
        runs("-v", "{runtime}/leases/{lease}:/run/gpushare"),
        refused="mounted",
    ),
    Attack("lease-directory-hidden", LEASES, hidden, refused="would hide the lease's"),
    *(
        Attack(
            f"lease-of-another-{verb.lower()}",
            LEASES,
            calls(f"Leases/{verb}", lease_id="{lease}", **more),
            refused=THEIRS,
        )
        for verb, more in VERBS.items()
    ),
    Attack(
        "lease-of-another-stopped-by-grpc",
        LEASES,
        through_grpc("Leases/Stop", lease_id="{lease}"),
        refused=THEIRS,
    ),
    Attack(
        "lease-of-another-resized-by-grpc",
        LEASES,
        through_grpc("Leases/Resize", lease_id="{lease}", gpu="0.01"),
        refused=THEIRS,
    ),
    Attack(
        "lease-made-to-give-way",
        LEASES,
        calls("Leases/Preempt", lease_id="{lease}"),
        refused="trusted",
    ),
    Attack(
        "leases-without-number",
        Threat.AVAILABILITY,
        flood_of_requests,
        harmless="who waits does not keep others from what is free",
    ),
    Attack("gpu-drained", Threat.AVAILABILITY, calls("Gpus/Drain", gpu="all"), refused="trusted"),
    Attack(
        "driver-played", Threat.AVAILABILITY, calls("Simulation/Change", trouble="broken"), refused="trusted"
    ),
    Attack("project-changed", Threat.SHARED, calls("Projects/Set", name="x"), refused="administrators"),
    Attack("node-taken-into-a-pool", IDENTITY, calls("Node/Join", token="x"), refused="trusted"),
    Attack(
        "identity-by-a-header",
        IDENTITY,
        lambda machine: who(machine, X_Forwarded_User="root", gpushare_caller="0"),
        harmless="the kernel says who calls",
    ),
    Attack(
        "identity-by-a-user-namespace", IDENTITY, in_a_user_namespace, harmless="the kernel says who calls"
    ),
    Attack("identity-by-the-inner-socket", IDENTITY, inner_socket, refused="Permission denied"),
    Attack(
        "identity-names-taken-in-advance",
        Threat.AVAILABILITY,
        next_names_taken,
        harmless="the names cannot be foreseen",
    ),
]
