"""G0: what machine this is."""

from __future__ import annotations

from bench.gpu.case import BASIC, Case, Seen, Step
from bench.gpu.child import run
from bench.gpu.lab import Lab
from bench.gpu.machine import Need
from bench.gpu.mps import take


async def machine(lab: Lab) -> Seen:
    return Seen({**lab.machine.facts, "modules": sorted(lab.machine.modules)})


async def gpu(lab: Lab) -> Seen:
    return Seen(dict(lab.machine.gpu or {}))


async def mps_version(lab: Lab) -> Seen:
    binary = lab.machine.mps_control
    assert binary is not None
    done = await run([binary, "-v"], seconds=5, env=lab.environ())
    server = binary.with_name("nvidia-cuda-mps-server")
    said = (done.stdout + done.stderr).strip()
    return Seen({"path": str(binary), "says": said, "server_beside_it": server.exists()}, done.rc)


async def plain(lab: Lab) -> Seen:
    return Seen.of(await lab.probe("info", *take(), "free", "alive"))


async def nvml(lab: Lab) -> Seen:
    return Seen.of(await lab.script("look.py", "lists"))


async def adapter(lab: Lab) -> Seen:
    return Seen.of(await lab.script("look.py", "adapter"))


STEP = Step(
    "G0",
    "What machine this is",
    (
        Case("machine", "the kernel, the user, cgroups and device nodes", machine, needs=()),
        Case("gpu", "nvidia-smi's row for the GPU", gpu, needs=(Need.GPU,)),
        Case("mps-version", "which MPS programs there are", mps_version, needs=(Need.MPS,)),
        Case("plain", "a process without MPS: multiprocessors, memory, a kernel", plain, needs=BASIC),
        Case("nvml", "NVML's view of the idle GPU", nvml, needs=(Need.GPU, Need.NVML)),
        Case("adapter", "gpushared's own view of it", adapter, needs=(Need.GPU, Need.NVML)),
    ),
)
