"""The service under a real systemd: what an administrator does to it, and what containers notice."""

from __future__ import annotations

import json
import subprocess
import zipfile
from pathlib import Path
from typing import Any

from tests.bed.parts import BUSYBOX_IMAGE, ROOT
from tests.systemd.node import COMMANDS, CONFIG, DROP_IN, Node, install_package

UNITS = ("gpushared.service", "gpushared.socket", "gpushared.sysusers.conf", "gpushared.tmpfiles.conf")


def test_the_wheel_brings_the_units(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as files:
        for name in UNITS:
            assert files.read(f"gpushared/data/systemd/{name}") == (ROOT / "systemd" / name).read_bytes()


def test_install_says_each_deed_and_what_comes_next(machine: Node) -> None:
    """Twice in a row nothing changes; the units run the commands of the environment it was called from."""
    output = machine.check(f"{COMMANDS}/gpushared", "install").splitlines()
    assert output == [
        "unchanged /etc/systemd/system/gpushared.service",
        "unchanged /etc/systemd/system/gpushared.socket",
        "unchanged /etc/sysusers.d/gpushared.conf",
        "unchanged /etc/tmpfiles.d/gpushared.conf",
        "ran systemd-sysusers /etc/sysusers.d/gpushared.conf",
        "ran systemd-tmpfiles --create /etc/tmpfiles.d/gpushared.conf",
        "ran systemctl daemon-reload",
        "unchanged /usr/local/bin/gpushare",
        "unchanged /usr/local/share/bash-completion/completions/gpushare",
        "unchanged /usr/local/share/zsh/site-functions/_gpushare",
        "unchanged /usr/local/share/fish/vendor_completions.d/gpushare.fish",
        "next: systemctl enable --now gpushared",
    ]
    assert f"path={COMMANDS}/gpushared ;" in machine.show("ExecStart")
    assert machine.check("getent", "group", "gpushare").startswith("gpushare:")


def test_install_below_a_prefix_needs_no_rights_and_touches_nothing_else(machine: Node) -> None:
    as_nobody = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")
    output = machine.check(*as_nobody, f"{COMMANDS}/gpushared", "install", "--prefix", "/tmp/image")
    assert output.splitlines() == [
        "wrote /tmp/image/etc/systemd/system/gpushared.service",
        "wrote /tmp/image/etc/systemd/system/gpushared.socket",
        "wrote /tmp/image/etc/sysusers.d/gpushared.conf",
        "wrote /tmp/image/etc/tmpfiles.d/gpushared.conf",
        "wrote /tmp/image/usr/local/bin/gpushare",
        "wrote /tmp/image/usr/local/share/bash-completion/completions/gpushare",
        "wrote /tmp/image/usr/local/share/zsh/site-functions/_gpushare",
        "wrote /tmp/image/usr/local/share/fish/vendor_completions.d/gpushare.fish",
    ]
    machine.check("rm", "-r", "/tmp/image")


def test_install_without_rights_says_what_to_do(machine: Node) -> None:
    machine.check("rm", "/etc/systemd/system/gpushared.service")
    as_nobody = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")
    answer = machine.machine.run(*as_nobody, f"{COMMANDS}/gpushared", "install")
    assert answer.returncode == 125
    assert answer.stdout == ""
    assert "/etc/systemd/system/gpushared.service cannot be written" in answer.stderr
    assert "sudo" in answer.stderr


def test_install_without_systemd_says_so(machine: Node) -> None:
    """Neither the manager nor its command is there."""
    script = f"mount -t tmpfs tmpfs /run/systemd && PATH=/nowhere exec {COMMANDS}/gpushared install"
    answer = machine.machine.run("unshare", "--mount", "sh", "-c", script)
    assert answer.returncode == 2
    assert "there is no systemd on this machine" in answer.stderr
    assert "--prefix" in answer.stderr


def test_a_started_service_answers_and_its_status_says_what_it_serves(machine: Node) -> None:
    machine.check("systemctl", "enable", "--now", "gpushared")
    assert machine.show("ActiveState") == "active"
    assert machine.gpushare("gpus").returncode == 0
    told = "1 simulated GPUs, 0 leases, 0 queued"
    machine.wait_until("the status says so", lambda: machine.show("StatusText") == told)
    assert machine.check("systemctl", "is-enabled", "gpushared.socket") == "enabled"
    machine.check("systemctl", "disable", "gpushared")


def test_the_first_call_starts_the_service(machine: Node) -> None:
    machine.check("systemctl", "start", "gpushared.socket")
    assert machine.show("ActiveState") == "inactive"
    assert machine.gpushare("gpus").returncode == 0
    assert machine.show("ActiveState") == "active"


def test_a_leased_container_runs_behind_real_mps(running: Node) -> None:
    """Exit code, limits and the control daemon's socket arrive inside."""
    script = "env; test -S /run/gpushare/mps/control && echo met; exit 3"
    answer = running.gpushare(
        *("run", "--rm", "--gpu", "0.25", "--network", "none", BUSYBOX_IMAGE, "sh", "-c", script)
    )
    assert answer.returncode == 3, answer.stderr
    inside = answer.stdout.splitlines()
    assert "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=25" in inside
    assert "GPUSHARE_MEMORY_WALL=mps-client" in inside
    assert "met" in inside


def test_a_restart_touches_neither_container_nor_lease_nor_mps(running: Node) -> None:
    running.run_container("survivor")
    before = (running.lease_of("survivor"), _started_at(running), running.mps_pids())
    daemon = running.main_pid()
    running.check("systemctl", "restart", "gpushared")
    assert running.main_pid() != daemon
    assert (running.lease_of("survivor"), _started_at(running), running.mps_pids()) == before
    assert before[0][1] == "active"
    assert before[2]


def test_stop_leaves_containers_alone_and_start_knows_them(running: Node) -> None:
    running.run_container("survivor")
    lease, started_at = running.lease_of("survivor"), _started_at(running)
    running.check("systemctl", "stop", "gpushared.socket", "gpushared.service")
    assert running.gpushare("ps").returncode == 125
    assert running.mps_pids()
    running.check("systemctl", "start", "gpushared")
    assert (running.lease_of("survivor"), _started_at(running)) == (lease, started_at)


def test_a_call_during_a_restart_waits_instead_of_failing(running: Node) -> None:
    """The start is held up; the call made meanwhile gets its answer from the next daemon."""
    held = "[Service]\nExecStartPre=/bin/sh -c 'until [ -e /tmp/go ]; do sleep 0.05; done'\n"
    running.write(DROP_IN, held)
    running.check("systemctl", "daemon-reload")
    running.check("systemctl", "restart", "--no-block", "gpushared")
    running.wait_until("the start is held up", lambda: running.show("ActiveState") == "activating")
    call = subprocess.Popen(
        [*_exec(running), f"{COMMANDS}/gpushare", "ps", "-o", "ids"], stderr=subprocess.PIPE, text=True
    )
    running.wait_until(
        "the call is at the socket", lambda: "gpushare ps" in running.check("ps", "ax", "-o", "args")
    )
    assert call.poll() is None
    running.check("touch", "/tmp/go")
    _, complaint = call.communicate(timeout=60)
    assert call.returncode == 0, complaint
    running.check("rm", "/tmp/go")


def test_reload_takes_new_presets_over(running: Node) -> None:
    daemon = running.main_pid()
    running.shell(f"printf '[presets.small]\\ngpu = \"0.25\"\\n' >>{CONFIG}")
    running.check("systemctl", "reload", "gpushared")
    running.wait_until("the preset is known", lambda: "small" in running.gpushare("presets").stdout)
    assert running.main_pid() == daemon
    assert running.show("ActiveState") == "active"
    running.wait_until("the status is back", lambda: "0 leases" in running.show("StatusText"))


def test_reload_of_a_broken_configuration_fails_and_the_old_one_stays(running: Node) -> None:
    daemon = running.main_pid()
    running.shell(f"printf '[presets.tiny]\\ngpuu = \"0.25\"\\n' >>{CONFIG}")
    answer = running.machine.run("systemctl", "reload", "gpushared")
    assert answer.returncode != 0
    assert "gpuu" in running.log()
    assert running.main_pid() == daemon
    assert running.show("ActiveState") == "active"
    assert running.gpushare("ps").returncode == 0


def test_a_hangup_with_a_broken_configuration_keeps_the_old_one(running: Node) -> None:
    """Who sends the signal without systemctl is no worse off."""
    daemon = running.main_pid()
    running.shell(f"printf 'nonsense' >>{CONFIG}")
    running.check("kill", "-HUP", str(daemon))
    running.wait_until("the status says so", lambda: "the old one stays" in running.show("StatusText"))
    assert "the old one stays: " in running.log()
    assert running.main_pid() == daemon
    assert running.gpushare("ps").returncode == 0


def test_a_killed_daemon_is_back_with_its_leases(running: Node) -> None:
    running.run_container("survivor")
    lease, mps = running.lease_of("survivor"), running.mps_pids()
    daemon = running.main_pid()
    running.check("kill", "-KILL", str(daemon))
    # The call waits in the socket until systemd has started the next one.
    assert running.gpushare("ps").returncode == 0
    running.wait_until_active()
    assert running.main_pid() not in {0, daemon}
    assert running.lease_of("survivor") == lease
    assert running.mps_pids() == mps


def test_a_daemon_that_hangs_is_noticed_and_replaced(machine: Node) -> None:
    machine.write(DROP_IN, "[Service]\nWatchdogSec=2\n")
    machine.check("systemctl", "daemon-reload")
    machine.check("systemctl", "start", "gpushared")
    machine.run_container("survivor")
    lease, daemon = machine.lease_of("survivor"), machine.main_pid()
    machine.check("kill", "-STOP", str(daemon))
    machine.wait_until("it was replaced", lambda: machine.main_pid() not in {0, daemon})
    machine.wait_until_active()
    assert "Watchdog timeout" in machine.log()
    assert machine.lease_of("survivor") == lease


def test_a_daemon_that_is_fine_is_not_disturbed_by_a_short_watchdog(machine: Node) -> None:
    """Signs of life come twice as often as they must."""
    machine.write(DROP_IN, "[Service]\nWatchdogSec=2\n")
    machine.check("systemctl", "daemon-reload")
    machine.check("systemctl", "start", "gpushared")
    signs: set[str] = set()

    def has_more_signs() -> bool:
        signs.add(machine.show("WatchdogTimestampMonotonic"))
        return len(signs) > 3

    machine.wait_until("signs of life", has_more_signs)
    assert machine.show("NRestarts") == "0"


def test_a_broken_configuration_ends_the_start_and_is_not_tried_for_ever(machine: Node) -> None:
    machine.shell(f"printf '[quque]\\n' >>{CONFIG}")
    answer = machine.machine.run("systemctl", "start", "gpushared")
    assert answer.returncode != 0
    assert machine.show("ExecMainStatus") == "2"
    assert machine.show("NRestarts") == "0"
    assert "queue" in machine.log()


def test_after_the_configuration_is_mended_a_restart_serves_again(machine: Node) -> None:
    """Calls fail meanwhile instead of hanging; systemd, which gives the socket up, opens it again."""
    # On a busy machine five starts take longer than the unit's 17 s.
    machine.write(DROP_IN, "[Unit]\nStartLimitIntervalSec=120\n")
    machine.check("systemctl", "daemon-reload")
    machine.shell(f"cp {CONFIG} /tmp/right && printf '[quque]\\n' >>{CONFIG}")
    machine.check("systemctl", "start", "gpushared.socket")
    assert machine.gpushare("ps").returncode == 125
    machine.wait_until("systemd has given up", lambda: _state_of_socket(machine) == "failed")
    machine.check("mv", "/tmp/right", CONFIG)
    # Whoever is quicker than StartLimitIntervalSec must say that the failures are dealt with.
    machine.check("systemctl", "reset-failed", "gpushared")
    machine.check("systemctl", "restart", "gpushared")
    assert machine.gpushare("ps").returncode == 0


def test_an_upgrade_in_place_keeps_containers_and_leases(running: Node) -> None:
    """New package, ``gpushared install``, restart: units that an older version left are replaced."""
    running.run_container("survivor")
    lease = running.lease_of("survivor")
    running.shell("sed -i 's/^WatchdogSec=.*/WatchdogSec=77/' /etc/systemd/system/gpushared.service")
    install_package(running.machine, "--force-reinstall", "--no-deps")
    output = running.check(f"{COMMANDS}/gpushared", "install").splitlines()
    assert output[:2] == [
        "replaced /etc/systemd/system/gpushared.service",
        "unchanged /etc/systemd/system/gpushared.socket",
    ]
    assert output[-1].startswith("next: systemctl restart gpushared")
    running.check("systemctl", "restart", "gpushared")
    assert running.show("WatchdogUSec") == "30s"
    assert running.lease_of("survivor") == lease


def test_no_hardening_closes_the_gpus(running: Node) -> None:
    """Some settings bring a device list with them, and a list without NVIDIA's devices shuts them out."""
    assert running.show("DevicePolicy") == "auto"
    assert running.show("DeviceAllow") == ""
    assert running.show("PrivateDevices") == "no"


def test_at_boot_it_is_ready_before_docker_starts_and_does_not_wait_for_it(machine: Node) -> None:
    """Docker's socket is open from early on, but answers nothing before its service may start, after ours."""
    socket = "/run/docker-at-boot.sock"
    machine.shell(f"sed -i 's|^socket = .*|socket = \"{socket}\"|' {CONFIG}")
    for unit, text in _docker_units(socket).items():
        machine.write(f"/etc/systemd/system/{unit}", text)
    machine.check("systemctl", "daemon-reload")
    machine.check("systemctl", "start", "boot.target")
    docker_started = machine.check(
        "systemctl", "show", "--value", "--property", "ExecMainStartTimestampMonotonic", "docker.service"
    )
    assert 0 < int(machine.show("ActiveEnterTimestampMonotonic")) <= int(docker_started)
    journal = machine.check("journalctl", "--boot", "--no-pager")
    assert "ordering cycle" not in journal
    # The engine never answers here, so whoever waits for it is still waiting.
    assert machine.show("StatusText") == "waiting for the Docker engine"
    machine.check("systemctl", "stop", "docker.service", "docker.socket")
    machine.check("rm", *(f"/etc/systemd/system/{unit}" for unit in _docker_units(socket)))


def _state_of_socket(node: Node) -> str:
    return node.check("systemctl", "show", "--value", "--property", "ActiveState", "gpushared.socket")


def _started_at(node: Node) -> str:
    return node.engine.check("inspect", "--format", "{{.State.StartedAt}} {{.State.Pid}}", "survivor")


def _exec(node: Node) -> list[str]:
    from tests.bed.parts import DOCKER, PLAIN_SOCKET

    return [str(DOCKER), "-H", f"unix://{PLAIN_SOCKET}", "exec", node.machine.container_id]


def _docker_units(socket: str) -> dict[str, str]:
    """Units that depend on each other as those of Docker's packages do, and a boot that wants all of them."""
    return {
        "docker.socket": f"[Socket]\nListenStream={socket}\n",
        "docker.service": "[Unit]\nAfter=network-online.target docker.socket\nWants=network-online.target\n"
        "Requires=docker.socket\n[Service]\nExecStart=/bin/sleep infinity\n",
        "boot.target": "[Unit]\nWants=docker.service docker.socket gpushared.service gpushared.socket\n",
    }


def checks(node: Node) -> dict[str, dict[str, Any]]:
    output = node.machine.run(f"{COMMANDS}/gpushare", "doctor", "--json", "--all").stdout
    return {item["name"]: item for item in json.loads(output)["items"]}


def test_a_fresh_installation_is_well(running: Node) -> None:
    """The unit's walls close nothing that the doctor has to see, and what it sees is as the unit says."""
    found = checks(running)
    assert [name for name, item in found.items() if item["status"] == "failed"] == []
    assert found["service-unit"]["detail"].startswith("gpushared.service leaves containers alone")
    assert found["journal-disk"]["detail"].startswith("/var/lib/gpushared, ")
    assert "could not be looked at" not in json.dumps(found)


def test_a_drop_in_that_would_kill_mps_at_a_restart_is_found(running: Node) -> None:
    running.write(DROP_IN, "[Service]\nKillMode=control-group\n")
    running.check("systemctl", "daemon-reload")
    found = checks(running)["service-unit"]
    assert found["status"] == "failed"
    assert "KillMode=process" in found["fix"]


def test_journald_has_each_line_with_its_fields(running: Node) -> None:
    drained = running.gpushare("drain", "0", "--reason", "new fan")
    assert drained.returncode == 0, drained.stderr
    written = running.check("journalctl", "--output=json", "GPUSHARE_UID=0", "GPUSHARE_ENDPOINT=Gpus/Drain")
    (line,) = map(json.loads, written.splitlines())
    assert (line["GPUSHARE_METHOD"], line["GPUSHARE_NAME"], line["GPUSHARE_STATUS"]) == ("CALL", "0", "200")
    assert line["_SYSTEMD_UNIT"] == "gpushared.service"
    assert line["MESSAGE"].startswith("audit root (uid 0, pid ")
    assert line["GPUSHARE_EXE"]
    assert running.gpushare("undrain", "0").returncode == 0
