"""Show a confined caller its part of the engine's facts and of all users' networks. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any

SHARED_NETWORKS = frozenset({"bridge", "host", "none"})
USER_OF_URL = re.compile(r"(?<=//)[^/@\s]*@")
HIDDEN_INFO = frozenset({"Containerd", "DiscoveredDevices", "GenericResources", "NRI", "SystemStatus"})
"""These fields hold the path to containerd, devices by name (leases among them), and facts of plugins and
swarms."""
HIDDEN_OF_SHARED = frozenset({"Status", "Services", "Peers"})
UNCOUNTED = -1
"""Engines give this number for an image whose containers they have not counted."""
NVIDIA = "nvidia"
NVIDIA_RUNTIME = {"path": "nvidia-container-runtime"}
NO_SWARM = {"LocalNodeState": "inactive", "ControlAvailable": False}


def shown_info(info: Mapping[str, Any], own: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the engine's facts with the numbers of these containers, as from a listing."""
    states = Counter(str(container.get("State")) for container in own)
    running, paused = states["running"], states["paused"]
    counts = {
        "Containers": len(own),
        "ContainersRunning": running,
        "ContainersPaused": paused,
        "ContainersStopped": len(own) - running - paused,
    }
    visible = {name: _without_users(value) for name, value in info.items() if name not in HIDDEN_INFO}
    return {**visible, **counts, "Swarm": NO_SWARM}


def with_nvidia_runtime(info: Mapping[str, Any], *, leases: bool) -> dict[str, Any]:
    """Return the engine's facts with NVIDIA's runtime among the others exactly if GPUs can be had.

    Tools look for the runtime before they ask for GPUs, and ask for none if it is not named.
    """
    runtimes = {name: value for name, value in (info.get("Runtimes") or {}).items() if name != NVIDIA}
    named = (info.get("Runtimes") or {}).get(NVIDIA) or NVIDIA_RUNTIME
    return {**info, "Runtimes": {**runtimes, NVIDIA: named} if leases else runtimes}


def shown_network(network: Mapping[str, Any], own_ids: Collection[str]) -> dict[str, Any]:
    """Return one of the engine's networks, with only these containers on it."""
    visible = {name: value for name, value in network.items() if name not in HIDDEN_OF_SHARED}
    containers = (network.get("Containers") or {}).items()
    return {**visible, "Containers": {key: value for key, value in containers if key in own_ids}}


def shown_images(images: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return a listing of images without the numbers of containers, which newer engines count."""
    return [{**shown_image(image), "Containers": UNCOUNTED} for image in images]


def shown_image(image: Mapping[str, Any]) -> dict[str, Any]:
    """Return an image whose manifests do not name their containers."""
    manifests = [_without_containers(each) for each in image.get("Manifests") or ()]
    return {**image, **({"Manifests": manifests} if manifests else {})}


def _without_containers(manifest: Mapping[str, Any]) -> dict[str, Any]:
    data = manifest.get("ImageData")
    return {**manifest, **({"ImageData": {**data, "Containers": []}} if data else {})}


def _without_users(value: Any) -> Any:
    """Return the facts without users and passwords in URLs, as of proxies and mirrors."""
    match value:
        case str():
            return USER_OF_URL.sub("", value)
        case list():
            return [_without_users(each) for each in value]
        case dict():
            return {key: _without_users(each) for key, each in value.items()}
        case _:
            return value
