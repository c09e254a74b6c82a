"""More rights than the caller has: by flags of ``docker run``, by fields, by a program that joins."""

from __future__ import annotations

import json

from tests.redteam.attack import BOTH, Attack, Response, Threat, creates, plain_body, runs
from tests.redteam.attacked_machine import AttackedMachine

ROOT = Threat.ROOT
NOT_YOURS = "may not be set by you"
NOT_ALLOWED = "is not allowed for you"
RUNNING = {**plain_body(), "Cmd": ["sleep", "100"]}


def in_own(machine: AttackedMachine, body: dict[str, object]) -> Response:
    """Create an exec in a running container of the attacker's own, and start it."""
    own = machine.made(RUNNING)
    machine.ask("POST", f"/containers/{own}/start")
    made = machine.ask("POST", f"/containers/{own}/exec", json.dumps(body).encode())
    if made.is_refusal:
        return made
    return machine.ask("POST", f"/exec/{json.loads(made.message)['Id']}/start", b'{"Detach": true}')


def exec_start_again(machine: AttackedMachine) -> Response:
    own = machine.made(RUNNING)
    machine.ask("POST", f"/containers/{own}/start")
    made = machine.ask("POST", f"/containers/{own}/exec", b'{"Cmd": ["id"]}')
    instance = json.loads(made.message)["Id"]
    told = machine.ask(
        "POST", f"/exec/{instance}/start", b'{"Detach": true, "Privileged": true, "User": "0"}'
    )
    process = machine.as_engine("GET", f"/exec/{instance}/json")["ProcessConfig"]
    gained = process.get("privileged") or process.get("user") in {"0", "root"}
    return Response(0, f"it runs with {process}") if gained else told


def updated_past_the_bound(machine: AttackedMachine) -> Response:
    own = machine.made(RUNNING)
    told = machine.ask("POST", f"/containers/{own}/update", b'{"PidsLimit": -1}')
    bound = machine.as_engine("GET", f"/containers/{own}/json")["HostConfig"]["PidsLimit"]
    return told if 0 < bound <= 4096 else Response(0, f"its bound is {bound}")


ATTACKS = [
    Attack("privileged-flag", ROOT, runs("--privileged"), refused="Privileged " + NOT_YOURS, on=BOTH),
    Attack("capability-added", ROOT, runs("--cap-add", "SYS_ADMIN"), refused="is not for you", on=BOTH),
    Attack("all-capabilities-added", ROOT, runs("--cap-add", "ALL"), refused="is not for you"),
    Attack(
        "capabilities-of-an-old-field", ROOT, creates({"Capabilities": ["CAP_SYS_ADMIN"]}), refused=NOT_YOURS
    ),
    Attack("seccomp-off", ROOT, runs("--security-opt", "seccomp=unconfined"), refused=NOT_ALLOWED, on=BOTH),
    Attack("apparmor-off", ROOT, runs("--security-opt", "apparmor=unconfined"), refused=NOT_ALLOWED),
    Attack(
        "system-paths-unmasked",
        ROOT,
        runs("--security-opt", "systempaths=unconfined"),
        refused="MaskedPaths " + NOT_YOURS,
    ),
    Attack(
        "masked-paths-emptied",
        ROOT,
        creates({"MaskedPaths": []}),
        refused="MaskedPaths " + NOT_YOURS,
        on=BOTH,
    ),
    Attack(
        "read-only-paths-emptied", ROOT, creates({"ReadonlyPaths": []}), refused="ReadonlyPaths " + NOT_YOURS
    ),
    Attack(
        "new-privileges-on-again",
        ROOT,
        runs("--security-opt", "no-new-privileges=false"),
        refused=NOT_ALLOWED,
    ),
    Attack("selinux-label-off", ROOT, runs("--security-opt", "label=disable"), refused=NOT_ALLOWED),
    Attack("user-root", ROOT, runs("--user", "0"), refused="would be root", on=BOTH),
    Attack("user-root-by-name", ROOT, runs("--user", "root"), refused="would be root"),
    Attack("user-with-roots-group", ROOT, runs("--user", "{attacker}:0"), refused="is not you"),
    Attack("user-of-somebody-else", Threat.FILES, runs("--user", "{victim}"), refused="is not you"),
    Attack("group-of-root", ROOT, runs("--group-add", "0"), refused="is not a group of yours"),
    Attack(
        "group-of-docker", Threat.SOCKETS, runs("--group-add", "docker"), refused="is not a group of yours"
    ),
    Attack("namespace-of-processes", ROOT, runs("--pid", "host"), refused="PidMode " + NOT_YOURS, on=BOTH),
    Attack("namespace-of-memory", ROOT, runs("--ipc", "host"), refused="--shm-size"),
    Attack("namespace-of-names", ROOT, runs("--uts", "host"), refused="UTSMode " + NOT_YOURS),
    Attack("namespace-of-users", ROOT, runs("--userns", "host"), refused="UsernsMode " + NOT_YOURS),
    Attack("namespace-of-cgroups", ROOT, runs("--cgroupns", "host"), refused="CgroupnsMode"),
    Attack(
        "processes-of-anothers-container",
        Threat.CONTAINERS,
        runs("--pid", "container:{box}"),
        refused=NOT_YOURS,
    ),
    Attack(
        "memory-of-anothers-container",
        Threat.CONTAINERS,
        runs("--ipc", "container:{box}"),
        refused=NOT_ALLOWED,
    ),
    Attack("kernel-setting", ROOT, runs("--sysctl", "kernel.msgmax=1"), refused="kernel parameter"),
    Attack(
        "cgroup-of-another",
        Threat.AVAILABILITY,
        runs("--cgroup-parent", "/"),
        refused="CgroupParent " + NOT_YOURS,
    ),
    Attack("killed-last-by-rank", Threat.AVAILABILITY, runs("--oom-score-adj", "-999"), refused="below 0"),
    Attack(
        "killed-never", Threat.AVAILABILITY, runs("--oom-kill-disable"), refused="OomKillDisable " + NOT_YOURS
    ),
    Attack(
        "annotation-for-the-runtime",
        ROOT,
        creates({"Annotations": {"run.oci.x": "1"}}),
        refused=NOT_YOURS,
        on=BOTH,
    ),
    Attack("runtime-of-ones-choice", ROOT, runs("--runtime", "io.containerd.evil"), refused="Runtime"),
    Attack("no-bound-on-processes", Threat.AVAILABILITY, updated_past_the_bound, harmless="the bound stays"),
    Attack(
        "real-time-priority",
        Threat.AVAILABILITY,
        runs("--ulimit", "rtprio=99"),
        refused="rtprio",
    ),
    Attack(
        "exec-with-privileges",
        ROOT,
        lambda machine: in_own(machine, {"Cmd": ["id"], "Privileged": True}),
        refused="Privileged " + NOT_YOURS,
        on=BOTH,
    ),
    Attack(
        "exec-as-root",
        ROOT,
        lambda machine: in_own(machine, {"Cmd": ["id"], "User": "0"}),
        refused="is not you",
    ),
    Attack(
        "exec-privileges-in-small-letters",
        ROOT,
        lambda machine: in_own(machine, {"Cmd": ["id"], "privileged": True}),
        refused="is not a field",
    ),
    Attack(
        "exec-privileges-at-its-start",
        ROOT,
        exec_start_again,
        harmless="the program has the rights that it was made with",
        on=BOTH,
    ),
    Attack(
        "exec-in-a-directory-of-the-runtime",
        Threat.FILES,
        lambda machine: in_own(
            machine, {"Cmd": ["cat", "../../../../../../{roots}/file"], "WorkingDir": "/proc/self/fd/8"}
        ),
        refused="chdir to cwd",
    ),
]
