"""Files of the host in a container, and files of a container on the host."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Callable

from tests.redteam.attack import BOTH, Attack, How, Response, Threat, asks, creates, docker, plain_body, runs
from tests.redteam.attacked_machine import AttackedMachine

FILES = Threat.FILES
MAY_NOT = "may not be mounted"
CANNOT = "cannot be mounted"
NOT_FOR_YOU = "not for you"


def binds(source: str, *, options: str = "") -> How:
    return creates({"Binds": [f"{source}:/x{options}"]}, command="cat /x /x/* 2>/dev/null; ls -laR /x")


def mounts(**mount: object) -> How:
    return creates({"Mounts": [{"Target": "/x", **mount}]}, command="ls -laR /x")


def through_a_link(to: str) -> How:
    """Mount a link of the attacker's own that leads elsewhere."""

    def how(machine: AttackedMachine) -> Response:
        machine.attacker.python("os.symlink(to, at)", to=machine.fill(to), at=str(machine.home / "link"))
        return binds("{home}/link")(machine)

    return how


def swapped(between: Callable[[AttackedMachine], None]) -> How:
    """Create with a directory of one's own, put a link in its place, start, read."""

    def how(machine: AttackedMachine) -> Response:
        machine.attacker.python("os.makedirs(at)", at=str(machine.home / "a/b"))
        host = {"NetworkMode": "none", "Binds": [f"{machine.home}/a/b:/x:ro"]}
        own = machine.made(plain_body(Cmd=["sh", "-c", "ls -laR /x; cat /x/*"], HostConfig=host))
        between(machine)
        started = machine.ask("POST", f"/containers/{own}/start")
        if not started.is_refusal:
            machine.ask("POST", f"/containers/{own}/wait")
            machine.ask("GET", f"/containers/{own}/logs?stdout=1&stderr=1")
            source = machine.as_engine("GET", f"/containers/{own}/json")["State"]["ExitCode"]
            return Response(200, str(source))
        return started

    return how


def swap_last(machine: AttackedMachine) -> None:
    machine.attacker.python(
        "os.rmdir(at); os.symlink(to, at)", at=str(machine.home / "a/b"), to=str(machine.roots_file.parent)
    )


def swap_parent(machine: AttackedMachine) -> None:
    code = "os.rmdir(at + '/b'); os.rmdir(at); os.symlink(to, at)"
    machine.attacker.python(code, at=str(machine.home / "a"), to=str(machine.homes / "roots-link"))


def swap_for_the_victims(machine: AttackedMachine) -> None:
    machine.attacker.python(
        "os.rmdir(at); os.symlink(to, at)", at=str(machine.home / "a/b"), to=str(machine.victims_home)
    )


def archive(
    machine: AttackedMachine, host: dict[str, object], *, path: str, entry: tarfile.TarInfo, data: bytes = b""
) -> Response:
    """``docker cp`` of one entry into a stopped container of the attacker's own, which then tries it."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as tar:
        entry.size = len(data)
        tar.addfile(entry, io.BytesIO(data))
    tries = f"ls -l {path}; {path}/evil; cat {path}/evil"
    own = machine.made(plain_body(Cmd=["sh", "-c", tries], HostConfig={"NetworkMode": "none", **host}))
    told = machine.ask("PUT", f"/containers/{own}/archive?path={path}", made.getvalue())
    if told.is_refusal:
        return told
    machine.ask("POST", f"/containers/{own}/start")
    machine.ask("POST", f"/containers/{own}/wait")
    return machine.ask("GET", f"/containers/{own}/logs?stdout=1&stderr=1")


def entry(
    *, mode: int = 0o4755, kind: bytes = tarfile.REGTYPE, device: tuple[int, int] = (0, 0), link: str = ""
) -> tarfile.TarInfo:
    made = tarfile.TarInfo("evil")
    made.mode, made.type, made.linkname = mode, kind, link
    made.devmajor, made.devminor = device
    return made


def set_uid_through_a_mount(machine: AttackedMachine) -> Response:
    return archive(
        machine, {"Binds": [f"{machine.home}:/x"]}, path="/x", entry=entry(), data=b"#!/bin/sh\nid\n"
    )


def set_uid_inside(machine: AttackedMachine) -> Response:
    return archive(machine, {}, path="/tmp", entry=entry(mode=0o6777), data=b"#!/bin/sh\nid\n")


def device_inside(machine: AttackedMachine) -> Response:
    """Node of GPU 0, readable by all, made by the engine as root."""
    told = archive(machine, {}, path="/tmp", entry=entry(mode=0o666, kind=tarfile.CHRTYPE, device=(1, 1)))
    assert "root" not in told.message or "not permitted" in told.message, told
    return told


def out_through_a_link(machine: AttackedMachine) -> Response:
    """A link of the container's that leads to the host's files, if the engine followed it outside."""
    own = machine.made(plain_body())
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as tar:
        tar.addfile(entry(kind=tarfile.SYMTYPE, link=str(machine.roots_file.parent)))
    told = machine.ask("PUT", f"/containers/{own}/archive?path=/tmp", made.getvalue())
    return told if told.is_refusal else machine.ask("GET", f"/containers/{own}/archive?path=/tmp/evil/file")


def out_through_a_mount(machine: AttackedMachine) -> Response:
    own = machine.made(plain_body(HostConfig={"NetworkMode": "none", "Binds": [f"{machine.home}:/x"]}))
    return machine.ask("GET", f"/containers/{own}/archive?path=/x")


def label_of_another(machine: AttackedMachine) -> Response:
    """An anonymous volume that passes for the victim's."""
    options = {"Labels": {"gpushare.owner": "{victim}"}}
    host = {"NetworkMode": "none", "Mounts": [{"Type": "volume", "Target": "/x", "VolumeOptions": options}]}
    told = machine.ask("POST", "/containers/create", machine.fill_body(plain_body(HostConfig=host)))
    labels = [one["Labels"] or {} for one in machine.as_engine("GET", "/volumes")["Volumes"]]
    forged = [one for one in labels if one.get("gpushare.owner") == machine.fill("{victim}")]
    return told if len(forged) == 1 else Response(0, f"{len(forged) - 1} volumes pass for the victim's")


def hard_link(machine: AttackedMachine) -> Response:
    """The kernel's own answer, where it protects links; else the program may not read it either."""
    machine.attacker.python(
        "try: os.link(to, at)\nexcept OSError: open(at, 'w').close()",
        to=str(machine.roots_file),
        at=str(machine.home / "hard"),
    )
    return binds("{home}/hard")(machine)


def missing(machine: AttackedMachine) -> Response:
    """Nothing may be made, least of all by root."""
    told = binds("{homes}/new/directory".replace("{homes}", str(machine.homes)))(machine)
    assert not (machine.homes / "new").exists()
    return told


def fifo(machine: AttackedMachine) -> Response:
    machine.attacker.python("os.mkfifo(at)", at=str(machine.home / "fifo"))
    return creates({"Binds": ["{home}/fifo:/x"]}, command="true")(machine)


def socket_of_ones_own(machine: AttackedMachine) -> Response:
    code = "s = socket.socket(socket.AF_UNIX); s.bind(at); s.close()"
    machine.attacker.python(code, at=str(machine.home / "sock"))
    return creates({"Binds": ["{home}/sock:/x"]}, command="true")(machine)


def set_uid_by_the_container(machine: AttackedMachine) -> Response:
    """In a mounted directory of one's own: it is one's own file, and gains nothing inside."""
    command = "cp /bin/busybox /x/su; chmod 4755 /x/su; /x/su id -u; rm /x/su"
    return creates({"Binds": ["{home}:/x"]}, command=command)(machine)


def links_while_it_is_given(machine: AttackedMachine) -> Response:
    """A program puts links into a volume while the daemon gives it to the attacker, again and again."""
    name = "mallorys-links"
    host = {"NetworkMode": "none", "Binds": [f"{name}:/w"]}
    swaps = f"while :; do ln -s {machine.roots_file} /w/a; rm -f /w/a; mkdir /w/a; rmdir /w/a; done"
    running = machine.made(plain_body(Cmd=["sh", "-c", swaps], HostConfig=host))
    machine.ask("POST", f"/containers/{running}/start")
    try:
        for _ in range(8):
            machine.made(plain_body(Cmd=["true"], HostConfig=host))
    finally:
        machine.ask("POST", f"/containers/{running}/kill")
    owner = machine.roots_file.stat().st_uid
    return Response(200) if owner == 0 else Response(0, f"root's file belongs to {owner}")


ATTACKS = [
    Attack("mount-of-the-whole-machine", FILES, runs("-v", "/:/host"), refused=MAY_NOT, on=BOTH),
    Attack("mount-of-the-systems-settings", FILES, runs("-v", "/etc:/x:ro"), refused="mounted"),
    Attack(
        "mount-of-the-engines-socket", Threat.SOCKETS, runs("-v", "{engine}:/x"), refused="mounted", on=BOTH
    ),
    Attack(
        "mount-of-the-daemons-socket",
        Threat.SOCKETS,
        runs("-v", "{runtime}/gpushared.sock:/x"),
        refused=MAY_NOT,
    ),
    Attack(
        "mount-of-the-daemons-directory", Threat.SOCKETS, runs("-v", "{runtime}:/x"), refused=MAY_NOT, on=BOTH
    ),
    Attack("mount-of-another-home", FILES, binds("{victims_home}"), refused=CANNOT, on=BOTH),
    Attack("mount-of-a-file-of-root", FILES, binds("{roots}/file", options=":ro"), refused=CANNOT),
    Attack("mount-by-dots", FILES, binds("{home}/../alice"), refused=CANNOT),
    Attack("mount-by-the-roots-of-a-process", FILES, binds("/proc/self/root/etc"), refused="mounted"),
    Attack("mount-of-the-processes", FILES, binds("/proc/1/root"), refused="mount"),
    Attack("mount-of-the-kernels-settings", Threat.ROOT, binds("/sys"), refused=MAY_NOT),
    Attack("mount-of-the-devices", Threat.GPU, binds("/dev"), refused=MAY_NOT, on=BOTH),
    Attack("mount-through-a-link-of-ones-own", FILES, through_a_link("{roots}"), refused=CANNOT),
    Attack("mount-through-a-link-to-the-top", FILES, through_a_link("/"), refused=MAY_NOT),
    Attack("mount-through-a-link-of-a-process", FILES, through_a_link("/proc/self/root"), refused="mount"),
    Attack(
        "mount-swapped-for-a-link", FILES, swapped(swap_last), refused="create the container anew", on=BOTH
    ),
    Attack(
        "mount-swapped-for-another-home", FILES, swapped(swap_for_the_victims), refused="cannot be mounted"
    ),
    Attack("mount-with-a-parent-swapped", FILES, swapped(swap_parent), refused="cannot be mounted"),
    Attack("mount-of-a-hard-link", FILES, hard_link, harmless="the program may read no more than its user"),
    Attack("mount-of-a-missing-directory", FILES, missing, refused="does not exist"),
    Attack("mount-of-a-pipe", FILES, fifo, refused="neither a file nor a directory"),
    Attack("mount-of-a-socket", Threat.SOCKETS, socket_of_ones_own, refused="neither a file nor a directory"),
    Attack(
        "mount-that-spreads-to-the-host", Threat.ROOT, binds("{home}", options=":shared"), refused=NOT_FOR_YOU
    ),
    Attack(
        "mount-that-spreads-by-an-object",
        Threat.ROOT,
        mounts(Type="bind", Source="{home}", BindOptions={"Propagation": "rshared"}),
        refused="always private",
        on=BOTH,
    ),
    Attack("mount-relabelled", FILES, binds("{home}", options=":Z"), refused=NOT_FOR_YOU),
    Attack("mount-of-an-image", FILES, mounts(Type="image", Source="{image}"), refused="mounts of type"),
    Attack(
        "mount-of-a-pipe-by-type",
        Threat.SOCKETS,
        mounts(Type="npipe", Source="{engine}"),
        refused="mounts of type",
    ),
    Attack(
        "mount-of-a-cluster-volume",
        FILES,
        mounts(Type="cluster", Source="x"),
        refused="mounts of type",
        on=BOTH,
    ),
    Attack(
        "mount-options-in-small-letters",
        FILES,
        mounts(type="bind", Type="tmpfs", source="/"),
        refused="is not a field",
    ),
    Attack(
        "volume-with-a-device-of-ones-choice",
        FILES,
        mounts(
            Type="volume",
            VolumeOptions={
                "DriverConfig": {"Name": "local", "Options": {"type": "none", "o": "bind", "device": "/"}}
            },
        ),
        refused="no driver options",
        on=BOTH,
    ),
    Attack(
        "volume-made-with-a-device",
        FILES,
        docker("volume", "create", "-o", "type=none", "-o", "o=bind", "-o", "device=/", "mallorys-v"),
        refused="may not be set",
    ),
    Attack(
        "volume-with-another-driver",
        FILES,
        docker("volume", "create", "-d", "evil", "mallorys-v"),
        refused="not allowed for you",
    ),
    Attack(
        "volume-of-another",
        FILES,
        runs("-v", "{volume}:/x", command=("cat", "/x/file")),
        refused="No such volume",
        on=BOTH,
    ),
    Attack(
        "volume-of-another-by-subpath",
        FILES,
        mounts(Type="volume", Source="{volume}", VolumeOptions={"Subpath": "file"}),
        refused="driver options",
    ),
    Attack("volume-called-as-a-path", FILES, mounts(Type="volume", Source="/etc"), refused="No such volume"),
    Attack("volume-called-as-dots", FILES, mounts(Type="volume", Source="../../alice"), refused="volume"),
    Attack(
        "volume-read-by-its-description",
        Threat.LEAK,
        docker("volume", "inspect", "{volume}"),
        refused="o such volume",
    ),
    Attack(
        "volume-of-another-removed",
        Threat.SHARED,
        docker("volume", "rm", "-f", "{volume}"),
        refused="o such volume",
    ),
    Attack(
        "volume-label-of-another",
        Threat.IDENTITY,
        label_of_another,
        harmless="labels of gpushare's are the gate's to set",
    ),
    Attack(
        "volume-of-links-that-is-given",
        FILES,
        links_while_it_is_given,
        harmless="a volume is given by its open files, and nothing by links or mounts",
        on=BOTH,
    ),
    Attack(
        "volumes-from-another-container",
        FILES,
        runs("--volumes-from", "{box}"),
        refused="VolumesFrom may not be set",
    ),
    Attack(
        "tmpfs-with-devices-and-set-uid",
        Threat.ROOT,
        creates(
            {"Tmpfs": {"/x": "exec,suid,dev"}}, command="cp /bin/busybox /x/su; chmod 4755 /x/su; /x/su id"
        ),
        refused="is not allowed for you",
    ),
    Attack(
        "tmpfs-options-of-an-object",
        Threat.ROOT,
        mounts(Type="tmpfs", TmpfsOptions={"Options": [["suid"]]}),
        refused="may not be set",
    ),
    Attack(
        "set-uid-in-ones-own-mount",
        Threat.ROOT,
        set_uid_by_the_container,
        harmless="the file is the caller's own",
    ),
    Attack(
        "copy-set-uid-through-a-mount",
        Threat.ROOT,
        set_uid_through_a_mount,
        refused="cannot be written",
        on=BOTH,
    ),
    Attack(
        "copy-set-uid-into-a-container", Threat.ROOT, set_uid_inside, harmless="inside it gives no rights"
    ),
    Attack(
        "copy-a-device-into-a-container",
        Threat.GPU,
        device_inside,
        harmless="the container's cgroup admits no device but a lease's",
    ),
    Attack("copy-out-through-a-link", FILES, out_through_a_link, refused="ould not find"),
    Attack("copy-out-through-a-mount", FILES, out_through_a_mount, refused="cannot be read"),
    Attack(
        "copy-out-of-anothers-container",
        Threat.CONTAINERS,
        docker("cp", "{box}:/etc/passwd", "-"),
        refused="o such container",
    ),
    Attack(
        "copy-into-anothers-container",
        Threat.CONTAINERS,
        asks("PUT", "/containers/{box}/archive?path=/tmp", b"x"),
        refused="no plain tar",
    ),
]
