"""The bed's own promises: whoever stands on a part need not wonder whether it does what it should."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from tests.bed import parts
from tests.bed.engine import PrivateEngine
from tests.bed.fixtures import CdiEngine
from tests.bed.machine import Machine


def test_the_plain_engine_runs_the_busybox_image(docker_engine, busybox_image) -> None:
    answer = parts.docker(docker_engine, "run", "--rm", busybox_image, "sh", "-c", "echo here; exit 3")
    assert (answer.returncode, answer.stdout) == (3, "here\n")


def test_the_cdi_engine_applies_a_spec_and_sees_shared_mounts(cdi_engine: CdiEngine, tmp_path: Path) -> None:
    (tmp_path / "note").write_text("from the machine")
    edits = {
        "env": ["FROM_SPEC=yes"],
        "mounts": [{"hostPath": str(tmp_path), "containerPath": "/shared", "options": ["bind", "ro"]}],
    }
    device = {"name": tmp_path.name, "containerEdits": edits}
    spec = cdi_engine.spec_dir / f"{tmp_path.name}.json"
    spec.write_text(json.dumps({"cdiVersion": "0.5.0", "kind": "bed.test/part", "devices": [device]}))
    try:
        answer = parts.docker(
            cdi_engine.socket,
            *("run", "--rm", "--network", "none", "--device", f"bed.test/part={tmp_path.name}"),
            *(parts.BUSYBOX_IMAGE, "sh", "-c", "echo $FROM_SPEC; cat /shared/note"),
        )
    finally:
        spec.unlink()
    assert answer.stdout == "yes\nfrom the machine"


def test_docker_finds_compose_and_both_are_version_two_or_later(docker_environment, compose: Path) -> None:
    answer = subprocess.run(
        ["docker", "compose", "version", "--short"],
        env=docker_environment,
        capture_output=True,
        text=True,
        check=True,
    )
    alone = subprocess.run([compose, "version", "--short"], capture_output=True, text=True, check=True)
    assert int(answer.stdout.split(".")[0]) >= 2
    assert alone.stdout == answer.stdout


def test_docker_finds_buildx_which_knows_this_engines_builder(
    docker_environment, docker_engine, tmp_path
) -> None:
    parts.need_file("cli", parts.BUILDX)
    answer = subprocess.run(
        ["docker", "--host", f"unix://{docker_engine}", "buildx", "inspect"],
        env={**docker_environment, "BUILDX_CONFIG": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert ["Driver:", "docker"] in [line.split() for line in answer.stdout.splitlines()]


def test_the_mps_control_daemon_keeps_a_default_limit(mps_control_binary: Path, tmp_path: Path) -> None:
    environment = {"CUDA_MPS_PIPE_DIRECTORY": str(tmp_path), "CUDA_MPS_LOG_DIRECTORY": str(tmp_path)}

    def ask(command: str) -> str:
        answer = subprocess.run(
            [mps_control_binary],
            input=f"{command}\n",
            env=environment,
            capture_output=True,
            text=True,
            timeout=10,
            check=False,
        )
        return answer.stdout.strip()

    subprocess.run([mps_control_binary, "-d"], env=environment, timeout=10, check=True)
    try:
        ask("set_default_active_thread_percentage 25")
        assert ask("get_default_active_thread_percentage") == "25.0"
    finally:
        ask("quit")


class TestPrivateEngine:
    def test_a_killed_engine_leaves_its_containers_running_and_finds_them_again(
        self, private_engine: Callable[..., PrivateEngine]
    ) -> None:
        engine = private_engine("--live-restore")
        name = engine.check("run", "-d", "--network", "none", parts.BUSYBOX_IMAGE, "sleep", "600")
        pid = engine.check("inspect", "-f", "{{.State.Pid}}", name)
        engine.kill()
        assert not engine.answers()
        assert Path(f"/proc/{pid}").exists()
        engine.start()
        assert engine.check("inspect", "-f", "{{.State.Pid}}", name) == pid

    def test_a_disposed_engine_leaves_no_process_and_no_file(
        self, private_engine: Callable[..., PrivateEngine]
    ) -> None:
        engine = private_engine()
        name = engine.check("run", "-d", "--network", "none", parts.BUSYBOX_IMAGE, "sleep", "600")
        pid = engine.check("inspect", "-f", "{{.State.Pid}}", name)
        engine.kill()
        engine.dispose()
        assert not psutil.pid_exists(int(pid)) or psutil.Process(int(pid)).status() == psutil.STATUS_ZOMBIE
        assert not engine.directory.exists()

    def test_the_shared_engine_does_not_see_its_containers(
        self, docker_engine, private_engine: Callable[..., PrivateEngine]
    ) -> None:
        name = private_engine().check("create", "--network", "none", parts.BUSYBOX_IMAGE)
        assert parts.docker(docker_engine, "inspect", name).returncode == 1


def test_a_machine_boots_systemd_and_starts_units(systemd_machine: Callable[..., Machine]) -> None:
    machine = systemd_machine()
    machine.check("systemd-run", "--unit", "sleeper", "sleep", "600")
    assert machine.check("systemctl", "is-active", "sleeper") == "active"


@pytest.mark.parametrize(
    ("ci", "bed", "outcome"), [("", "", "skipped"), ("true", "", "failed"), ("", "required", "failed")]
)
def test_a_missing_part_is_skipped_by_hand_and_fails_in_ci(
    ci: str, bed: str, outcome: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CI", ci)
    monkeypatch.setenv("GPUSHARED_BED", bed)
    expected = {"skipped": pytest.skip.Exception, "failed": pytest.fail.Exception}[outcome]
    with pytest.raises(expected, match="scripts/bed mps"):
        parts.need_file("mps", Path("/nonexistent/nvidia-cuda-mps-control"))
