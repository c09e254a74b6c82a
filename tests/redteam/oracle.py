"""What must hold after every attack, whatever the attacker was told."""

from __future__ import annotations

import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.node.daemon import connected
from tests.redteam.attacked_machine import ATTACKER, VICTIM, AttackedMachine

Json = dict[str, Any]
NO_MODES = {"", "private", "shareable", "none", "default", "bridge"}
FORBIDDEN_IN_MOUNTS = ("docker.sock", "gpushared.sock", "/inner", "/s/", "nvidia", "/mps")
NO_CAPABILITY = "0" * 16


class Oracle:
    """Knows how the machine was before the first attack, and says what is another way now."""

    def __init__(self, machine: AttackedMachine) -> None:
        self._machine = machine
        self._before = self._snapshot()
        self._containers = {one["Id"] for one in machine.as_engine("GET", "/containers/json?all=1")}

    def look(self) -> list[str]:
        """What was reached; empty where nothing was. What the attacker left is cleared away."""
        try:
            looks = (self._service, self._secrets, self._files, self._others, self._made)
            return [harm for look in looks for harm in look()]
        finally:
            self._clear()

    # --- what the attacker read and wrote ---

    def _secrets(self) -> Iterator[str]:
        read = b"".join(self._machine.attacker.seen)
        self._machine.attacker.seen.clear()
        for whose, word in self._machine.canaries.items():
            if word.encode() in read:
                yield f"the attacker read {whose}"

    def _files(self) -> Iterator[str]:
        for path in self._machine.homes.rglob("*"):
            found = path.lstat()
            if found.st_mode & (stat.S_ISUID | stat.S_ISGID) and stat.S_ISREG(found.st_mode):
                yield f"{path} is set-uid"
            if stat.S_ISCHR(found.st_mode) or stat.S_ISBLK(found.st_mode):
                yield f"{path} is a device"
            if path.is_relative_to(self._machine.home) and found.st_uid != ATTACKER:
                yield f"{path} of the attacker's belongs to {found.st_uid}"

    # --- what others have ---

    def _snapshot(self) -> Json:
        ask = self._machine.as_engine
        boxes = [
            ask("GET", f"/containers/{box}/json") for box in (self._machine.box, self._machine.roots_box)
        ]
        volumes = ask("GET", "/volumes")["Volumes"] or []
        return {
            "containers": [_essence(box) for box in boxes],
            "networks": sorted(
                (one["Name"], one["Id"]) for one in ask("GET", "/networks") if not _is_attackers(one)
            ),
            "volumes": sorted((one["Name"], str(one["Labels"])) for one in volumes if not _is_attackers(one)),
            "images": sorted((one["Id"], str(one["RepoTags"])) for one in ask("GET", "/images/json")),
            "leases": sorted(
                (lease["id"], lease["state"], str(lease["grants"]))
                for lease in self._machine.daemon.leases().values()
                if lease["owner_uid"] != str(ATTACKER)
            ),
        }

    def _others(self) -> Iterator[str]:
        now = self._snapshot()
        for what, before in self._before.items():
            if [one for one in now[what] if one in before] != before:
                yield f"{what} changed: {before} became {now[what]}"
            for new in (one for one in now[what] if one not in before):
                # What the attacker makes has his label, and is not among these; networks have no others.
                if what != "networks" or str(VICTIM) in str(new):
                    yield f"{what} are more: {new}"

    # --- what the attacker's containers are ---

    def _made(self) -> Iterator[str]:
        for one in self._machine.as_engine("GET", "/containers/json?all=1"):
            if one["Id"] not in self._containers:
                found = self._machine.as_engine("GET", f"/containers/{one['Id']}/json")
                yield from (f"container {one['Names']}: {what}" for what in self._wrong(found))

    def _wrong(self, found: Json) -> Iterator[str]:
        host, config = found["HostConfig"], found["Config"]
        if config["User"] != f"{ATTACKER}:{ATTACKER}":
            yield f"runs as {config['User']!r}"
        if host["Privileged"] or host["CapAdd"] or host["CapDrop"] != ["ALL"]:
            yield f"has capabilities: {host['CapAdd']} without {host['CapDrop']}"
        if host["SecurityOpt"] != ["no-new-privileges"]:
            yield f"has security options {host['SecurityOpt']}"
        if config["Labels"].get("gpushare.owner") != str(ATTACKER):
            yield f"belongs to {config['Labels'].get('gpushare.owner')!r}"
        for mode in ("PidMode", "IpcMode", "UTSMode", "UsernsMode", "NetworkMode"):
            own = mode == "NetworkMode" and host[mode].startswith("mallorys-")
            if host[mode] not in NO_MODES and not own:
                yield f"has {mode} {host[mode]!r}"
        if host["Devices"] or (host["DeviceRequests"] and not config["Labels"].get("gpushare.device")):
            yield f"has devices {host['Devices']} {host['DeviceRequests']}"
        parent = host["CgroupParent"]
        is_own = self._machine.is_attackers_place(parent) if self._machine.is_bounded else not parent
        if not is_own or host.get("Sysctls") or host["OomScoreAdj"] < 0:
            yield "has a cgroup, kernel settings or a rank of its choice"
        yield from self._wrong_mounts(found)
        if found["State"]["Running"]:
            yield from _wrong_process(found["State"]["Pid"])

    def _wrong_mounts(self, found: Json) -> Iterator[str]:
        leased = bool(found["Config"]["Labels"].get("gpushare.device"))
        for mount in found["Mounts"]:
            source = mount.get("Source", "")
            if mount["Type"] == "volume" and mount.get("Name") == self._machine.volume:
                yield "has the victim's volume"
            if (
                mount["Type"] == "bind"
                and not leased
                and not self._is_users_file(mount)
                and any(
                    word in source.removeprefix(str(self._machine.engine.directory))
                    for word in FORBIDDEN_IN_MOUNTS
                )
            ):
                yield f"has {source} mounted"

    def _is_users_file(self, mount: Json) -> bool:
        """The daemon's file with the attacker's name, at its place and only to be read."""
        own = Path(mount["Source"]).parent == self._machine.daemon.state_dir / "passwd"
        return own and mount["Destination"] == "/etc/passwd" and not mount["RW"]

    # --- whether the daemon still serves ---

    def _service(self) -> Iterator[str]:
        if not self._machine.daemon.running:
            yield "the daemon is gone"
            return
        for request in (b"GET /_ping", b"GET /containers/json"):
            head = self._head(request)
            if b" 200 " not in head:
                yield f"{request.decode()} of the victim's is answered by {head!r}"

    def _head(self, request: bytes) -> bytes:
        try:
            with connected(self._machine.daemon.socket, VICTIM) as channel:
                channel.sendall(request + b" HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
                return channel.recv(64)
        except BlockingIOError:
            return b"a full queue of those who wait to be accepted"

    def _clear(self) -> None:
        ask = self._machine.as_engine
        for one in ask("GET", "/containers/json?all=1"):
            if one["Id"] not in self._containers:
                ask("DELETE", f"/containers/{one['Id']}?force=1&v=1")
        for kind, listed in (
            ("networks", ask("GET", "/networks")),
            ("volumes", ask("GET", "/volumes")["Volumes"]),
        ):
            for one in listed or []:
                if _is_attackers(one):
                    ask("DELETE", f"/{kind}/{one['Name' if kind == 'volumes' else 'Id']}")
        self._machine.attacker.python("held = []")
        for path in sorted(self._machine.home.rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()
        for lease in self._machine.daemon.leases().values():
            if lease["owner_uid"] == str(ATTACKER):
                self._machine.daemon.call("Leases/Stop", {"lease_id": lease["id"], "grace_seconds": 0})


def _is_attackers(one: Json) -> bool:
    return (one["Labels"] or {}).get("gpushare.owner") == str(ATTACKER)


def _essence(found: Json) -> Json:
    """What an attack could have changed of a container."""
    state = found["State"]
    return {
        "name": found["Name"],
        "process": (state["Status"], state["Pid"], state["StartedAt"]),
        "host": found["HostConfig"],
        "networks": sorted(found["NetworkSettings"]["Networks"]),
        "labels": found["Config"]["Labels"],
    }


def _wrong_process(pid: int) -> Iterator[str]:
    """By the kernel's word, which no body and no label can change."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        devices = [one.name for one in Path(f"/proc/{pid}/root/dev").iterdir()]
        mounts = Path(f"/proc/{pid}/mountinfo").read_text()
    except OSError:
        return  # it has ended
    fields = {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}
    if set(fields["Uid"].split()) != {str(ATTACKER)}:
        yield f"its process is uid {fields['Uid']}"
    for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
        if fields[name] != NO_CAPABILITY:
            yield f"its process has {name} {fields[name]}"
    if (fields["NoNewPrivs"], fields["Seccomp"]) != ("1", "2"):
        yield "its process may gain privileges, or make every system call"
    yield from (f"it sees {name}" for name in devices if name.startswith("nvidia"))
    yield from (f"it sees {name}" for name in ("docker.sock", "gpushared.sock") if name in mounts)
