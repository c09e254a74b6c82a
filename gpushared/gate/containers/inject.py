"""Put a lease into a create body. Pure: the same body, claim and engine give the same result."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping

from gpushared.domain.model.errors import RequestError
from gpushared.engine.cdi import qualified_name
from gpushared.gate.api.body import CAPABILITIES as DRIVER_CAPABILITIES
from gpushared.gate.api.body import Body, Json, objects, section, strings
from gpushared.ports import DeviceMechanism, EditMount, Edits, EngineFacts
from gpushared.sharing.cgroups import SLICE
from gpushared.sharing.lease_edits import CONTAINER_DIRECTORY

OWN_PREFIXES = ("NVIDIA_", "CUDA_MPS_", "GPUSHARE_")
OWN_NAMES = frozenset({"CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"})
GPU_KIND = "nvidia.com/gpu"
MIG_PREFIX = "MIG-"
VISIBLE_DEVICES = "NVIDIA_VISIBLE_DEVICES"
NO_DEVICES = "void"
"""With this value NVIDIA's runtime does the same as the plain one, whatever an image's other variables
are."""


def binds_late(facts: EngineFacts) -> bool:
    """Return True if a container can be created before its lease is known.

    The engine must apply the lease's device at every start, and the create body must not name the GPU.
    """
    return facts.lease_devices and facts.gpu_mechanism is DeviceMechanism.PLAIN


def mechanism_for(edits: Edits | None, facts: EngineFacts) -> DeviceMechanism:
    """Return the mechanism by which these GPUs come into the container.

    MIG instances are made and destroyed while NVIDIA's CDI specs stay as they are: the engine gets an
    instance that the specs do not name by the next best mechanism. Raises ``RequestError`` if there is none.
    """
    unnamed = [gpu for gpu in edits.gpus if is_unnamed(gpu, facts)] if edits is not None else []
    if not unnamed:
        return facts.gpu_mechanism
    if facts.other_mechanism is DeviceMechanism.PLAIN:
        raise RequestError(
            f"the Docker engine cannot give MIG instance {unnamed[0]} to a container: no CDI spec names it",
            hint="the admin makes the specs anew: `nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml`",
        )
    return facts.other_mechanism


def is_unnamed(gpu: str, facts: EngineFacts) -> bool:
    """Return True for a MIG instance that must come through CDI, but is in no CDI spec."""
    through_cdi = facts.gpu_mechanism is DeviceMechanism.CDI
    return through_cdi and gpu.startswith(MIG_PREFIX) and gpu not in facts.cdi_gpus


def inject(body: Body, device_name: str, edits: Edits | None, facts: EngineFacts) -> None:
    """Put a lease's settings into ``body``, in place of the user's own for the same things.

    ``edits`` is None for a container that gets its lease at start (``binds_late``). Raises ``RequestError``
    if a mount of the user's would hide one of ours, or if the user wants another cgroup than the lease's.
    """
    host = body["HostConfig"] = section(body, "HostConfig")
    env = strip_env(strings(body, "Env"))
    own_targets = [mount.target for mount in edits.mounts] if edits is not None else []
    # The engine puts mounts of a user and of an image on top of a device's mounts, also a mount around these.
    around = facts.lease_devices and edits is None
    check_mounts(user_targets(body), [CONTAINER_DIRECTORY, *own_targets], around=around)
    if edits is not None:
        env = default_env(env, edits.env_defaults)
        env = _add_gpus(host, env, edits, facts)
        _put_below_lease(host, edits.cgroup_parent)
    if facts.lease_devices:
        request = {"Driver": "cdi", "DeviceIDs": _cdi_names(device_name, edits, facts)}
        host["DeviceRequests"] = [*objects(host, "DeviceRequests"), request]
    elif edits is not None:
        env = merge_env(env, edits.env)
        host["Devices"] = [*objects(host, "Devices"), *map(_device, edits.devices)]
    if edits is not None:
        host["Mounts"] = [*objects(host, "Mounts"), *map(_mount, edits.mounts)]
    body["Env"] = env


def is_own(name: str) -> bool:
    """Return True if only the lease may set the variable."""
    return name != DRIVER_CAPABILITIES and (name in OWN_NAMES or name.startswith(OWN_PREFIXES))


def strip_env(env: list[str]) -> list[str]:
    """Return the variables without those that only the lease may set."""
    return [entry for entry in env if not is_own(_name(entry))]


def merge_env(env: list[str], additions: Mapping[str, str]) -> list[str]:
    """Add our variables in place of the user's with the same names: programs read different duplicates."""
    unchanged = [entry for entry in env if _name(entry) not in additions]
    return [*unchanged, *(f"{name}={value}" for name, value in additions.items())]


def default_env(env: list[str], defaults: Mapping[str, str]) -> list[str]:
    """Add our variables that the user did not set.

    A bare name, which unsets the image's variable, counts as set.
    """
    named = {_name(entry) for entry in env}
    return [*env, *(f"{name}={value}" for name, value in defaults.items() if name not in named)]


def user_targets(body: Body) -> list[str]:
    """Return the paths in the container on which the body mounts something."""
    host = section(body, "HostConfig")
    binds = [bind.split(":") for bind in strings(host, "Binds")]
    return [
        *(parts[1] if len(parts) > 1 else parts[0] for parts in binds),
        *(str(mount.get("Target", "")) for mount in objects(host, "Mounts")),
        *section(host, "Tmpfs"),
        *section(body, "Volumes"),
    ]


def check_mounts(targets: list[str], own_targets: list[str], *, around: bool = False) -> None:
    """Raise ``RequestError`` if a user's mount lies on or under one of ours: the user's would win.

    A mount that lies over ours does no harm if ours is in the body too: the engine mounts the shorter paths
    first. If ours comes only by a device (``around``), the user's mount would hide ours.
    """
    for target in targets:
        for own_target in own_targets:
            path, own = (_directory(each) for each in (target, own_target))
            if path.startswith(own) or (around and own.startswith(path)):
                raise RequestError(
                    f"the mount at {target} would hide the lease's at {own_target}",
                    hint="mount it elsewhere",
                )


def _directory(path: str) -> str:
    normal = posixpath.normpath("/" + path.lstrip("/"))
    return normal if normal == "/" else f"{normal}/"


def _name(entry: str) -> str:
    return entry.partition("=")[0]


def _cdi_names(device_name: str, edits: Edits | None, facts: EngineFacts) -> list[str]:
    """Return the CDI names, the lease's name last: of two devices that set a variable, the last one wins."""
    through_cdi = mechanism_for(edits, facts) is DeviceMechanism.CDI
    gpus = [f"{GPU_KIND}={gpu}" for gpu in edits.gpus] if edits is not None and through_cdi else []
    return [*gpus, qualified_name(device_name)]


def _add_gpus(host: Body, env: list[str], edits: Edits, facts: EngineFacts) -> list[str]:
    """Add the GPUs themselves if the engine uses another mechanism than CDI for them."""
    mechanism = mechanism_for(edits, facts)
    if mechanism is DeviceMechanism.DEVICE_REQUEST:
        request = {"Driver": "", "Capabilities": [["gpu"]], "DeviceIDs": list(edits.gpus)}
        host["DeviceRequests"] = [*objects(host, "DeviceRequests"), request]
    elif mechanism is DeviceMechanism.NVIDIA_RUNTIME:
        host["Runtime"] = "nvidia"
        return merge_env(env, {VISIBLE_DEVICES: ",".join(edits.gpus)})
    return env


def _put_below_lease(host: Body, cgroup_parent: str) -> None:
    """Put the container below the lease's cgroup, where the driver limits its memory.

    In the caller's own cgroup no limit of the lease would hold the container, and in the lease's none of the
    caller's limits. The lease's cgroup may be in the cgroup of all containers of its user: there both limit
    the container.
    """
    if not cgroup_parent:
        return
    requested_parent = str(host.get("CgroupParent") or "")
    if requested_parent not in {"", cgroup_parent} and not is_cgroup_within(cgroup_parent, requested_parent):
        raise RequestError(
            "the container has to be in its lease's cgroup, so that the driver limits its GPU memory",
            hint="leave `--cgroup-parent` out, or ask for whole GPUs",
        )
    host["CgroupParent"] = cgroup_parent


def is_cgroup_within(inner: str, outer: str) -> bool:
    """Return True if ``inner`` lies below ``outer``: slices show that by their names (systemd.slice(5))."""
    if outer.endswith(SLICE):
        return inner.endswith(SLICE) and inner.startswith(f"{outer.removesuffix(SLICE)}-")
    return inner.startswith(f"{outer.rstrip('/')}/")


def _mount(mount: EditMount) -> dict[str, Json]:
    return {"Type": "bind", "Source": mount.source, "Target": mount.target, "ReadOnly": mount.read_only}


def _device(path: str) -> dict[str, Json]:
    return {"PathOnHost": path, "PathInContainer": path, "CgroupPermissions": "rw"}
