"""Check the driver, its GPUs and MPS. Pure.

Sources: NVIDIA's NVML reference (persistence, compute and MIG modes), its MPS documentation (the limits on
clients by architecture and version), and the NVIDIA persistence daemon's page.
"""

from __future__ import annotations

from collections.abc import Iterable

from gpushared.doctor.machine_facts import (
    DaemonView,
    DoctorFacts,
    HostFacts,
    MpsReport,
    UnmanagedProcess,
    Unread,
    driver_of,
    numbers,
)
from gpushared.domain.leases.memory_watchdog import UNSEEN
from gpushared.domain.model.checkup import CheckFinding, failed, ok, skipped, warning
from gpushared.domain.model.units import format_memory
from gpushared.ports import GpuSettings
from gpushared.sharing.compute_mode import EXCLUSIVE_PROCESS, PROHIBITED

DEFAULT_PIPE = "/tmp/nvidia-mps"  # noqa: S108 - where MPS itself puts it
VOLTA = (7, 0)
MEMORY_LIMITS_DRIVER = 615
"""This is the first release with ``nvmlDeviceSetMemoryLimits_v1``: a wall around a whole container."""
PINNED_LIMITS_DRIVER = 495
"""This is the first release (CUDA 11.5) whose MPS limits a client's memory."""
MOST_CLIENTS = 48
"""One GPU has so many CUDA contexts for MPS clients, from Volta on."""
NEARLY_ALL = 0.9
SERVER_HOST_BYTES = 512 * 1024 * 1024
"""The daemon with its MPS servers (about 50 MiB a GPU) should have no less."""
SHOWN = 3


def driver(facts: DoctorFacts) -> CheckFinding:
    if facts.simulated:
        return skipped("the GPUs are simulated, so that no driver is looked at")
    if isinstance(facts.driver, Unread):
        return failed(facts.driver.why, facts.driver.hint)
    if not facts.driver.gpus:
        return failed("the driver lists no GPU", "see `nvidia-smi -L` and `dmesg` (NVRM)")
    count = len(facts.driver.gpus)
    return ok(f"driver {facts.driver.version}, {count} GPU{'s' if count > 1 else ''}")


def gpu_health(facts: DoctorFacts) -> CheckFinding:
    troubles = {gpu.index: gpu.trouble for gpu in facts.daemon.gpus if gpu.trouble}
    troubles |= {gpu.index: gpu.trouble for gpu in driver_of(facts).gpus if gpu.trouble}
    empty = {gpu.index for gpu in driver_of(facts).gpus if gpu.mig and not gpu.mig_instances}
    troubles = {index: text for index, text in troubles.items() if index not in empty}  # see mig-mode
    if troubles:
        return failed(
            "; ".join(f"GPU {index}: {text}" for index, text in sorted(troubles.items())),
            "see `dmesg` for the Xid; leases there end, the other GPUs serve on",
        )
    return ok("every GPU answers")


def drained_gpus(facts: DoctorFacts) -> CheckFinding:
    drained = {gpu.index: gpu for gpu in facts.daemon.gpus if gpu.drained}
    reasons = "; ".join(f"GPU {index} {gpu.drained}" for index, gpu in sorted(drained.items()))
    sick = [index for index, gpu in sorted(drained.items()) if gpu.sick]
    if sick:
        index = sick[0]
        return failed(
            reasons, f"reset it (`nvidia-smi -r -i {index}`) or reboot, then `gpushare undrain {index}`"
        )
    if drained:
        return warning(reasons, f"`gpushare undrain {min(drained)}` when it may be leased again")
    return ok("no GPU is drained")


def device_nodes(host: HostFacts) -> CheckFinding:
    if host.missing_device_nodes:
        return warning(
            f"{', '.join(host.missing_device_nodes)} is missing, without which CUDA does not start",
            "`nvidia-modprobe -u -c=0` as root, and at each boot",
        )
    return ok("the driver's device nodes are there")


def persistence_mode(facts: DoctorFacts) -> CheckFinding:
    off = [gpu for gpu in driver_of(facts).gpus if gpu.persistence is False]
    if off:
        return warning(
            f"persistence mode is off on {_names(off)}: an idle GPU takes seconds to answer",
            "`systemctl enable --now nvidia-persistenced`",
            final=True,
        )
    return ok("the driver keeps idle GPUs awake")


def persistence_daemon(host: HostFacts) -> CheckFinding:
    if not host.persistence_daemon:
        return warning(
            "persistence mode is on, but nvidia-persistenced does not run, so that it is off after a boot",
            "`systemctl enable --now nvidia-persistenced`",
        )
    return ok("nvidia-persistenced runs")


def compute_mode(facts: DoctorFacts) -> CheckFinding:
    gpus = driver_of(facts).gpus
    if closed := [gpu for gpu in gpus if gpu.compute_mode == PROHIBITED]:
        return failed(
            f"compute mode PROHIBITED on {_names(closed)}: no program can use it",
            f"`nvidia-smi -c DEFAULT -i {closed[0].index}`",
        )
    alone = [gpu for gpu in gpus if gpu.compute_mode == EXCLUSIVE_PROCESS]
    lease_counts = {gpu.index: gpu.mode_set_for for gpu in facts.daemon.gpus if gpu.mode_set_for is not None}
    if leftover := [gpu for gpu in alone if lease_counts.get(gpu.index) == 0]:
        return failed(
            f"compute mode EXCLUSIVE_PROCESS was left on {_names(leftover)} by leases that are over: programs "
            "without MPS fail there",
            f"restart gpushared, or `nvidia-smi -c DEFAULT -i {leftover[0].index}`",
        )
    if foreign := [gpu for gpu in alone if gpu.index not in lease_counts]:
        return warning(
            f"compute mode EXCLUSIVE_PROCESS on {_names(foreign)}, which gpushared did not set: one process "
            "only, or one MPS server and its clients; programs outside MPS fail",
            f"if nothing of yours wants that: `nvidia-smi -c DEFAULT -i {foreign[0].index}`",
        )
    if alone:
        return ok(f"compute mode EXCLUSIVE_PROCESS on {_names(alone)} while it is shared, as configured")
    return ok("compute mode DEFAULT")


def mig_mode(facts: DoctorFacts) -> CheckFinding:
    split = [gpu for gpu in driver_of(facts).gpus if gpu.mig]
    if empty := [gpu for gpu in split if not gpu.mig_instances and not gpu.trouble]:
        index = empty[0].index
        return warning(
            f"MIG is on for {_names(empty)} without instances, so that nothing there can be leased",
            f"`nvidia-smi mig -i {index} -cgi PROFILE -C` makes one; `nvidia-smi -i {index} -mig 0` ends MIG",
        )
    if split:
        count = sum(len(gpu.mig_instances) for gpu in split)
        into = "1 instance" if count == 1 else f"{count} instances"
        return ok(f"{_names(split)} split by MIG into {into}, which `--isolation mig` asks for")
    return ok("no GPU is split by MIG")


def driver_memory_limits(facts: DoctorFacts) -> CheckFinding:
    version = numbers(driver_of(facts).version)
    if version[:1] < (MEMORY_LIMITS_DRIVER,):
        return warning(
            f"driver {driver_of(facts).version} cannot limit a container's memory as a whole "
            f"(r{MEMORY_LIMITS_DRIVER} can): MPS limits each cooperating process",
            f"a driver of release {MEMORY_LIMITS_DRIVER} or later, where memory must be a hard wall",
        )
    if facts.daemon.wall_trouble:
        return warning(
            f"driver {driver_of(facts).version} can limit a container's memory as a whole, but does not here: "
            f"{facts.daemon.wall_trouble}",
            "leases stand behind MPS meanwhile; the daemon tries again within a minute of a lease that asks",
        )
    return ok(f"driver {driver_of(facts).version} limits each container's memory as a whole")


def pid_namespace(host: HostFacts) -> CheckFinding:
    if not host.init_pid_namespace:
        return failed(
            "the daemon runs in a PID namespace of its own: the driver names processes by PIDs of the host, "
            "so that memory is counted for the wrong ones or for nobody",
            "run gpushared on the host, or its container with `--pid=host`",
        )
    return ok("the daemon sees the host's processes")


# --- MPS -----------------------------------------------------------------------------------------------


def mps_program(facts: DoctorFacts) -> CheckFinding:
    if isinstance(facts.mps, Unread):
        return warning(f"the MPS program could not be looked at: {facts.mps.why}", facts.mps.hint, final=True)
    if not facts.mps.enabled:
        return warning(
            "MPS is switched off in the configuration: shared leases have no limits",
            'set `mps = "auto"` in [sharing] and restart gpushared',
            final=True,
        )
    program = facts.mps.program
    if program is None:
        return warning(
            "nvidia-cuda-mps-control is not installed: shared leases have no limits",
            "install it: it is in the driver's compute utilities (nvidia-compute-utils, nvidia-cuda-mps)",
            final=True,
        )
    return ok(f"{program.path}{f', version {program.version}' if program.version else ''}")


def mps_version(facts: DoctorFacts) -> CheckFinding:
    program, running = _mps(facts).program, driver_of(facts).version
    mps = numbers(program.version)[:1] if program else ()
    if mps and mps != numbers(running)[:1]:
        return failed(
            f"MPS is of release {mps[0]} and the driver is {running}: they do not work together",
            "install MPS of the driver's own version",
        )
    if numbers(running)[:1] < (PINNED_LIMITS_DRIVER,):
        return warning(
            f"MPS of driver {running} does not limit a client's memory (r{PINNED_LIMITS_DRIVER} does)",
            "update the driver",
        )
    return ok("MPS and driver are of one release")


def mps_users(facts: DoctorFacts) -> CheckFinding:
    program = _mps(facts).program
    closed = [gpu for gpu in facts.daemon.gpus if gpu.exclusive_process]
    if program is not None and not program.serves_many_users and closed:
        return failed(
            "this MPS needs a server for each user, and `exclusive_process` lets a GPU have one only: shared "
            f"leases are refused on {', '.join(f'GPU {gpu.index}' for gpu in closed)}",
            "update the driver (release 580 can serve several users), or empty `[gpus] exclusive_process`",
        )
    if program is not None and not program.serves_many_users:
        return warning(
            "this MPS serves one user at a time: each user gets a server of their own, and the GPU's time is "
            "divided between them",
            "update the driver: release 580 can serve several users at once",
        )
    return ok("one MPS server can serve several users")


def mps_architecture(facts: DoctorFacts) -> CheckFinding:
    old = [gpu for gpu in driver_of(facts).gpus if gpu.compute_capability and gpu.compute_capability < VOLTA]
    if old:
        return warning(
            f"{_names(old)} is older than Volta: MPS limits neither compute nor memory there",
            "ask for whole GPUs there (`--gpu 1`)",
        )
    return ok("every GPU's MPS keeps limits")


def mps_default_pipe(mps: MpsReport) -> CheckFinding:
    if mps.default_pipe_answers:
        return failed(
            f"an MPS daemon that is not gpushared's serves in {DEFAULT_PIPE}: NVIDIA's toolkit mounts that "
            "directory into every GPU container, where root can change its limits and end it",
            "`echo quit | nvidia-cuda-mps-control`, and disable what starts it (nvidia-mps.service)",
        )
    if mps.default_pipe:
        return warning(
            f"{DEFAULT_PIPE} is left over from an MPS daemon: NVIDIA's toolkit mounts it into GPU containers",
            f"`rm -r {DEFAULT_PIPE}`",
        )
    return ok(f"no MPS in its default place, {DEFAULT_PIPE}")


def mps_foreign(mps: MpsReport) -> CheckFinding:
    if mps.foreign_pids:
        pids = ", ".join(map(str, mps.foreign_pids))
        return warning(
            f"an MPS control daemon that is not gpushared's runs (PID {pids}): clients of it have no lease",
            "end it with `quit` in its own pipe directory, and disable what starts it",
        )
    return ok("no foreign MPS daemon runs")


def mps_daemons(view: DaemonView) -> CheckFinding:
    if sick := [gpu for gpu in view.gpus if gpu.sharing_trouble]:
        troubles = dict.fromkeys(gpu.sharing_trouble for gpu in sick)
        return failed("; ".join(troubles), "see `journalctl -u gpushared`; whole GPUs can still be leased")
    return ok("the MPS daemons of leases answer")


def mps_clients(view: DaemonView) -> CheckFinding:
    if full := [gpu for gpu in view.gpus if gpu.processes >= MOST_CLIENTS * NEARLY_ALL]:
        named = ", ".join(f"GPU {gpu.index}: {gpu.processes}" for gpu in full)
        return warning(
            f"nearly all of the {MOST_CLIENTS} places for MPS clients are taken ({named}): "
            "more processes fail to start",
            "use fewer processes in a container, or spread them over more GPUs",
        )
    return ok(f"far from the {MOST_CLIENTS} processes that one GPU can serve through MPS")


def service_memory(host: HostFacts) -> CheckFinding:
    limit = host.memory_limit_bytes
    if limit is not None and limit < SERVER_HOST_BYTES:
        return warning(
            f"the service may use {format_memory(limit)} of memory, MPS servers included: one that gets "
            "no more fails with a misleading GPU out-of-memory error",
            "`systemctl edit gpushared`: MemoryMax=infinity",
        )
    return ok("the service has memory enough for MPS servers")


def unmanaged_processes(facts: DoctorFacts) -> CheckFinding:
    if isinstance(facts.driver, Unread) and not facts.simulated:
        return skipped("nobody tells who is on the GPUs", because="driver")
    view = facts.daemon
    if not view.unmanaged:
        return ok("every process on a GPU belongs to a lease")
    named = [_process_text(process) for process in view.unmanaged[:SHOWN]]
    more = len(view.unmanaged) - SHOWN
    return warning(
        "GPU processes without a lease: " + ", ".join(named) + (f" and {more} more" if more > 0 else ""),
        "stop them, or start them with `gpushare run`; what they hold is not leased to others",
    )


def memory_figures(view: DaemonView) -> CheckFinding:
    if unseen := [text for part, text in sorted(view.troubles.items()) if part.startswith(UNSEEN)]:
        return warning(
            "; ".join(unseen),
            "drivers tell this on the host itself, but not in WSL or in some virtual machines: "
            "lease whole GPUs there (`--gpu 1`)",
        )
    return ok("the driver tells what each process of a lease holds")


def _process_text(process: UnmanagedProcess) -> str:
    user = f" of {process.user}" if process.user else ""
    memory = f", {format_memory(process.memory_bytes)}" if process.memory_bytes else ""
    return f"{process.command or 'a process'}{user} on GPU {process.gpu_index} (PID {process.pid}{memory})"


# --- helpers -------------------------------------------------------------------------------------------


def _mps(facts: DoctorFacts) -> MpsReport:
    assert not isinstance(facts.mps, Unread), "made after `mps-program` only"
    return facts.mps


def _names(gpus: Iterable[GpuSettings]) -> str:
    return ", ".join(f"GPU {gpu.index}" for gpu in gpus)
