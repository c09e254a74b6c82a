"""Check the Docker engine and NVIDIA's container toolkit. Pure.

Sources: the security advisories of Moby (GHSA-v23v-6jw2-98fq, GHSA-x744-4wpc-v9h2) and of NVIDIA's container
toolkit (CVE-2024-0132, CVE-2025-23266), Docker's reference of ``dockerd``, and NVIDIA's notice on containers
that lose their GPUs when systemd reloads its units.
"""

from __future__ import annotations

from gpushared.doctor.machine_facts import (
    DaemonView,
    DoctorFacts,
    EngineReport,
    Groups,
    HostFacts,
    Toolkit,
    Unread,
    Version,
    driver_of,
    is_rebuilt,
    numbers,
)
from gpushared.domain.model.checkup import CheckFinding, failed, ok, warning
from gpushared.ports import DeviceMechanism, GpuSettings

OLDEST_API: Version = (1, 41)
"""This is Docker 20.10."""
CDI_BY_DEFAULT: Version = (28, 2)
CDI_ON_REQUEST: Version = (25,)
AUTHZ_FIXES: tuple[Version, ...] = ((23, 0, 15), (25, 0, 6), (26, 1, 5), (27, 1, 1))
"""CVE-2024-41110 was mended in these releases of each line; releases in between were never mended."""
AUTHZ_NEWEST_FIX: Version = (29, 3, 1)
"""CVE-2026-34040 is the hole that the earlier mending had left."""
TOOLKIT_FLOOR: Version = (1, 17, 8)
"""With CVE-2025-23266 an image gets root on the host by a hook."""
TOOLKIT_OLD_FLOOR: Version = (1, 16, 2)
"""With CVE-2024-0132 an image gets the host's file system."""
NVIDIA_RUNTIME = "nvidia"
OTHERS_WRITE = 0o002
REMOTE_WITHOUT_TLS = "without encryption"


def docker(facts: DoctorFacts) -> CheckFinding:
    if isinstance(facts.engine, Unread):
        return failed(facts.engine.why, facts.engine.hint)
    return ok(f"Docker {facts.engine.version}, API {facts.engine.api_version}")


def docker_api(facts: DoctorFacts) -> CheckFinding:
    engine = _engine(facts)
    if numbers(engine.api_version) < OLDEST_API:
        return failed(
            f"Docker speaks API {engine.api_version}, and gpushared needs {_dotted(OLDEST_API)}",
            "update Docker to 20.10 or later, better 28.2",
        )
    return ok(f"API {engine.api_version} is new enough")


def docker_cdi(facts: DoctorFacts) -> CheckFinding:
    engine = _engine(facts)
    if engine.cdi_dirs:
        return ok(f"CDI is on ({', '.join(engine.cdi_dirs)})")
    if numbers(engine.version) < CDI_ON_REQUEST:
        fix = f"update Docker to {_dotted(CDI_BY_DEFAULT)} or later, where it is on"
    else:
        fix = 'add {"features": {"cdi": true}} to /etc/docker/daemon.json and restart Docker'
    return warning(
        "CDI is off: a container keeps its first lease's settings, and waits when it is created, not started",
        fix,
    )


def docker_exposure(facts: DoctorFacts) -> CheckFinding:
    engine = _engine(facts)
    if engine.socket_mode & OTHERS_WRITE:
        return failed(
            "everybody may write to Docker's socket, which makes everybody root",
            "`systemctl edit docker.socket`: SocketMode=0660, then restart it",
        )
    if open_ports := [text for text in engine.warnings if REMOTE_WITHOUT_TLS in text]:
        return failed(
            f"Docker is open to the network without authentication ({_without_label(open_ports[0])})",
            "remove the tcp:// host from dockerd's flags and /etc/docker/daemon.json, or set `tlsverify`",
        )
    return ok("Docker is reached through its socket only")


def docker_authorization(facts: DoctorFacts) -> CheckFinding:
    """Check for CVE-2024-41110 and CVE-2026-34040, which concern only engines with authorization plugins."""
    engine = _engine(facts)
    if not engine.authorization_plugins:
        return ok("no authorization plugin, so that CVE-2024-41110 and CVE-2026-34040 do not matter")
    plugins, version = ", ".join(engine.authorization_plugins), numbers(engine.version)
    fix = f"update Docker to {_dotted(AUTHZ_NEWEST_FIX)} or later"
    if _lacks_authorization_fix(version):
        detail = f"Docker {engine.version} lets callers around its plugin {plugins} (CVE-2024-41110)"
        if is_rebuilt(engine.version):
            return warning(f"{detail}, unless its distribution mended it", fix)
        return failed(detail, fix)
    if version < AUTHZ_NEWEST_FIX:
        return warning(
            f"Docker {engine.version} lets large requests around its plugin {plugins} (CVE-2026-34040)",
            fix,
        )
    return ok(f"Docker {engine.version} keeps to its plugin {plugins}")


def mount_pins(daemon: DaemonView) -> CheckFinding:
    if daemon.pins_trouble:
        return warning(
            daemon.pins_trouble,
            "Linux 5.12 or later; the daemon as root beside the engine, not in a container",
        )
    return ok("nothing is in the way of users' bind mounts")


def user_limits(daemon: DaemonView) -> CheckFinding:
    if daemon.users_trouble:
        return warning(
            daemon.users_trouble,
            "the daemon as root beside the engine, not in a container; controllers memory, cpu and pids",
        )
    return ok("the kernel bounds what the containers of each user have together")


def default_runtime(facts: DoctorFacts) -> CheckFinding:
    engine, toolkit = _engine(facts), facts.toolkit
    if engine.default_runtime != NVIDIA_RUNTIME:
        return ok(f"the default runtime is {engine.default_runtime}")
    detail = "Docker's default runtime is nvidia: any container gets GPUs by a variable, without a lease"
    if isinstance(toolkit, Toolkit) and not toolkit.env_switch:
        detail = "Docker's default runtime is nvidia: privileged containers get GPUs without a lease"
    return warning(detail, 'remove "default-runtime" from /etc/docker/daemon.json and restart Docker')


def docker_group_members(groups: Groups) -> CheckFinding:
    members_by_group = {group: names for group, names in groups.members.items() if names}
    if not members_by_group:
        return ok("nobody is trusted through a group")
    members = "; ".join(f"{group}: {', '.join(names)}" for group, names in sorted(members_by_group.items()))
    return warning(
        f"members of trusted groups are root in effect, and not held to leases ({members})",
        "take out who needs no root: `gpasswd -d USER GROUP`; `gpushare run` needs no group",
    )


# --- how GPUs come into containers ---------------------------------------------------------------------


def gpu_mechanism(facts: DoctorFacts) -> CheckFinding:
    mechanism = _engine(facts).gpu_mechanism
    if mechanism is DeviceMechanism.PLAIN:
        return failed(
            "the engine has no way to give a GPU to a container",
            "install nvidia-container-toolkit, then `nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml`",
        )
    if mechanism is DeviceMechanism.NVIDIA_RUNTIME:
        return warning(
            f"GPUs are given by {mechanism}, which NVIDIA replaces by CDI",
            "`nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml`, with CDI on in Docker",
        )
    return ok(f"GPUs are given by {mechanism}")


def cdi_spec(facts: DoctorFacts) -> CheckFinding:
    """Check that the CDI spec fits: it names the driver's files and the GPUs of the day it was made."""
    specs, driver = _engine(facts).nvidia_specs, driver_of(facts)
    if not specs.files:
        return ok("no CDI spec of NVIDIA's is in use")
    fix = f"`nvidia-ctk cdi generate --output={specs.files[-1]}`; since 1.18 nvidia-cdi-refresh.path does it"
    if specs.driver_versions and driver.version not in specs.driver_versions:
        return failed(
            f"the CDI spec is for driver {', '.join(sorted(specs.driver_versions))} and the driver is "
            f"{driver.version}: containers do not start or find no GPU",
            fix,
        )
    here = [uuid for gpu in driver.gpus if not gpu.trouble for uuid in _to_be_named(gpu)]
    missing = sorted(uuid for uuid in here if uuid not in specs.uuids)
    if specs.uuids and missing:
        return failed(f"the CDI spec does not know {', '.join(missing)}: it was made for other GPUs", fix)
    return ok(f"{', '.join(specs.files)} fits the driver and its GPUs")


def _to_be_named(gpu: GpuSettings) -> tuple[str, ...]:
    """Return the names for a spec: the instances of a GPU that is split by MIG, else the GPU."""
    return gpu.mig_instances if gpu.mig else (gpu.gpu,)


def toolkit(facts: DoctorFacts) -> CheckFinding:
    if isinstance(facts.toolkit, Unread):
        return warning(
            f"NVIDIA's toolkit could not be asked: {facts.toolkit.why}", facts.toolkit.hint, final=True
        )
    if facts.toolkit is None:
        return warning(
            "the NVIDIA Container Toolkit is not installed, or not on the daemon's PATH",
            "install nvidia-container-toolkit, 1.17.8 or later",
            final=True,
        )
    version = numbers(facts.toolkit.version)
    if not version:
        return warning("the NVIDIA Container Toolkit does not tell its version", "see `nvidia-ctk --version`")
    fix = f"update nvidia-container-toolkit to {_dotted(TOOLKIT_FLOOR)} or later"
    if version < TOOLKIT_OLD_FLOOR:
        return failed(
            f"toolkit {facts.toolkit.version} lets an image read and write the host's files "
            "(CVE-2024-0132, CVE-2025-23266)",
            fix,
        )
    if version < TOOLKIT_FLOOR:
        return failed(f"toolkit {facts.toolkit.version} lets an image become root (CVE-2025-23266)", fix)
    return ok(f"NVIDIA Container Toolkit {facts.toolkit.version}")


def toolkit_env_switch(facts: DoctorFacts) -> CheckFinding:
    toolkit = facts.toolkit
    assert isinstance(toolkit, Toolkit), "made after `toolkit` only"
    if toolkit.env_switch:
        return warning(
            "with the nvidia runtime, an image or `-e NVIDIA_VISIBLE_DEVICES=all` gets every GPU in "
            "containers that do not come through gpushared",
            "`nvidia-ctk config --in-place --set "
            "accept-nvidia-visible-devices-envvar-when-unprivileged=false`",
        )
    return ok("containers without privileges get no GPU by a variable")


def daemon_reload(facts: DoctorFacts) -> CheckFinding:
    """Check for links in ``/dev/char``, by which systemd knows allowed devices.

    NVIDIA's driver does not make these links.
    """
    assert isinstance(facts.host, HostFacts), "made after `host` only"
    missing = facts.host.missing_char_links
    if _engine(facts).cgroup_driver == "systemd" and missing:
        return warning(
            "`systemctl daemon-reload` takes the GPUs away from running containers: systemd cannot name "
            f"{missing[0]} ({len(missing)} links in /dev/char are missing)",
            "`nvidia-ctk system create-dev-char-symlinks --create-all`, and at each boot by a udev rule",
        )
    return ok("a reload of systemd leaves containers their GPUs")


def _lacks_authorization_fix(version: Version) -> bool:
    """Return True if the version's line, and every earlier line that it contains, lacks the fix."""
    if version >= AUTHZ_FIXES[-1]:
        return False
    return not any(fix[:2] == version[:2] and version >= fix for fix in AUTHZ_FIXES)


def _engine(facts: DoctorFacts) -> EngineReport:
    assert not isinstance(facts.engine, Unread), "made after `docker` only"
    return facts.engine


def _without_label(text: str) -> str:
    return text.removeprefix("WARNING: ")


def _dotted(version: Version) -> str:
    return ".".join(map(str, version))
