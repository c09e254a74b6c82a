"""What the adapter understands of the engine's words, where no real engine of the bed says them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gpushared.domain.model.errors import EngineUnavailable
from gpushared.engine.docker_engine import engine_facts, runtime_spec_dir
from gpushared.engine.engine_events import (
    START_ERROR_CHARACTERS,
    facts_of_death,
    facts_of_inspect,
    ids_of_list,
)
from gpushared.ports import LABEL_DEVICE, LABEL_OWNER, CgroupDriver, ContainerStatus, DeviceMechanism

VERSION = {"Version": "28.2.2", "ApiVersion": "1.50"}
UUID = "GPU-8f6d8c1e-2b1a-4f7e-9a53-0c1d2e3f4a5b"
YAML = f"""---
cdiVersion: 0.5.0
kind: nvidia.com/gpu
devices:
    - name: "0"
      containerEdits: {{}}
    - name: {UUID}
      containerEdits: {{}}
"""
BY_INDEX = YAML.replace(UUID, "all")
AS_JSON = json.dumps({"cdiVersion": "0.5.0", "kind": "nvidia.com/gpu", "devices": [{"name": UUID}]})
OTHERS = YAML.replace("nvidia.com/gpu", "nvidia.com/gpu-x")

INSPECT: dict[str, Any] = {
    "Id": "ab" * 32,
    "Name": "/web",
    "State": {"Status": "running", "Running": True, "ExitCode": 0, "Pid": 17},
    "Config": {"Image": "busybox", "Labels": None},
    "HostConfig": {"RestartPolicy": {"Name": "", "MaximumRetryCount": 0}},
}


@pytest.fixture
def no_nvidia_tools(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpushared.engine.docker_engine._SYSTEM_PATH", "/nonexistent")
    monkeypatch.setenv("PATH", "/nonexistent")


@pytest.mark.parametrize(
    ("file", "text", "mechanism"),
    [
        ("nvidia.yaml", YAML, DeviceMechanism.CDI),
        ("nvidia.json", AS_JSON, DeviceMechanism.CDI),
        ("nvidia.yaml", BY_INDEX, DeviceMechanism.PLAIN),
        ("nvidia.yaml", OTHERS, DeviceMechanism.PLAIN),
        ("nvidia.yaml.bak", YAML, DeviceMechanism.PLAIN),
    ],
    ids=["yaml", "json", "by index only", "another class", "no spec"],
)
def test_cdi_is_chosen_where_a_spec_names_nvidia_gpus_by_uuid(
    no_nvidia_tools: None, tmp_path: Path, file: str, text: str, mechanism: DeviceMechanism
) -> None:
    """GPUs are asked for by UUID only, so a spec that knows indices only is none for us."""
    (tmp_path / file).write_text(text)
    found = engine_facts(VERSION, {"CDISpecDirs": [str(tmp_path)]}, simulated_gpus=False)
    assert found.gpu_mechanism is mechanism
    assert found.lease_devices


def test_specs_tell_which_gpus_and_mig_instances_they_name(no_nvidia_tools: None, tmp_path: Path) -> None:
    """Where every GPU is split by MIG they name instances only; what they do not name has another way in."""
    instance = f"MIG-{UUID.removeprefix('GPU-')}"
    (tmp_path / "nvidia.yaml").write_text(YAML.replace(UUID, instance))
    info: dict[str, Any] = {"CDISpecDirs": [str(tmp_path)], "Runtimes": {"nvidia": {}}}
    found = engine_facts(VERSION, info, simulated_gpus=False)
    assert (found.gpu_mechanism, found.cdi_gpus) == (DeviceMechanism.CDI, frozenset({instance}))
    assert found.other_mechanism is DeviceMechanism.NVIDIA_RUNTIME
    info["DiscoveredDevices"] = [{"Source": "cdi", "ID": f"nvidia.com/gpu={UUID}"}]
    assert engine_facts(VERSION, info, simulated_gpus=False).cdi_gpus == {instance, UUID}


def test_devices_that_the_engine_discovered_count_as_well(no_nvidia_tools: None) -> None:
    """Newer engines list them; then no file needs to be read."""
    info: dict[str, Any] = {
        "CDISpecDirs": ["/nonexistent"],
        "DiscoveredDevices": [{"Source": "cdi", "ID": f"nvidia.com/gpu={UUID}"}],
    }
    assert engine_facts(VERSION, info, simulated_gpus=False).gpu_mechanism is DeviceMechanism.CDI


def test_without_cdi_the_hook_of_the_engine_is_the_way(
    no_nvidia_tools: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The Docker engine offers `--gpus` where it finds this program; that goes before the runtime."""
    hook = tmp_path / "nvidia-container-runtime-hook"
    hook.touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    found = engine_facts(VERSION, {"Runtimes": {"nvidia": {}}}, simulated_gpus=False)
    assert found.gpu_mechanism is DeviceMechanism.DEVICE_REQUEST
    assert not found.lease_devices


def test_the_nvidia_runtime_is_the_last_way(no_nvidia_tools: None) -> None:
    """Old installations have the runtime only."""
    info: dict[str, Any] = {"Runtimes": {"runc": {}, "nvidia": {}}, "CDISpecDirs": None, "CgroupVersion": "2"}
    found = engine_facts(VERSION, info, simulated_gpus=False)
    assert found.gpu_mechanism is DeviceMechanism.NVIDIA_RUNTIME
    assert found.cgroup_version == 2


@pytest.mark.parametrize(
    ("said", "driver"),
    [("systemd", CgroupDriver.SYSTEMD), ("cgroupfs", CgroupDriver.CGROUPFS), ("none", CgroupDriver.CGROUPFS)],
)
def test_the_engine_says_who_makes_its_cgroups(said: str, driver: CgroupDriver) -> None:
    """The parent of a cgroup is a slice for the one, a path for the other."""
    info: dict[str, Any] = {"CgroupDriver": said, "CgroupVersion": "2"}
    assert engine_facts(VERSION, info, simulated_gpus=True).cgroup_driver is driver


def test_simulated_gpus_need_no_mechanism(tmp_path: Path) -> None:
    """Even where the engine could do more."""
    (tmp_path / "nvidia.yaml").write_text(YAML)
    info = {"CDISpecDirs": [str(tmp_path)], "Runtimes": {"nvidia": {}}}
    assert engine_facts(VERSION, info, simulated_gpus=True).gpu_mechanism is DeviceMechanism.PLAIN


def test_specs_of_leases_go_to_a_directory_in_memory(tmp_path: Path) -> None:
    """A reboot then clears them; where there is none, the directory that wins is taken."""
    assert runtime_spec_dir([Path("/dev/shm/cdi"), tmp_path]) == Path("/dev/shm/cdi")
    assert runtime_spec_dir([Path("/etc/cdi"), tmp_path]) == tmp_path


@pytest.mark.parametrize("answer", [{}, {"Version": "1"}, {**VERSION, "extra": 1}])
def test_an_engine_that_describes_itself_in_unknown_words_is_no_engine(answer: dict[str, Any]) -> None:
    """An error of ours, whatever is missing."""
    info: dict[str, Any] = {"CgroupVersion": "two"} if "extra" in answer else {}
    with pytest.raises(EngineUnavailable, match="unknown words"):
        engine_facts(answer, info, simulated_gpus=True)


def test_a_container_without_labels_or_policy_is_understood() -> None:
    """Engines leave out what is empty."""
    found = facts_of_inspect(INSPECT)
    assert (found.name, found.restart_policy, dict(found.labels)) == ("web", "no", {})


@pytest.mark.parametrize(
    ("written", "moment"),
    [
        ("2026-11-29T02:39:05.077915432Z", 1795919945.077915),
        ("2026-11-29T03:39:05+01:00", 1795919945.0),
        ("0001-01-01T00:00:00Z", None),
        ("yesterday", None),
        ("", None),
    ],
)
def test_the_end_of_a_run_is_read_as_engines_write_it(written: str, moment: float | None) -> None:
    state = {**INSPECT["State"], "FinishedAt": written}
    assert facts_of_inspect({**INSPECT, "State": state}).finished_at == moment


def test_the_words_of_a_start_that_failed_are_cut_where_they_never_end() -> None:
    """An engine quotes the command, which may be as long as a user likes."""
    state = {**INSPECT["State"], "Status": "created", "Error": "no such program: " + "x" * 100_000}
    told = facts_of_inspect({**INSPECT, "State": state}).start_error
    assert told.startswith("no such program")
    assert len(told) == START_ERROR_CHARACTERS


NEVER = "0001-01-01T00:00:00Z"
BEGAN, OVER = "2026-11-28T22:00:01.25Z", "2026-11-28T22:00:03.750000001Z"


@pytest.mark.parametrize(
    ("state", "ran_seconds"),
    [
        ({"StartedAt": BEGAN, "FinishedAt": OVER}, 2.5),
        ({"StartedAt": BEGAN, "FinishedAt": OVER, "Running": True}, None),
        ({"StartedAt": BEGAN, "FinishedAt": NEVER}, None),
        ({"StartedAt": NEVER, "FinishedAt": NEVER}, None),
        ({"StartedAt": NEVER, "FinishedAt": OVER}, None),
        ({"StartedAt": BEGAN, "FinishedAt": OVER, "Error": "no such program"}, None),
        ({"StartedAt": "soon", "FinishedAt": None}, None),
        ({"StartedAt": BEGAN, "FinishedAt": "2026-11-28T22:00:03"}, None),
        ({}, None),
    ],
)
def test_an_ended_container_tells_how_long_it_ran(state: dict[str, Any], ran_seconds: float | None) -> None:
    """Where the engine knows both times of its last run."""
    ended = {"Status": "exited", "Running": False, "ExitCode": 0, "Pid": 0, **state}
    assert facts_of_inspect({**INSPECT, "State": ended}).ran_seconds == ran_seconds


@pytest.mark.parametrize("word", ["stopping", "configured"])
@pytest.mark.parametrize("running", [True, False])
def test_a_status_of_another_engine_is_running_or_exited(word: str, running: bool) -> None:
    """Engines that only speak Docker's API have words of their own."""
    state = {**INSPECT["State"], "Status": word, "Running": running}
    expected = ContainerStatus.RUNNING if running else ContainerStatus.EXITED
    assert facts_of_inspect({**INSPECT, "State": state}).status is expected


@pytest.mark.parametrize("key", sorted(INSPECT))
def test_a_container_described_in_part_is_an_error_of_ours(key: str) -> None:
    """No KeyError of Python's."""
    with pytest.raises(EngineUnavailable, match="unknown words"):
        facts_of_inspect({k: v for k, v in INSPECT.items() if k != key})


@pytest.mark.parametrize("label", ["root", "-1", "", "1e3", "٣"])
def test_an_owner_label_that_is_no_uid_is_no_owner(label: str) -> None:
    """Anybody with access to the engine can write labels."""
    config = {**INSPECT["Config"], "Labels": {LABEL_OWNER: label}}
    assert facts_of_inspect({**INSPECT, "Config": config}).owner_uid is None


def death(**attributes: str) -> dict[str, Any]:
    return {"Action": "die", "Actor": {"ID": "ab" * 32, "Attributes": attributes}}


def test_a_death_tells_the_last_facts() -> None:
    """For containers that are removed the moment they end."""
    words = {"exitCode": "3", "name": "web", "image": "busybox", "execDuration": "7"}
    told = facts_of_death(death(**words, **{LABEL_DEVICE: "l-1"}))
    assert told is not None
    assert told.ran_seconds == 7.0
    assert (told.exit_code, told.status, told.name, told.image) == (
        3,
        ContainerStatus.EXITED,
        "web",
        "busybox",
    )
    assert (told.device_name, dict(told.labels)) == ("l-1", {LABEL_DEVICE: "l-1"})


@pytest.mark.parametrize("event", [death(), death(exitCode="soon"), {"Action": "start"}])
def test_what_is_no_death_has_no_last_facts(event: dict[str, Any]) -> None:
    """Nothing is made up; a label may even hide the exit code."""
    assert facts_of_death(event) is None


def test_only_containers_with_a_lease_device_are_looked_at_one_by_one() -> None:
    """Confined users' plain containers have the label too, and may be many."""
    devices = {"a": "l-1", "b": "", "c": "c-2"}
    listed = [{"Id": name, "Labels": {"gpushare.device": device}} for name, device in devices.items()]
    assert ids_of_list(listed) == ("a", "c")
