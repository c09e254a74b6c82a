"""List all checks that the daemon makes, in the order in which they are shown, with their dependencies."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from gpushared.doctor import engine_checks as engine
from gpushared.doctor import gpu_checks as gpu
from gpushared.doctor import host_checks as host
from gpushared.doctor.machine_facts import DoctorFacts, Unread
from gpushared.domain.model.checkup import Check, CheckFinding, skipped, warning

T = TypeVar("T")


def _of(
    part: Callable[[DoctorFacts], T | Unread], judge: Callable[[T], CheckFinding], *, told_by: str = ""
) -> Callable[[DoctorFacts], CheckFinding]:
    """Return a check of one part. A part that could not be read is a warning: nothing was found wrong.

    ``told_by`` names the check that tells so, if several checks look at the same part.
    """

    def look(facts: DoctorFacts) -> CheckFinding:
        found = part(facts)
        if isinstance(found, Unread) and told_by:
            return skipped("could not be looked at", because=told_by)
        if isinstance(found, Unread):
            return warning(f"could not be looked at: {found.why}", found.hint)
        return judge(found)

    return look


def _check(name: str, look: Callable[[DoctorFacts], CheckFinding], *after: str) -> Check[DoctorFacts]:
    return Check(name, look, after)


CHECKS: tuple[Check[DoctorFacts], ...] = (
    _check("host", host.host),
    _check("driver", gpu.driver),
    _check("gpu-health", gpu.gpu_health, "driver"),
    _check("drained-gpus", gpu.drained_gpus),
    _check("device-nodes", _of(lambda f: f.host, gpu.device_nodes), "driver", "host"),
    _check("persistence-mode", gpu.persistence_mode, "driver"),
    _check(
        "persistence-daemon",
        _of(lambda f: f.host, gpu.persistence_daemon),
        *("driver", "persistence-mode", "host"),
    ),
    _check("compute-mode", gpu.compute_mode, "driver"),
    _check("mig-mode", gpu.mig_mode, "driver"),
    _check("pid-namespace", _of(lambda f: f.host, gpu.pid_namespace), "driver", "host"),
    _check("cgroup-version", _of(lambda f: f.host, host.cgroup_version), "driver", "host"),
    _check("driver-memory-limits", gpu.driver_memory_limits, "driver", "cgroup-version"),
    _check("mps-program", gpu.mps_program, "driver"),
    _check("mps-version", gpu.mps_version, "driver", "mps-program"),
    _check("mps-users", gpu.mps_users, "driver", "mps-program"),
    _check("mps-architecture", gpu.mps_architecture, "driver", "mps-program"),
    _check("mps-default-pipe", _of(lambda f: f.mps, gpu.mps_default_pipe, told_by="mps-program"), "driver"),
    _check(
        "mps-foreign-daemon",
        _of(lambda f: f.mps, gpu.mps_foreign, told_by="mps-program"),
        "driver",
        "mps-default-pipe",
    ),
    _check("mps-daemons", _of(lambda f: f.daemon, gpu.mps_daemons), "driver", "mps-program", "mps-version"),
    _check("mps-clients", _of(lambda f: f.daemon, gpu.mps_clients), "driver", "mps-program"),
    _check("service-memory", _of(lambda f: f.host, gpu.service_memory), "driver", "host"),
    _check("selinux", _of(lambda f: f.host, host.selinux), "driver", "host"),
    _check("unmanaged-processes", gpu.unmanaged_processes),
    _check("memory-figures", _of(lambda f: f.daemon, gpu.memory_figures), "driver"),
    _check("docker", engine.docker),
    _check("docker-api", engine.docker_api, "docker"),
    _check("docker-cdi", engine.docker_cdi, "docker"),
    _check("docker-exposure", engine.docker_exposure, "docker"),
    _check("docker-authorization", engine.docker_authorization, "docker"),
    _check("docker-default-runtime", engine.default_runtime, "docker"),
    _check("mount-pins", _of(lambda f: f.daemon, engine.mount_pins), "docker"),
    _check("user-limits", _of(lambda f: f.daemon, engine.user_limits), "docker"),
    _check("docker-group-members", _of(lambda f: f.groups, engine.docker_group_members)),
    _check("gpu-mechanism", engine.gpu_mechanism, "driver", "docker"),
    _check("cdi-spec", engine.cdi_spec, "driver", "docker", "gpu-mechanism"),
    _check("toolkit", engine.toolkit, "driver"),
    _check("toolkit-env-switch", engine.toolkit_env_switch, "driver", "toolkit"),
    _check("systemd-reload", engine.daemon_reload, "driver", "docker", "host"),
    _check("service-unit", host.service_unit),
    _check("socket", _of(lambda f: f.socket, host.socket)),
    _check("runtime-directory", _of(lambda f: f.runtime_dir, host.runtime_directory)),
    _check("journal-disk", _of(lambda f: f.state_dir, host.journal_disk)),
    _check("journal", _of(lambda f: f.daemon, host.journal), "journal-disk"),
    _check("pool-certificate", _of(lambda f: f.daemon, host.certificate)),
    _check("pool-link", _of(lambda f: f.daemon, host.link), "pool-certificate"),
    _check("pool-clock", _of(lambda f: f.daemon, host.clock)),
    _check("pool-realm", _of(lambda f: f.daemon, host.realm)),
    _check("daemon-parts", host.daemon_parts),
    _check("config", _of(lambda f: f.config, host.config)),
)
