"""Each check on machines that are well but for one thing: one line says it, with a fix."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gpushared.doctor.checks import CHECKS
from gpushared.doctor.machine_facts import (
    DaemonView,
    DoctorFacts,
    EngineReport,
    KnownGpu,
    MpsProgram,
    NvidiaSpecs,
    PoolView,
    Toolkit,
    UnmanagedProcess,
    Unread,
)
from gpushared.domain.model.checkup import CheckOutcome, Status, examine
from gpushared.domain.model.gpu import MIB, GpuId
from gpushared.ports import DeviceMechanism
from tests.doctor.healthy import HEALTHY, UUID, also, but, with_gpu, with_part

W, F = Status.WARNING, Status.FAILED
GONE = Unread("it is gone", "bring it back")
DAY = 24 * 3600.0
OLD_DRIVER = "580.95.05"
OTHER = "GPU-ffffffff-ffff-ffff-ffff-ffffffffffff"
SPECS = NvidiaSpecs(("/etc/cdi/nvidia.yaml",), frozenset({OLD_DRIVER}), frozenset({UUID}))


def engine(**changes: object) -> DoctorFacts:
    return but("engine", **changes)


def mps(**changes: object) -> DoctorFacts:
    return but("mps", **changes)


def host(**changes: object) -> DoctorFacts:
    return but("host", **changes)


def view(**changes: object) -> DoctorFacts:
    return but("daemon", **changes)


def state(**changes: object) -> DoctorFacts:
    return but("state_dir", **changes)


def authz(version: str) -> DoctorFacts:
    return engine(version=version, authorization_plugins=("opa",))


def program(version: str = "615.71.09", *, serves_many_users: bool = True) -> DoctorFacts:
    return mps(program=MpsProgram("/usr/bin/nvidia-cuda-mps-control", version, serves_many_users))


SICK, FAN = "fell off the bus (XID 79)", "is drained by root: new fan"


def exclusive(*, mode_set_for: int | None) -> DoctorFacts:
    """A GPU in that mode, and for how many leases the daemon set it."""
    gpus = (KnownGpu(0, "H", exclusive_process=True, mode_set_for=mode_set_for),)
    return replace(with_gpu(compute_mode=3), daemon=DaemonView(gpus=gpus))


def closed_to_all_but_one_user() -> DoctorFacts:
    gpus = (KnownGpu(0, "H", exclusive_process=True),)
    return replace(program(serves_many_users=False), daemon=DaemonView(gpus=gpus))


def pool(**changes: Any) -> DoctorFacts:
    """A node in a pool, whose certificate is good for 30 days and is in its fifth."""
    good = PoolView("lab", "a", "head:7441", now=5 * DAY, issued_at=0.0, expires_at=30 * DAY, realm="a")
    return view(pool=replace(good, **changes))


# (check, machine, status, what the sentence says, what the fix says)
CASES: list[tuple[str, DoctorFacts, Status, str, str]] = [
    ("host", with_part("host", GONE), W, "it is gone", "bring it back"),
    ("pool-certificate", pool(now=31 * DAY), F, "ended 1d ago", "gpushare pool token --node a"),
    ("pool-certificate", pool(now=28 * DAY), W, "good for 2d only", "renews it"),
    ("pool-certificate", view(troubles={"membership": "it is damaged"}), F, "is damaged", "journalctl"),
    ("pool-link", pool(away="there is no link to head:7441"), F, "no link to head", "go on meanwhile"),
    ("pool-link", pool(away="it was revoked", hint="join again"), F, "it was revoked", "join again"),
    ("pool-clock", pool(clock_ahead_seconds=130.0), F, "is 130 s ahead of this node's", "synchronise"),
    ("pool-clock", pool(clock_ahead_seconds=-31.0), W, "is 31 s behind this node's", "synchronise"),
    ("pool-realm", pool(realm="lab", may_assert=False), F, "are USER@lab", "--node a --realm lab"),
    ("driver", with_part("driver", GONE), F, "it is gone", "bring it back"),
    ("driver", but("driver", gpus=()), F, "lists no GPU", "nvidia-smi -L"),
    ("gpu-health", with_gpu(trouble="fell off the bus"), F, "GPU 0: fell off", "dmesg"),
    ("gpu-health", view(gpus=(KnownGpu(0, "H", trouble="bad Xid 79"),)), F, "GPU 0: bad Xid", "dmesg"),
    ("drained-gpus", view(gpus=(KnownGpu(1, "H", drained=SICK, sick=True),)), F, "GPU 1 fell", "undrain 1"),
    ("drained-gpus", view(gpus=(KnownGpu(0, "H", drained=FAN),)), W, "GPU 0 is drained by root", "undrain 0"),
    ("device-nodes", host(missing_device_nodes=("/dev/nvidia-uvm",)), W, "/dev/nvidia-uvm", "modprobe"),
    ("persistence-mode", with_gpu(persistence=False), W, "off on GPU 0", "nvidia-persistenced"),
    ("persistence-daemon", host(persistence_daemon=False), W, "off after a boot", "nvidia-persistenced"),
    ("compute-mode", with_gpu(compute_mode=2), F, "PROHIBITED on GPU 0", "nvidia-smi -c DEFAULT -i 0"),
    ("compute-mode", with_gpu(compute_mode=3), W, "EXCLUSIVE_PROCESS", "nvidia-smi -c DEFAULT -i 0"),
    ("compute-mode", exclusive(mode_set_for=0), F, "left on GPU 0 by leases", "restart gpushared"),
    ("compute-mode", exclusive(mode_set_for=None), W, "gpushared did not set", "nvidia-smi -c DEFAULT -i 0"),
    ("mig-mode", with_gpu(mig=True), W, "MIG is on for GPU 0 without instances", "-cgi PROFILE -C"),
    ("pid-namespace", host(init_pid_namespace=False), F, "PID namespace", "--pid=host"),
    ("cgroup-version", host(cgroup_version=1), W, "cgroup v1", "unified_cgroup_hierarchy=1"),
    ("mps-program", mps(program=None), W, "not installed", "nvidia-compute-utils"),
    ("mps-program", mps(enabled=False), W, "switched off", 'mps = "auto"'),
    ("mps-program", with_part("mps", GONE), W, "it is gone", "bring it back"),
    ("mps-version", program(version="580.95.05"), F, "release 580", "driver's own version"),
    ("mps-users", program(serves_many_users=False), W, "one user at a time", "580"),
    ("mps-users", closed_to_all_but_one_user(), F, "refused on GPU 0", "580"),
    ("mps-architecture", with_gpu(compute_capability=(6, 1)), W, "older than Volta", "--gpu 1"),
    ("mps-default-pipe", mps(default_pipe=True), W, "left over", "rm -r /tmp/nvidia-mps"),
    ("mps-default-pipe", mps(default_pipe=True, default_pipe_answers=True, foreign_pids=(7,)), F,
     "serves in /tmp/nvidia-mps", "echo quit"),
    ("mps-foreign-daemon", mps(foreign_pids=(7, 8)), W, "PID 7, 8", "quit"),
    ("mps-daemons", view(gpus=(KnownGpu(0, "H", sharing_trouble="in FAULT"),)), F, "in FAULT", "journalctl"),
    ("mps-clients", view(gpus=(KnownGpu(0, "H", processes=44),)), W, "GPU 0: 44", "fewer processes"),
    ("service-memory", host(memory_limit_bytes=100 * MIB), W, "100 MiB", "MemoryMax=infinity"),
    ("selinux", host(selinux_enforces=True), W, "SELinux enforces", "restorecon"),
    ("memory-figures", view(troubles={"unseen-memory-0": "blind since 12:00"}), W, "blind since", "--gpu 1"),
    ("unmanaged-processes", view(unmanaged=(UnmanagedProcess(7, 0, "eve", "python", 2 * MIB),)), W,
     "python of eve on GPU 0 (PID 7, 2 MiB)", "gpushare run"),
    ("docker", with_part("engine", GONE), F, "it is gone", "bring it back"),
    ("docker-api", engine(api_version="1.40"), F, "API 1.40", "20.10"),
    ("docker-cdi", engine(cdi_dirs=(), version="24.0.9"), W, "CDI is off", "update Docker to 28.2"),
    ("docker-cdi", engine(cdi_dirs=(), version="26.1.5"), W, "CDI is off", '{"features": {"cdi": true}}'),
    ("docker-exposure", engine(socket_mode=0o666), F, "makes everybody root", "SocketMode=0660"),
    ("docker-exposure",
     engine(warnings=("WARNING: API is accessible on http://0.0.0.0:2375 without encryption.",)), F,
     "(API is accessible", "tlsverify"),
    ("docker-authorization", authz("27.1.0"), F, "CVE-2024-41110", "29.3.1"),
    ("docker-authorization", authz("24.0.9"), F, "CVE-2024-41110", "29.3.1"),
    ("docker-authorization", authz("20.10.24+dfsg1"), W, "unless its distribution", "29.3.1"),
    ("docker-authorization", authz("26.1.5"), W, "CVE-2026-34040", "29.3.1"),
    ("docker-authorization", authz("29.3.0"), W, "CVE-2026-34040", "29.3.1"),
    ("docker-default-runtime", engine(default_runtime="nvidia"), W, "privileged", "default-runtime"),
    ("mount-pins", view(pins_trouble="it sees nothing"), W, "it sees nothing", "5.12"),
    ("user-limits", view(users_trouble="there are none"), W, "there are none", "memory, cpu and pids"),
    ("docker-group-members", but("groups", members={"docker": ("eve",), "gpu": ()}), W, "(docker: eve)",
     "gpasswd -d"),
    ("gpu-mechanism", engine(gpu_mechanism=DeviceMechanism.PLAIN), F, "no way", "cdi generate"),
    ("gpu-mechanism", engine(gpu_mechanism=DeviceMechanism.NVIDIA_RUNTIME), W, "nvidia-runtime", "CDI"),
    ("cdi-spec", engine(nvidia_specs=SPECS), F, "for driver 580.95.05 and the driver is 615", "cdi generate"),
    ("cdi-spec", engine(nvidia_specs=NvidiaSpecs(("/etc/cdi/n.yaml",), frozenset(), frozenset({OTHER}))), F,
     f"does not know {UUID}", "--output=/etc/cdi/n.yaml"),
    ("toolkit", with_part("toolkit", None), W, "not installed", "1.17.8"),
    ("toolkit", with_part("toolkit", GONE), W, "it is gone", "bring it back"),
    ("toolkit", with_part("toolkit", Toolkit("1.17.7", env_switch=False)), F, "CVE-2025-23266", "1.17.8"),
    ("toolkit", with_part("toolkit", Toolkit("1.16.1", env_switch=False)), F, "CVE-2024-0132", "1.17.8"),
    ("toolkit", with_part("toolkit", Toolkit("", env_switch=False)), W, "its version", "nvidia-ctk"),
    ("toolkit-env-switch", but("toolkit", env_switch=True), W, "NVIDIA_VISIBLE_DEVICES", "=false"),
    ("systemd-reload", host(missing_char_links=("/dev/nvidia0", "/dev/nvidiactl")), W,
     "/dev/nvidia0 (2 links", "create-dev-char-symlinks"),
    ("driver-memory-limits", view(wall_trouble="it lacks root"), W, "not here: it lacks root", "behind MPS"),
    ("service-unit", but("unit", kill_mode="control-group"), F, "KillMode", "KillMode=process"),
    ("service-unit", but("unit", runtime_preserve="no"), F, "removes", "RuntimeDirectoryPreserve=yes"),
    ("service-unit", with_part("unit", GONE), W, "it is gone", "bring it back"),
    ("socket", but("socket", is_socket=False), F, "is gone", "restart"),
    ("socket", but("socket", closed_directory="/run/x"), W, "/run/x is closed", "chmod o+x /run/x"),
    ("runtime-directory", but("runtime_dir", file_system="ext4"), W, "on ext4", "`runtime_dir` in [node]"),
    ("runtime-directory", but("runtime_dir", writable=False), F, "cannot write", "ReadWritePaths"),
    ("journal-disk", state(free_bytes=MIB), F, "full", "make room"),
    ("journal-disk", state(free_inodes=0), F, "full", "make room"),
    ("journal-disk", state(free_bytes=100 * MIB), W, "nearly full (100 MiB", "make room"),
    ("journal-disk", state(free_inodes=10), W, "nearly full", "make room"),
    ("journal-disk", state(file_system="nfs4"), W, "on nfs4", "state_dir"),
    ("journal-disk", state(writable=False), F, "cannot write", "ReadWritePaths"),
    ("journal", view(troubles={"journal": "disk I/O error"}), F, "disk I/O error", "journalctl"),
    ("daemon-parts", view(troubles={"watchdog": "it is blind"}), F, "it is blind", "journalctl"),
    ("daemon-parts", view(troubles={"gpus": "no samples"}), F, "no samples", "journalctl"),
    ("config", but("config", problem="queue.x is not a setting"), F, "queue.x", "config check"),
    ("config", but("config", to_reload=("idle.warn",)), W, "read it: idle.warn", "systemctl reload"),
    ("config", but("config", to_reload=("a",), to_restart=("log.level",)), W, "use: log.level", "systemctl restart"),
    ("config", but("config", to_restart=tuple("abcdefg")), W, "a, b, c, d, e and 2 more", "systemctl restart"),
]  # fmt: skip


def made(facts: DoctorFacts) -> dict[str, CheckOutcome]:
    return {result.name: result for result in examine(CHECKS, facts)}


def lines(facts: DoctorFacts) -> list[str]:
    """The checks that a user sees as not well."""
    return [
        result.name
        for result in examine(CHECKS, facts)
        if not result.blocked_by and result.finding.status is not Status.OK
    ]


def test_on_a_healthy_machine_every_check_is_made_and_ok() -> None:
    results = examine(CHECKS, HEALTHY)
    assert [result for result in results if result.finding.status is not Status.OK] == []
    assert all(result.finding.detail and not result.finding.fix for result in results)


@pytest.mark.parametrize(
    ("check", "facts", "status", "says", "fix"), CASES, ids=[f"{case[0]}: {case[3]}" for case in CASES]
)
def test_one_thing_that_is_wrong_gives_one_line_with_a_fix(
    check: str, facts: DoctorFacts, status: Status, says: str, fix: str
) -> None:
    found = made(facts)[check].finding
    assert (found.status, lines(facts)) == (status, [check])
    assert says in found.detail
    assert fix in found.fix


def test_a_compute_mode_that_leases_need_now_is_as_it_should_be() -> None:
    results = {one.name: one for one in examine(CHECKS, exclusive(mode_set_for=2))}
    assert results["compute-mode"].finding.status is Status.OK
    assert "as configured" in results["compute-mode"].finding.detail


def test_every_check_can_find_something() -> None:
    assert {case[0] for case in CASES} == {check.name for check in CHECKS}


def test_a_check_comes_after_checks_that_stand_before_it() -> None:
    before: set[str] = set()
    for check in CHECKS:
        assert set(check.after) <= before
        assert check.name not in before
        before.add(check.name)


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        (OLD_DRIVER, ["driver-memory-limits"]),
        ("470.57.02", ["driver-memory-limits", "mps-version"]),
        ("615.71.09", []),
    ],
)
def test_an_old_driver_is_told_what_it_cannot_do(version: str, expected: list[str]) -> None:
    facts = but("driver", version=version)
    specs = NvidiaSpecs(("/etc/cdi/nvidia.yaml",), frozenset({version}), frozenset({UUID}))
    same = MpsProgram("/usr/bin/nvidia-cuda-mps-control", version, serves_many_users=True)
    engine_report, mps_report = engine(nvidia_specs=specs).engine, mps(program=same).mps
    changed = also(facts, engine=engine_report, mps=mps_report)
    assert lines(changed) == expected


def test_on_simulated_gpus_the_driver_is_one_line_and_nothing_of_its_kind_is_asked_for() -> None:
    facts = also(
        HEALTHY,
        simulated=True,
        driver=Unread("simulated"),
        toolkit=None,
        mps=mps(program=None).mps,
        host=host(cgroup_version=1, persistence_daemon=False).host,
        engine=engine(gpu_mechanism=DeviceMechanism.PLAIN).engine,
    )
    assert lines(facts) == ["driver"]
    finding = made(facts)["driver"].finding
    assert (finding.status, "simulated" in finding.detail) == (Status.SKIPPED, True)


def test_simulated_processes_without_a_lease_are_shown_too() -> None:
    strange = DaemonView(unmanaged=(UnmanagedProcess(7, 0),))
    facts = also(HEALTHY, simulated=True, driver=GONE, daemon=strange)
    assert made(facts)["unmanaged-processes"].finding.status is W


def test_a_driver_that_is_away_hides_all_that_follows_from_it() -> None:
    """The sampler's trouble, the unknown processes, MPS, toolkit and CDI."""
    trouble = DaemonView(troubles={"gpus": "the driver is away"})
    facts = also(HEALTHY, driver=GONE, daemon=trouble, toolkit=None)
    assert lines(facts) == ["driver"]
    assert made(facts)["unmanaged-processes"].blocked_by == "driver"


def test_an_engine_that_is_away_is_one_line_although_the_daemon_is_in_trouble_for_it() -> None:
    trouble = DaemonView(troubles={"engine": "no engine answers"})
    facts = also(HEALTHY, engine=GONE, daemon=trouble)
    assert lines(facts) == ["docker"]


def test_a_node_that_is_well_in_its_pool_has_nothing_to_say() -> None:
    assert lines(pool(clock_ahead_seconds=0.2)) == []


def test_a_link_that_is_lost_is_one_line_although_the_daemon_is_in_trouble_for_it() -> None:
    facts = pool(away="there is no link")
    troubles = {"pool": "pool lab is not reached", "pool-clock": "130 s"}
    assert lines(also(facts, daemon=replace(facts.daemon, troubles=troubles))) == ["pool-link"]


def test_many_unmanaged_processes_are_three_and_a_number() -> None:
    many = tuple(UnmanagedProcess(pid, 0) for pid in range(10))
    assert "and 7 more" in made(view(unmanaged=many))["unmanaged-processes"].finding.detail


def test_a_gpu_split_into_nothing_is_told_once_though_the_daemon_cannot_lease_it() -> None:
    split = with_gpu(mig=True)
    known = DaemonView(gpus=(KnownGpu(0, "H100", trouble="MIG is on, but there are no instances"),))
    assert lines(also(split, daemon=known)) == ["mig-mode"]


def test_a_gpu_split_into_instances_is_as_it_should_be_where_the_cdi_spec_names_them() -> None:
    """Specs do not name the GPU itself then; those that were made before the instances must be made anew."""
    instance = GpuId("MIG-0b1c2d3e-0000-4000-8000-000000000000")
    split = with_gpu(mig=True, mig_instances=(instance,))
    assert made(split)["mig-mode"].finding.detail == (
        "GPU 0 split by MIG into 1 instance, which `--isolation mig` asks for"
    )
    found = made(split)["cdi-spec"].finding
    assert (found.status, "MIG-0b1c2d3e" in found.detail) == (Status.FAILED, True)
    assert isinstance(split.engine, EngineReport)
    specs = replace(split.engine.nvidia_specs, uuids=frozenset({instance}))
    named = also(split, engine=replace(split.engine, nvidia_specs=specs))
    assert made(named)["cdi-spec"].finding.status is Status.OK


@pytest.mark.parametrize("version", ["23.0.15", "25.0.6", "26.1.5", "27.1.1", "28.0.0"])
def test_engines_with_the_mended_authorization_are_not_accused_of_the_older_hole(version: str) -> None:
    assert "CVE-2024-41110" not in made(authz(version))["docker-authorization"].finding.detail


def test_a_gpu_may_also_be_asked_for_as_docker_s_own_option_does() -> None:
    assert lines(engine(gpu_mechanism=DeviceMechanism.DEVICE_REQUEST)) == []


def test_a_newest_engine_keeps_to_its_plugin() -> None:
    assert lines(authz("29.3.1")) == []


@pytest.mark.parametrize(
    "part",
    ["engine", "toolkit", "mps", "host", "groups", "unit", "socket", "runtime_dir", "state_dir", "config"],
)
def test_a_part_that_cannot_be_read_is_told_in_one_line(part: str) -> None:
    assert len(lines(with_part(part, GONE))) == 1
    assert any(GONE.why in result.finding.detail for result in examine(CHECKS, with_part(part, GONE)))
