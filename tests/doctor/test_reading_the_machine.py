"""The real readers, on file trees made by the tests, on real programs, engines and processes."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpushared.config.load import load
from gpushared.config.model import Config
from gpushared.doctor.checks import DaemonPaths, read_config
from gpushared.doctor.machine_facts import ConfigState, Unit
from gpushared.doctor.readers import (
    ENV_SWITCH,
    INIT_PID_NAMESPACE,
    file_system,
    program_output,
    read_directory,
    read_engine,
    read_groups,
    read_host,
    read_mps,
    read_program,
    read_socket,
    read_specs,
    read_toolkit,
    read_unit,
)
from gpushared.domain.model.errors import ConfigError, EngineUnavailable, Unavailable
from gpushared.ports import DeviceMechanism
from tests.bed.fixtures import CdiEngine

MIB = 2**20
UUID = "GPU-01234567-89ab-cdef-0123-456789abcdef"
SPEC = f"""---
cdiVersion: 0.5.0
kind: nvidia.com/gpu
devices:
- name: "0"
- name: {UUID}
containerEdits:
  mounts:
  - hostPath: /usr/lib/x86_64-linux-gnu/libcuda.so.580.95.05
    containerPath: /usr/lib/x86_64-linux-gnu/libcuda.so.580.95.05
"""


# --- the host --------------------------------------------------------------------------------------------


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """The least of a machine's file systems."""
    for folder in ("proc/self/ns", "sys/fs/cgroup", "dev/char", "run"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "proc/self/ns/pid").symlink_to(INIT_PID_NAMESPACE)
    (tmp_path / "proc/self/cgroup").write_text("0::/system.slice/gpushared.service\n")
    return tmp_path


def put(file: Path, text: str = "") -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


def test_a_bare_machine_is_read_without_an_error(root: Path) -> None:
    host = read_host(root)
    assert (host.cgroup_version, host.selinux_enforces, host.memory_limit_bytes) == (1, False, None)
    assert host.missing_device_nodes == ("/dev/nvidiactl", "/dev/nvidia-uvm")
    assert (host.init_pid_namespace, host.persistence_daemon) == (True, False)


def test_this_machine_is_read_without_an_error() -> None:
    host = read_host()
    assert host.kernel
    assert host.cgroup_version in {1, 2}


def test_what_is_there_is_seen(root: Path) -> None:
    put(root / "sys/fs/cgroup/cgroup.controllers", "memory pids\n")
    put(root / "sys/fs/selinux/enforce", "1")
    put(root / "run/nvidia-persistenced/socket")
    put(root / "dev/nvidiactl")
    put(root / "dev/nvidia-uvm")
    (root / "proc/self/ns/pid").unlink()
    (root / "proc/self/ns/pid").symlink_to("pid:[4026532000]")
    host = read_host(root)
    assert (host.cgroup_version, host.selinux_enforces, host.persistence_daemon) == (2, True, True)
    assert (host.missing_device_nodes, host.init_pid_namespace) == ((), False)


@pytest.mark.parametrize(
    ("lines", "files", "limit"),
    [
        ("0::/a.slice/b.service", {"a.slice/b.service/memory.max": "max"}, None),
        ("0::/a.slice/b.service", {"a.slice/b.service/memory.max": str(300 * MIB)}, 300 * MIB),
        ("0::/a.slice/b.service", {"a.slice/memory.max": str(64 * MIB)}, 64 * MIB),
        ("9:memory:/b\n0::/", {"memory/b/memory.limit_in_bytes": str(64 * MIB)}, 64 * MIB),
        ("9:memory:/b\n0::/", {"memory/b/memory.limit_in_bytes": "9223372036854771712"}, None),
    ],
)
def test_the_tightest_limit_above_the_daemon_counts(
    root: Path, lines: str, files: dict[str, str], limit: int | None
) -> None:
    (root / "proc/self/cgroup").write_text(lines + "\n")
    for name, text in files.items():
        put(root / "sys/fs/cgroup" / name, text + "\n")
    assert read_host(root).memory_limit_bytes == limit


@pytest.mark.skipif(os.geteuid() != 0, reason="makes device nodes")
def test_a_gpu_without_a_link_for_systemd_is_named_until_it_has_one(root: Path) -> None:
    os.mknod(root / "dev/nvidia0", 0o600 | 0o020000, os.makedev(195, 0))
    assert read_host(root).missing_char_links == ("/dev/nvidia0",)
    (root / "dev/char/195:0").symlink_to("../nvidia0")
    assert read_host(root).missing_char_links == ()


def test_members_of_a_group_are_those_listed_and_those_whose_first_group_it_is(tmp_path: Path) -> None:
    passwd = tmp_path / "passwd"
    passwd.write_text("root:x:0:0::/root:/bin/sh\neve:x:1000:0::/home/eve:/bin/sh\nbob:x:1001:1001:::\n")
    groups = read_groups(["root", "no-such-group"], passwd)
    assert dict(groups.members) == {"root": ("eve",), "no-such-group": ()}


def test_outside_systemd_there_is_no_unit(root: Path) -> None:
    assert read_unit({}, root) is None
    assert read_unit({"INVOCATION_ID": "x"}, Path("/")) is None


def test_the_unit_is_the_one_whose_main_process_this_is(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A script in systemctl's place says what systemd says; the tests of the service use the real one."""
    script = tmp_path / "bin/systemctl"
    put(
        script,
        f"#!/bin/sh\necho MainPID={os.getpid()}\necho KillMode=mixed\necho RuntimeDirectoryPreserve=no\n",
    )
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{script.parent}:{os.environ['PATH']}")
    assert read_unit({"INVOCATION_ID": "x"}, root) == Unit("gpushared.service", "mixed", "no")
    script.write_text("#!/bin/sh\necho MainPID=1\n")
    assert read_unit({"INVOCATION_ID": "x"}, root) is None


def test_a_socket_is_seen_with_its_mode_and_the_directory_that_is_closed(tmp_path: Path) -> None:
    path = tmp_path / "closed" / "d.sock"
    path.parent.mkdir()
    assert not read_socket(path).is_socket
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        path.chmod(0o660)
        path.parent.chmod(0o700)
        found = read_socket(path)
    assert (found.is_socket, found.mode) == (True, 0o660)
    # Folders of pytest's own above it are closed too.
    assert found.closed_directory in map(str, path.parents)


def test_a_directory_is_seen_with_what_is_left_below_it(tmp_path: Path) -> None:
    found = read_directory(tmp_path)
    assert found.free_bytes > 0
    assert found.writable
    assert found.file_system == file_system(tmp_path) != ""
    assert file_system(Path("/proc/self")) == "proc"
    with pytest.raises(FileNotFoundError):
        read_directory(tmp_path / "nowhere")


def test_a_program_that_does_not_end_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpushared.doctor.readers.PROGRAM_SECONDS", 0.1)
    with pytest.raises(TimeoutError, match="sleep did not end"):
        program_output("sleep", "60")


# --- toolkit and specs -----------------------------------------------------------------------------------


@pytest.fixture
def ctk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A script in nvidia-ctk's place that says its version as that does."""
    program = tmp_path / "bin/nvidia-ctk"
    put(program, '#!/bin/sh\necho "NVIDIA Container Toolkit CLI version 1.17.8"\necho "commit: 1234567"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    return program


@pytest.mark.parametrize(
    ("text", "switch"), [("", True), (f"{ENV_SWITCH} = true", True), (f"{ENV_SWITCH} = false", False)]
)
def test_the_toolkit_tells_its_version_and_its_switch(
    ctk: Path, tmp_path: Path, text: str, switch: bool
) -> None:
    config = tmp_path / "config.toml"
    config.write_text(f'disable-require = false\n{text}\n[nvidia-container-cli]\nldconfig = "x"\n')
    found = read_toolkit(config)
    assert found is not None
    assert (found.version, found.env_switch) == ("1.17.8", switch)


def test_a_toolkit_without_a_configuration_has_its_defaults(ctk: Path, tmp_path: Path) -> None:
    found = read_toolkit(tmp_path / "config.toml")
    assert found is not None
    assert found.env_switch


def test_a_configuration_that_is_no_toml_is_told(ctk: Path, tmp_path: Path) -> None:
    put(tmp_path / "config.toml", "= =")
    with pytest.raises(Unavailable, match=r"config\.toml cannot be read"):
        read_toolkit(tmp_path / "config.toml")


def test_without_program_and_configuration_there_is_no_toolkit(tmp_path: Path) -> None:
    if shutil.which("nvidia-ctk"):
        pytest.skip("this machine has one")
    assert read_toolkit(tmp_path / "config.toml") is None


def test_a_spec_tells_its_driver_and_its_gpus_and_other_specs_do_not_count(tmp_path: Path) -> None:
    put(tmp_path / "nvidia.yaml", SPEC)
    put(tmp_path / "other.json", '{"kind": "gpushare.io/lease", "note": "libcuda.so.1.2.3"}')
    put(tmp_path / "notes.txt", SPEC.replace("580", "999"))
    specs = read_specs((tmp_path,))
    assert specs.files == (str(tmp_path / "nvidia.yaml"),)
    assert specs.driver_versions == frozenset({"580.95.05"})
    assert specs.uuids == frozenset({UUID})


# --- MPS -------------------------------------------------------------------------------------------------


@pytest.mark.mps
def test_the_control_daemon_s_file_tells_its_version_without_being_run(mps_control_binary: Path) -> None:
    program = read_program(mps_control_binary)
    assert program.version.startswith(("535.", "550."))
    assert not program.serves_many_users


def test_a_file_that_tells_nothing_has_no_version(tmp_path: Path) -> None:
    put(tmp_path / "program", "#!/bin/sh\n# multiuser-server\n")
    program = read_program(tmp_path / "program")
    assert (program.version, program.serves_many_users) == ("", True)


@pytest.fixture
def start_mps(mps_control_binary: Path) -> Iterator[Callable[[Path], subprocess.Popen[bytes]]]:
    """Starts control daemons that are ended after the test."""
    started: list[subprocess.Popen[bytes]] = []

    def start(pipe: Path) -> subprocess.Popen[bytes]:
        pipe.mkdir(parents=True)
        environment = {"CUDA_MPS_PIPE_DIRECTORY": str(pipe), "CUDA_MPS_LOG_DIRECTORY": str(pipe)}
        one = subprocess.Popen([mps_control_binary, "-f"], env=environment, stdout=subprocess.DEVNULL)
        started.append(one)
        return one

    yield start
    for one in started:
        one.kill()
        one.wait()


@pytest.mark.mps
def test_a_control_daemon_outside_our_directory_is_foreign(
    start_mps: Callable[[Path], subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    home = tmp_path / "r/mps"
    ours, foreign = start_mps(home / "one/pipe"), start_mps(tmp_path / "elsewhere")
    pids = read_mps("", home, enabled=True).foreign_pids
    assert foreign.pid in pids
    assert ours.pid not in pids


# --- the engine ------------------------------------------------------------------------------------------


@pytest.mark.docker
def test_an_engine_without_cdi_describes_itself(docker_engine: str) -> None:
    report = read_engine(docker_engine)
    assert report.api_version == "1.41"
    assert (report.cdi_dirs, report.default_runtime) == ((), "runc")
    assert report.cgroup_driver in {"cgroupfs", "systemd"}
    assert report.socket_mode == 0o660


@pytest.mark.cdi
def test_an_engine_with_cdi_tells_where_it_looks_for_specs(cdi_engine: CdiEngine) -> None:
    report = read_engine(cdi_engine.socket)
    assert report.cdi_dirs
    assert report.gpu_mechanism in set(DeviceMechanism)


def test_no_engine_is_an_error_of_ours(tmp_path: Path) -> None:
    with pytest.raises(EngineUnavailable, match="no Docker engine answers"):
        read_engine(str(tmp_path / "docker.sock"))


# --- the configuration -----------------------------------------------------------------------------------


RELOADED = [
    ('[watchdog]\naction = "stop"', "watchdog.action"),
    ('[idle]\nwarn_seconds = "7m"', "idle.warn_seconds"),
    ('[idle.quiet]\nhours = "20:00-08:00"', "idle.quiet.hours"),
    ("[queue]\nmax_queued = 7", "queue.max_queued"),
    ("[classes.train]\npriority = 7", "classes.train.priority"),
    ('[placement]\npolicy = "pack"', "placement.policy"),
    ('[gate]\npreset = "strict"', "gate.preset"),
    ("[jobs]\nmax_kept_containers = 7", "jobs.max_kept_containers"),
    ('[pool]\nrealm = "other"', "pool.realm"),
    ("[audit]\nkeep_days = 7", "audit.keep_days"),
    ('[notify]\nmail = ["vision@example.org"]', "notify.mail"),
    ("[history]\nkeep_minutes_days = 7", "history.keep_minutes_days"),
    ('[privacy]\nothers = "nothing"', "privacy.others"),
    ('[metrics]\nlabels = ["user"]', "metrics.labels"),
    ("[web]\nsession_hours = 7", "web.session_hours"),
    ('[engine]\nstop_grace_seconds = "7s"', "engine.stop_grace_seconds"),
    ("[sharing]\nfault_patience_seconds = 7", "sharing.fault_patience_seconds"),
    ("[projects.vision]\nweight = 2", "projects.vision"),
    ('[presets.small]\ngpu = "0.5"', "presets.small"),
]
AT_START = [
    ('[node]\nstate_dir = "/other"', "node.state_dir"),
    ('[engine]\nsocket = "/other"', "engine.socket"),
    ("[gpus]\nsample_seconds = 7", "gpus.sample_seconds"),
    ('[sharing]\nmps = "off"', "sharing.mps"),
    ("[jobs]\nmax_pulls = 7", "jobs.max_pulls"),
    ('[pool]\nstate_dir = "/other"', "pool.state_dir"),
    ('[log]\nlevel = "debug"', "log.level"),
]


def configured(directory: Path, text: str) -> Config:
    file = directory / "config.toml"
    file.write_text(text)
    return load(file, environ={}).config


@pytest.mark.parametrize(("text", "name"), RELOADED)
def test_settings_that_a_reload_puts_into_use_wait_for_no_restart(
    tmp_path: Path, text: str, name: str
) -> None:
    old, new = Config(), configured(tmp_path, text)
    before = read_config(DaemonPaths(old, old, Path("/s"), lambda: new))
    assert (before.to_reload, before.to_restart) == ((name,), ())
    assert read_config(DaemonPaths(new, old, Path("/s"), lambda: new)) == ConfigState()


@pytest.mark.parametrize(("text", "name"), AT_START)
def test_settings_of_the_start_wait_for_a_restart_also_after_a_reload(
    tmp_path: Path, text: str, name: str
) -> None:
    old, new = Config(), configured(tmp_path, text)
    after = read_config(DaemonPaths(new, old, Path("/s"), lambda: new))
    assert (after.to_reload, after.to_restart) == ((), (name,))


def test_a_configuration_that_is_wrong_is_told_on_one_line() -> None:
    def wrong() -> Config:
        raise ConfigError("2 things are wrong:\n  one\n  two")

    found = read_config(DaemonPaths(Config(), Config(), Path("/s"), wrong))
    assert found.problem == "2 things are wrong:; one; two"
