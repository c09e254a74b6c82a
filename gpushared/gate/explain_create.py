"""Explain how the gate would treat a create body, without creating anything."""

from __future__ import annotations

from dataclasses import asdict

from gpushared.domain.model.errors import (
    LimitReached,
    NotFound,
    PermissionRefused,
    RequestError,
    TimedOut,
    Unavailable,
)
from gpushared.domain.model.request import Caller
from gpushared.domain.model.request_spec import RequestSpec
from gpushared.gate.api.body import Body, check_create, count_ports, parse_object, section, text
from gpushared.gate.api.field_kinds import Version
from gpushared.gate.containers.create import ROOT_USER
from gpushared.gate.containers.gpu_request import GpuRequest, LeaseClaim, take_gpu_request, with_dev_meaning
from gpushared.gate.containers.ownership import find_image, find_network, find_volume
from gpushared.gate.containers.passwd import put_home
from gpushared.gate.containers.user_limits import CreatesUnderWay
from gpushared.gate.handlers.context import HandlerContext
from gpushared.gate.policy.admission import HOST_PREFIX, judge_create, networks_of
from gpushared.gate.policy.field_findings import WHY_SET, FieldFinding, Notes
from gpushared.gate.policy.field_rules import Context
from gpushared.gate.policy.mount_rules import volumes_of, wishes_of
from gpushared.net.identity import Account, account_of

GPUS = f"{HOST_PREFIX}DeviceRequests"
_REFUSALS = (LimitReached, NotFound, PermissionRefused, RequestError, TimedOut, Unavailable)


class Explainer:
    """Check all that a create checks: the rules, and also the engine and the system."""

    def __init__(self, handler_context: HandlerContext) -> None:
        self._handler_context = handler_context

    async def explain(self, raw: bytes, version: Version | None, caller: Caller) -> list[FieldFinding]:
        """Explain every field that has an effect. Raises errors that prevent the explanation itself."""
        notes = Notes()
        try:
            dropped: list[str] = []
            body = check_create(
                parse_object(raw), dropped if self._handler_context.tables_are_complete else None
            )
            meaning = self._handler_context.policy.dev_containers
            gpu_request = with_dev_meaning(take_gpu_request(body), section(body, "Labels"), meaning)
        except (PermissionRefused, RequestError) as error:
            notes.refused("", None, error)
            return notes.findings
        for name in dropped:
            notes.unread(name)
        _note_gpu_request(gpu_request, notes)
        if self._handler_context.judges(caller):
            await self._judge(body, gpu_request, version, await account_of(caller), notes)
        return notes.findings

    async def _judge(
        self,
        body: Body,
        gpu_request: GpuRequest | None,
        version: Version | None,
        account: Account,
        notes: Notes,
    ) -> None:
        handler_context, caller = self._handler_context, account.caller
        in_gang = isinstance(gpu_request, LeaseClaim) and handler_context.lease_service.in_gang(
            gpu_request.lease, caller
        )
        context = Context(account, handler_context.policy, in_gang, gpu_request is not None, version)
        judged = judge_create(body, context, notes)
        if parent := handler_context.user_containers.name(caller.uid):
            name = f"{HOST_PREFIX}CgroupParent"
            notes.set(name, None, parent, WHY_SET[name])
        try:
            config = section(await find_image(handler_context.engine, text(judged, "Image")), "Config")
            self._note_env(judged, config, account, gpu_request, notes)
            exposed = {*section(judged, "ExposedPorts"), *section(config, "ExposedPorts")}
            ports = count_ports(judged["HostConfig"], exposed)
            await CreatesUnderWay(handler_context.engine).check(caller, handler_context.policy, ports=ports)
            await handler_context.user_containers.check_start(caller.uid)
        except LimitReached as error:
            notes.refused("", None, error, may_change=True)
        await self._check_objects(judged, account, notes)

    def _note_env(
        self, judged: Body, config: Body, account: Account, gpu_request: GpuRequest | None, notes: Notes
    ) -> None:
        env = {"no GPU without a lease": ["NVIDIA_VISIBLE_DEVICES=void"]} if gpu_request is None else {}
        if self._handler_context.policy.home_and_name and judged["User"] != ROOT_USER:
            host = {**judged["HostConfig"]}
            wishes = wishes_of(host["Mounts"])
            added = put_home({**judged, "HostConfig": host}, config, account, wishes, wishes)
            if added:
                env["a home and your name"] = [f"{name}={value}" for name, value in added.items()]
            if (before := judged["HostConfig"].get("Tmpfs")) != (after := host.get("Tmpfs")):
                notes.set(f"{HOST_PREFIX}Tmpfs", before, after, "a home in memory")
        if env:
            notes.set("Env", None, [entry for entries in env.values() for entry in entries], ", ".join(env))

    async def _check_objects(self, judged: Body, account: Account, notes: Notes) -> None:
        """Check the networks, volumes and paths, which only the engine and the system know."""
        engine, mounts = self._handler_context.engine, judged["HostConfig"]["Mounts"]
        for network in networks_of(judged):
            try:
                await find_network(engine, network, account.caller)
            except _REFUSALS as error:
                notes.refused(f"{HOST_PREFIX}NetworkMode", network, error, may_change=True)
        for volume in volumes_of(mounts):
            try:
                await find_volume(engine, volume, account.caller)
            except _REFUSALS as error:
                notes.refused(f"{HOST_PREFIX}Mounts", volume, error, may_change=True)
        for path_wish in wishes_of(mounts):
            try:
                async with self._handler_context.pins.hold(account, [path_wish]):
                    pass
            except _REFUSALS as error:
                notes.refused(f"{HOST_PREFIX}Mounts", path_wish.path, error, may_change=True)
        self._handler_context.pins.unused()


def _note_gpu_request(gpu_request: GpuRequest | None, notes: Notes) -> None:
    match gpu_request:
        case LeaseClaim(lease):
            notes.set(GPUS, None, {"lease": lease}, "the lease brings its GPUs")
        case RequestSpec():
            options = {name: value for name, value in asdict(gpu_request).items() if value}
            notes.set(GPUS, None, options, "GPUs come by a lease of so much")
