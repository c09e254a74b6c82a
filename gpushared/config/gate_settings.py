"""Define the settings of the gate: the trusted groups, and the rights of all other callers.

An unset field follows the preset: ``gpushared.gate.policy.site_presets`` has the values.
"""

from __future__ import annotations

import posixpath
import re
from dataclasses import dataclass
from enum import StrEnum

from gpushared.config.kinds import (
    GROUP,
    HOUR_SECONDS,
    PATH_OR_EMPTY,
    ByteSize,
    Choice,
    Number,
    OrPercent,
    Percent,
    Seconds,
    Table,
    Text,
    TextList,
    ValueKind,
    Whole,
    YesOrNo,
    is_absolute,
    setting,
    toml_string,
)
from gpushared.domain.leases.project_settings import is_user_name

ALL_GPUS = "all"
DEV_PRESET = "dev"
"""Dev containers have this preset in ``lab`` and ``strict``."""
DEV_SHARE = "1/4"
"""Dev containers have this share in ``lab`` and ``strict`` if the site has no such preset."""
PRESET = "preset"
"""This value leaves the choice to the preset."""
ADDABLE = (
    "AUDIT_WRITE",
    "CHOWN",
    "DAC_OVERRIDE",
    "FOWNER",
    "FSETID",
    "IPC_LOCK",
    "KILL",
    "NET_BIND_SERVICE",
    "NET_RAW",
    "SETGID",
    "SETPCAP",
    "SETUID",
    "SYS_CHROOT",
    "SYS_NICE",
    "SYS_PTRACE",
)
"""A site may allow these capabilities. With any other a container could become root of the machine."""
COMMON_DRIVER_CAPABILITIES = ("compute", "utility")
"""Every lease has these parts of NVIDIA's driver: CUDA, and NVML with ``nvidia-smi``."""
DRIVER_CAPABILITIES = ("compat32", "display", "graphics", "ngx", "video")
"""These are the other words of NVIDIA's container toolkit."""
_GPU_WORDS = r"nvidia|nvhost|nvmap|nvgpu|nvsciipc|dri(/|$)|kfd|dxg|gpushare|vfio|mali|galcore|xdma"
_MEMORY_WORDS = (
    r"k?mem$|port$|kmsg|nvram|cpu(/|_)|hpet|mcelog|snapshot|mei|crash|oldmem|uio|iommu|udmabuf|dma_heap"
)
_DISK_WORDS = (
    r"(sd|vd|hd|xvd|nvme|mmcblk|dm-|md|loop|sr|sg|st|nst|ram|zram|nbd|rbd|pmem|dax|bcache|drbd|fd[0-9]|ndctl|btrfs)"
    r"|(block|bsg|disk|mapper|char|zvol|zfs|raw|mtd|cdrom|ublk|device-mapper)"
)
_SYSTEM_WORDS = (
    r"shm|mqueue|hugepages|fd$|fd/|std(in|out|err)|pts|ptmx|tty(?!USB|ACM)|console|vcs|input|uinput|uhid|hidraw|usb|bus|log$|initctl"
    r"|watchdog|ipmi|tpm|rtc|gpio|i2c|spidev|vhost|vsock|autofs|userfaultfd|random|urandom|net(/|$)|ppp|kvm_|sev|sgx|core"
    r"|infiniband($|/(umad|issm|ucm))"
)
_NEVER = re.compile(rf"/dev/({_GPU_WORDS}|{_MEMORY_WORDS}|{_DISK_WORDS}|{_SYSTEM_WORDS})")
_PREFIX = Text(
    "an absolute path, or one below `~`",
    lambda text: is_absolute(text) or text == "~" or text.startswith("~/"),
)
_CAPABILITY = Text(f"one of {', '.join(f'`{name}`' for name in ADDABLE)}", lambda text: text in ADDABLE)
_DRIVER_CAPABILITY = Text(
    f"one of {', '.join(f'`{name}`' for name in DRIVER_CAPABILITIES)}",
    lambda text: text in DRIVER_CAPABILITIES,
)
_SYSCTL = Text(
    "a kernel parameter below `net.`, `kernel.shm`, `kernel.msg`, `kernel.sem` or `fs.mqueue.`, with `*` "
    "for the rest",
    lambda text: (
        re.fullmatch(r"(net\.[a-z0-9_.]+|kernel\.(shm|msg)[a-z_]*|kernel\.sem|fs\.mqueue\.[a-z_]*)\*?", text)
        is not None
    ),
)
_IMAGE = Text(
    "an image's name such as `nvcr.io/nvidia/*`, with `*` for any letters",
    lambda text: re.fullmatch(r"[a-z0-9*][A-Za-z0-9_.:/*-]*", text) is not None,
)


def may_be_passed(path: str) -> bool:
    """Return True if a site may ever allow a device node (or a pattern of them).

    A site may never allow GPUs, memory, disks, terminals, devices that reach into the kernel, or folders that
    users may write to.
    """
    return (
        path.startswith("/dev/")
        and path == posixpath.normpath(path)
        and path[5:6].isalnum()
        and not _NEVER.match(path)
    )


class PolicyPreset(StrEnum):
    """Name how much callers who are not trusted may do."""

    OPEN = "open"
    LAB = "lab"
    STRICT = "strict"


class HostNetwork(StrEnum):
    """Say which containers of callers who are not trusted may have the machine's own network."""

    NEVER = "never"
    GANGS = "gangs"


class Network(StrEnum):
    """Name the networks of a container."""

    OWN = "own"
    """The networks that the caller created."""
    BRIDGE = "bridge"
    NONE = "none"
    HOST = "host"


class Publish(StrEnum):
    """Say where ports may be published."""

    ANY = "any"
    LOOPBACK = "loopback"
    NEVER = "never"


class Restart(StrEnum):
    """Name Docker's restart policies."""

    NO = "no"
    ON_FAILURE = "on-failure"
    UNLESS_STOPPED = "unless-stopped"
    ALWAYS = "always"


@dataclass(frozen=True)
class OrPreset(ValueKind):
    """Read a value of another kind, or ``"preset"``, which is None."""

    kind: ValueKind

    @property
    def description(self) -> str:
        return f"{self.kind.description}, or `{toml_string(PRESET)}`"

    def read(self, value: object) -> object:
        return None if value == PRESET else self.kind.read(value)

    def from_text(self, text: str) -> object:
        return text if text == PRESET else self.kind.from_text(text)

    def write(self, value: object) -> str:
        return toml_string(PRESET) if value is None else self.kind.write(value)


_NETWORK = Text("`own`, `bridge`, `none` or `host`", lambda text: text in set(Network))
_RESTART = Text("`no`, `on-failure`, `unless-stopped` or `always`", lambda text: text in set(Restart))
_DEVICE = Text("a device below `/dev`, with `*` for some letters; no GPU, disk or memory", may_be_passed)


@dataclass(frozen=True, slots=True)
class GateConfig:
    """The gate bounds what callers who are not trusted may do at the Docker endpoint."""

    trusted_groups: tuple[str, ...] = setting(
        ("docker",),
        TextList(GROUP),
        "Members are trusted, as root is: nothing is judged, and they see and manage everybody's containers.",
    )
    subordinate_ids: str = setting(
        "/etc/subuid",
        PATH_OR_EMPTY,
        "File with users' ranges of ids in user namespaces (subuid(5)). Callers with such an id are "
        "refused and told whose it is, unless an account has it; empty: every id is a user.",
    )
    preset: PolicyPreset = setting(
        PolicyPreset.LAB,
        Choice(PolicyPreset),
        "`open`: people who trust each other; `lab`: one machine, many users; `strict`: users who may be "
        "hostile. [What each allows](../how-to/policy.md).",
    )
    everybody_confined: bool = setting(
        False,
        YesOrNo(),
        "What root and trusted groups create here [is judged too](../how-to/policy.md#judge-everybody), "
        "and nobody builds images.",
    )
    mount_prefixes: tuple[str, ...] | None = setting(
        None,
        OrPreset(TextList(_PREFIX)),
        "Bind mounts must lie below one of these; `~` is the caller's home.",
    )
    networks: tuple[str, ...] | None = setting(
        None,
        OrPreset(TextList(_NETWORK)),
        "`own`: those that the caller created; on `bridge` containers of all users reach each other; "
        "`host` is the machine's own, with what listens there for itself only.",
    )
    host_network: HostNetwork = setting(
        HostNetwork.NEVER,
        Choice(HostNetwork),
        "Where `networks` has no `host`: `gangs` still gives it to the parts of [jobs on several "
        "nodes](../how-to/multi-node.md).",
    )
    publish: Publish | None = setting(
        None,
        OrPreset(Choice(Publish)),
        "Where `-p` may publish; `loopback` is 127.0.0.1 and ::1.",
    )
    lowest_port: int | None = setting(
        None, OrPreset(Whole(1, 65_535)), "The first port of the machine that may be published on."
    )
    images: tuple[str, ...] | None = setting(
        None,
        OrPreset(TextList(_IMAGE)),
        "Images that may be used, by full names (`docker.io/library/python`) or `*`, and then not by id.",
    )
    image_digest: bool | None = setting(
        None, OrPreset(YesOrNo()), "Whether an image needs its digest: `python@sha256:...`."
    )
    registry_queries: bool | None = setting(
        None,
        OrPreset(YesOrNo()),
        "Whether the engine asks registries for `docker search` and digests (`/distribution`), with its "
        "network and credentials; `images` bounds pulls.",
    )
    restart_policies: tuple[str, ...] | None = setting(
        None, OrPreset(TextList(_RESTART)), "What `--restart` may say."
    )
    capabilities: tuple[str, ...] | None = setting(
        None,
        OrPreset(TextList(_CAPABILITY)),
        "What `--cap-add` may say; it has an effect only for root inside.",
    )
    sysctls: tuple[str, ...] | None = setting(
        None,
        OrPreset(TextList(_SYSCTL)),
        "What `--sysctl` may set, in the container's own networks and IPC.",
    )
    devices: tuple[str, ...] | None = setting(
        None,
        OrPreset(TextList(_DEVICE)),
        "What `--device` may give; the device's own permissions still hold for the caller.",
    )
    driver_capabilities: tuple[str, ...] | None = setting(
        None,
        OrPreset(TextList(_DRIVER_CAPABILITY)),
        "What `NVIDIA_DRIVER_CAPABILITIES` [may name](environment.md#capabilities-of-the-driver) besides "
        "`compute` and `utility`; all presets give all.",
    )
    dev_containers: str | None = setting(
        None,
        OrPreset(Text("`all`, a size such as `0.5`, or the name of one of the site's presets", bool)),
        "What `--gpus all` means for [a dev container](../how-to/dev-containers.md).",
    )
    root_inside: bool | None = setting(
        None,
        OrPreset(YesOrNo()),
        "Whether [containers with nothing of the machine](../how-to/policy.md#root-inside) may have "
        "`--user root`.",
    )
    host_ipc: bool | None = setting(None, OrPreset(YesOrNo()), "Whether `--ipc host` is given.")
    unconfined_seccomp: bool | None = setting(
        None, OrPreset(YesOrNo()), "Whether `--security-opt seccomp=unconfined` is given."
    )
    home_and_name: bool | None = setting(
        None,
        OrPreset(YesOrNo()),
        "Whether containers have [their caller's home and name](../how-to/policy.md#home-and-name), as in "
        "every preset.",
    )
    containers_per_user: int | None = setting(
        None,
        OrPreset(Whole(0, 100_000)),
        "A user's containers, stopped ones too; 0: no limit.",
    )
    ports_per_user: int | None = setting(
        None,
        OrPreset(Whole(0, 65_535)),
        "Ports that [all containers of a user](../how-to/policy.md#ports) may publish, stopped ones too; "
        "0: no limit.",
    )
    memory_per_user: int | Percent | None = setting(
        None,
        OrPreset(OrPercent(ByteSize(2**50))),
        "Memory of [all containers of a user together](../how-to/policy.md#what-a-user-has-together), "
        "swap and `/dev/shm` included.",
    )
    cpus_per_user: float | Percent | None = setting(
        None,
        OrPreset(OrPercent(Number(0, 65_536))),
        "Their CPUs; no preset has a limit.",
    )
    pids_per_user: int | None = setting(
        None,
        OrPreset(Whole(0, 4_194_304)),
        "Their processes and threads; 0: no limit.",
    )
    memory_limit_bytes: int | None = setting(
        None,
        OrPreset(ByteSize(2**50)),
        "A container's default `--memory` and the most that it may say; no preset has a limit.",
        key="memory_limit",
    )
    cpu_limit: float | None = setting(
        None,
        OrPreset(Number(0, 65_536)),
        "The same of `--cpus`; 0: no limit, as in all presets.",
    )
    pids_limit: int | None = setting(
        None, OrPreset(Whole(16, 4_194_304)), "A container's processes and threads."
    )
    connections_per_user: int = setting(
        1024, Whole(16, 65_536), "A user's connections to the daemon, of all kinds."
    )
    requests_per_user: int = setting(
        1024,
        Whole(16, 65_536),
        "A user's requests under way, waiting ones too: an attached client has two or three.",
    )
    max_wait: tuple[tuple[str, int], ...] = setting(
        (),
        Table(Text("a user or a project", is_user_name), Seconds(0, 366 * 24 * HOUR_SECONDS)),
        "How long containers of a user or a project [wait in the queue](clients.md#clients-that-wait) "
        'without a label `gpushare.max-wait`, one a line below `[gate.max_wait]`: `jupyterhub = "0s"` is '
        "not at all. A user's line wins over the project's; without one they wait for room. `gpushare run` "
        "has `--max-wait`.",
    )
    creates_per_user: int = setting(
        256,
        Whole(1, 65_536),
        "A user's containers that are being created, those that wait for a GPU too.",
    )
