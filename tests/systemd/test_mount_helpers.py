"""What the service's sandbox leaves to the helpers that hold users' mounts and mount containers' layers."""

from __future__ import annotations

from tests.systemd.node import COMMANDS, CONFIG, DROP_IN, Node

RELAY = """
import socket, sys, threading
def copy(source, target):
    while data := source.recv(65536):
        target.sendall(data)
    target.shutdown(socket.SHUT_WR)
listener = socket.socket(socket.AF_UNIX)
listener.bind("/run/engine.sock")
listener.listen()
while True:
    client, _ = listener.accept()
    engine = socket.socket(socket.AF_UNIX)
    engine.connect(sys.argv[1])
    for pair in ((client, engine), (engine, client)):
        threading.Thread(target=copy, args=pair, daemon=True).start()
"""
LAYERS = """
import os
from gpushared.gate.mounts import kernel, mount_helper
mount_helper.enter_machine()
for name in ("lower", "upper", "work"):
    os.makedirs(f"/run/layers/{name}")
os.chdir("/run/layers")
top = kernel.mount_overlay(["lower"], "upper", "work")
os.fchdir(top)
os.chroot(".")
os.close(os.open("file", os.O_WRONLY | os.O_CREAT))
"""


def test_the_service_may_mount_layers_and_leaves_no_mount(machine: Node) -> None:
    machine.write("/run/layers.py", LAYERS)
    machine.write(DROP_IN, f"[Service]\nExecStartPre={COMMANDS}/python /run/layers.py\n")
    machine.check("systemctl", "daemon-reload")
    machine.check("systemctl", "start", "gpushared")
    assert machine.check("ls", "/run/layers/upper").split() == ["file"]
    assert machine.machine.run("grep", "layers", "/proc/1/mountinfo").returncode == 1


def test_the_service_may_mount_where_the_machines_first_process_sees_it(machine: Node) -> None:
    """A process of this machine stands for its engine, which itself sees mounts of another machine."""
    machine.write("/run/relay.py", RELAY)
    relay = ("python3", "/run/relay.py", machine.engine.socket)
    machine.check("systemd-run", "--unit=relay", *relay)
    machine.wait_until(
        "it listens", lambda: machine.machine.run("test", "-S", "/run/engine.sock").returncode == 0
    )
    config = '[engine]\nsocket = "/run/engine.sock"\n[gpus]\nsimulate = "h100:1"\n'
    machine.write(CONFIG, config)
    machine.check("systemctl", "start", "gpushared")

    def told() -> str:
        output = machine.machine.run(f"{COMMANDS}/gpushare", "doctor", "--all").stdout
        return next((line for line in output.splitlines() if "mount-pins" in line), "")

    machine.wait_until("the trial was made", lambda: "the engine does not see them" in told())
    point = machine.check("findmnt", "--noheadings", "--output", "FSTYPE,PROPAGATION", "/run/gpushare-pins")
    assert point.split() == ["tmpfs", "private"]
    machine.check("systemctl", "stop", "relay")


def test_an_engine_in_another_pid_namespace_is_told_as_what_is_in_the_way(running: Node) -> None:
    def told() -> str:
        output = running.machine.run(f"{COMMANDS}/gpushare", "doctor", "--all").stdout
        return next((line for line in output.splitlines() if "mount-pins" in line), "")

    running.wait_until("it is told", lambda: "another PID namespace" in told())
