"""Judge fields of networks and ports. Pure."""

from __future__ import annotations

import re

from gpushared.config.gate_settings import Network, Publish
from gpushared.domain.model.errors import PermissionRefused
from gpushared.domain.model.units import shown
from gpushared.gate.api.body import HOST_NETWORK, Body, Json, objects, text
from gpushared.gate.api.site import SitePolicy
from gpushared.gate.policy.field_rules import Context

PORTS = re.compile(r"([0-9]{1,5}(-[0-9]{1,5})?)?")
LOOPBACK = "127.0.0.1"
BRIDGES = frozenset({"", "default", "bridge"})
NO_NETWORK = "none"


def network_mode(name: str, value: Json, context: Context) -> Json:
    mode = value or ""
    if ":" in mode:
        raise PermissionRefused(
            f"{name} {shown(mode)} is not allowed for you", hint="put both containers on one network"
        )
    check_network(mode, context)
    return value


def check_network(mode: str, context: Context) -> None:
    """Raise ``PermissionRefused`` if the caller's containers may not be on such a network."""
    networks = context.policy.networks
    if mode == HOST_NETWORK:
        _check_host_network(context)
    elif mode in BRIDGES and Network.BRIDGE not in networks:
        raise PermissionRefused(
            "the bridge that all containers share is not for you",
            hint="docker network create mine, and --network mine; or --network none",
        )
    elif mode == NO_NETWORK and Network.NONE not in networks:
        raise PermissionRefused("containers without a network are not for you", hint="leave --network out")
    elif mode not in {*BRIDGES, NO_NETWORK} and Network.OWN not in networks:
        raise PermissionRefused("networks of your own are not for you", hint="leave --network out")


def _check_host_network(context: Context) -> None:
    if context.policy.host_network:
        return
    if not context.in_gang:
        raise PermissionRefused("the host's network is not for you", hint="publish ports with -p instead")
    check_gang_network(HOST_NETWORK, context.policy)


def check_gang_network(mode: str, policy: SitePolicy) -> None:
    """Raise ``PermissionRefused`` if a part of a job on several nodes may not have such a network here."""
    if mode == HOST_NETWORK and not (policy.gangs_on_host_network or policy.host_network):
        raise PermissionRefused(
            "this node does not give its own network to jobs on several nodes",
            hint='its administrator may: [gate] host_network = "gangs"',
        )


def publish_all(name: str, value: Json, context: Context) -> Json:
    if value and context.policy.publish is not Publish.ANY:
        raise PermissionRefused(
            f"{name} would publish to other machines", hint="name the ports: -p 127.0.0.1::8888"
        )
    return value


def ports(_name: str, value: Json, context: Context) -> Json:
    bound = value or {}
    if bound and context.policy.publish is Publish.NEVER:
        raise PermissionRefused(
            "ports are not published here", hint="put both containers on one network, or use docker exec"
        )
    return {port: _bindings(bound, port, context) for port in bound} if value is not None else None


def _bindings(bound: Body, port: str, context: Context) -> list[Body]:
    bindings = [_binding(each, context) for each in objects(bound, port)]
    # The engine turns an empty binding into a binding to all addresses.
    if not bindings and context.policy.publish is Publish.LOOPBACK:
        return [{"HostIp": LOOPBACK, "HostPort": ""}]
    return bindings


def _binding(binding: Body, context: Context) -> Body:
    port, address, lowest = text(binding, "HostPort"), text(binding, "HostIp"), context.policy.lowest_port
    if not PORTS.fullmatch(port):
        raise PermissionRefused(f"{shown(port)} is no port", hint=f"choose one from {lowest} on")
    # If one end of a range is zero, the engine may choose from all ports below the other.
    if port not in {"", "0"} and any(int(end) < lowest for end in port.split("-")):
        raise PermissionRefused(f"port {port} is not for you", hint=f"choose one from {lowest} on")
    if context.policy.publish is not Publish.LOOPBACK:
        return binding
    if address not in {"", LOOPBACK, "::1"}:
        raise PermissionRefused(
            f"ports are published on this machine only, not on {shown(address)}",
            hint="-p 127.0.0.1:8888:8888, and ssh -L from elsewhere",
        )
    return {**binding, "HostIp": address or LOOPBACK}


def ipam(_name: str, value: Json, _context: Context) -> Json:
    settings = value or {}
    if text(settings, "Driver") not in {"", "default"} or settings.get("Config") or settings.get("Options"):
        raise PermissionRefused(
            "the addresses of a network are not yours to choose", hint="leave them out: the engine finds some"
        )


def config_from(_name: str, value: Json, _context: Context) -> None:
    """Refuse a configuration's source, except for the object with an empty name that clients send."""
    if isinstance(value, dict) and any(value.values()):
        raise PermissionRefused("ConfigFrom may not be set by you", hint="create a plain network")
