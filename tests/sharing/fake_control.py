"""FAKE: plays nvidia-cuda-mps-control, with servers and clients that a test makes up. No GPU, no CUDA.

The real program of the test bed cannot start a server without a GPU. This one reads its servers from a file
and says so to whoever asks for its version. What both can answer is held together by ``test_contract.py``.
Run as ``fake_control.py DIRECTORY [-f]``; it needs only the standard library, as it starts very often.
"""

from __future__ import annotations

import json
import os
import re
import selectors
import socket
import sys
import time
from pathlib import Path

FULL = "100.0"
GIB = 1024
PRIVILEGED, PUBLIC = "control_privileged", "control"

Servers = dict[str, dict[str, object]]


class Daemon:
    """One daemon: limits in its memory, servers in the file. One peer at a time, as the real one."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.percentage = FULL
        self.memory: dict[str, str] = {}

    def servers(self) -> Servers:
        found: Servers = json.loads((self.directory / "servers.json").read_text())
        return found

    def write(self, servers: Servers) -> None:
        draft = self.directory / "servers.json.draft"
        draft.write_text(json.dumps(servers))
        draft.replace(self.directory / "servers.json")

    def note(self, line: str) -> None:
        with (self.directory / "log").open("a") as log:
            log.write(f"{time.time():.6f} {line}\n")

    def serve(self, pipe: Path) -> None:
        listening = selectors.DefaultSelector()
        for name, mode in ((PRIVILEGED, 0o700), (PUBLIC, 0o666)):
            (pipe / name).unlink(missing_ok=True)
            listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            listener.bind(str(pipe / name))
            (pipe / name).chmod(mode)
            listener.listen(64)
            listening.register(listener, selectors.EVENT_READ)
        while True:
            for key, _ in listening.select():
                listener = key.fileobj  # type: ignore[assignment]
                line, _peer = listener.accept()
                with line:
                    self.converse(line)

    def converse(self, line: socket.socket) -> None:
        while command := line.recv(4096).decode():
            words = command.split()
            self.note(command)
            if words[:1] == ["quit"]:
                self.write({})
                os._exit(0)
            line.send(("\n".join(self.answer(*words)) + "\n").encode())

    def answer(self, command: str = "", *words: str) -> list[str]:
        known = getattr(self, f"do_{command}", None)
        return known(*words) if known else [f'Unknown command "{command}"']

    def do_get_default_active_thread_percentage(self) -> list[str]:
        return [self.percentage]

    def do_set_default_active_thread_percentage(self, value: str = "") -> list[str]:
        if re.fullmatch(r"\d+(\.\d+)?", value) and 0 < float(value) <= float(FULL):
            self.percentage = f"{float(value):.1f}"
        return [self.percentage]

    def do_set_default_device_pinned_mem_limit(self, gpu: str, value: str) -> list[str]:
        mib = int(value.removesuffix("M"))
        self.memory[gpu] = f"{mib // GIB}G" if mib >= GIB else f"{mib}M"
        return []

    def do_get_default_device_pinned_mem_limit(self, gpu: str) -> list[str]:
        return [self.memory.get(gpu, "")]

    def do_get_server_list(self) -> list[str]:
        return list(self.servers())

    def do_get_server_status(self, server: str = "") -> list[str]:
        if not server:
            return ["A server PID is required"]
        found = self.servers().get(server)
        return [f"Server {server} not found"] if found is None else [str(found["state"])]

    def do_get_client_list(self, server: str = "0") -> list[str]:
        found = self.servers().get(server)
        return [f"Server {server} not found"] if found is None else [str(one) for one in _clients(found)]

    def do_terminate_client(self, server: str = "0", client: str = "0") -> list[str]:
        servers = self.servers()
        if server not in servers:
            return [f"Server {server} not found", f"Server {server} not found!", "1"]
        alive = Path(f"/proc/{client}").exists()
        self.note(f"terminated {client} {'alive' if alive else 'dead'}")
        servers[server]["clients"] = [one for one in _clients(servers[server]) if str(one) != client]
        self.write(servers)
        return ["0"]

    def do_shutdown_server(self, server: str = "0", force: str = "") -> list[str]:
        servers = self.servers()
        if server not in servers:
            return [f"Server {server} not found"]
        server_is = servers[server]
        if not server_is.get("undying") and (force or not server_is.get("stubborn")):
            del servers[server]
            self.write(servers)
        return []


def _clients(server: dict[str, object]) -> list[int]:
    clients = server["clients"]
    assert isinstance(clients, list)
    return clients


def ask(pipe: Path) -> int:
    """The other half of the program: commands from standard input, one session."""
    line = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for name in (PRIVILEGED, PUBLIC):
        try:
            line.connect(str(pipe / name))
            break
        except OSError:
            continue
    else:
        sys.stdout.write("Cannot find MPS control daemon process\n")
        return 1
    for command in sys.stdin:
        line.send(command.strip().encode() or b" ")
        sys.stdout.write(line.recv(65536).decode().removeprefix("\n"))
    return 0


def main() -> int:
    directory, *flags = sys.argv[1:]
    pipe = Path(os.environ["CUDA_MPS_PIPE_DIRECTORY"])
    if flags == ["-v"]:
        sys.stdout.write("FAKE MPS control program of gpushared's tests\n")
        return 0
    if flags == ["-f"]:
        Daemon(Path(directory)).serve(pipe)
    return 1 if flags else ask(pipe)


if __name__ == "__main__":
    sys.exit(main())
