"""GPUs by other spellings: what the engine, or NVIDIA's runtime behind it, would take for a GPU."""

from __future__ import annotations

from tests.redteam.attack import BOTH, Attack, Response, Threat, creates, plain_body, runs
from tests.redteam.attacked_machine import AttackedMachine

GPU = Threat.GPU
NOT_FOR_YOU = "is not for you"
NO_LEASE = "without a lease"
PAST = "past the lease"


def labelled_as_trusted(machine: AttackedMachine) -> Response:
    """A container that would not be looked at when it has started, or be another gate's."""
    body = {**plain_body(Cmd=["sleep", "100"]), "Labels": {"gpushare.gate": "00000000/trusted"}}
    own = machine.made(body)
    machine.ask("POST", f"/containers/{own}/start")
    found = machine.as_engine("GET", f"/containers/{own}/json")["Config"]["Labels"]["gpushare.gate"]
    return (
        Response(200) if found.endswith("/confined") and not found.startswith("0000") else Response(0, found)
    )


ATTACKS = [
    Attack("gpu-by-the-display", GPU, runs("--device", "/dev/dri/renderD128"), refused=NOT_FOR_YOU),
    Attack("gpu-by-all-devices", GPU, runs("--device", "/dev:/dev"), refused=NOT_FOR_YOU, on=BOTH),
    Attack(
        "gpu-by-a-process-of-roots",
        GPU,
        runs("--device", "/proc/self/root/dev/nvidia0:/dev/x"),
        refused=NOT_FOR_YOU,
    ),
    Attack(
        "gpu-by-dots",
        GPU,
        creates({"Devices": [{"PathOnHost": "/dev/shm/../nvidia0", "PathInContainer": "/dev/x"}]}),
        refused=NO_LEASE,
    ),
    Attack(
        "gpu-by-another-capability",
        GPU,
        creates({"DeviceRequests": [{"Driver": "amd", "Count": -1, "Capabilities": [["gpu"]]}]}),
        refused="DeviceRequests may not be set by you",
    ),
    Attack(
        "gpu-by-a-runtime-of-another-mode",
        GPU,
        creates({"Runtime": "nvidia-legacy"}),
        refused=NO_LEASE,
        on=BOTH,
    ),
    Attack(
        "gpu-by-an-annotation",
        GPU,
        creates({"Annotations": {"cdi.k8s.io/x": "nvidia.com/gpu=all"}}),
        refused=PAST,
    ),
    Attack(
        "label-of-another-gate",
        GPU,
        labelled_as_trusted,
        harmless="the gate says itself how it made a container",
    ),
]
