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
from gpushared.gate.api.body import Body, check_create, parse_object, ports_of, section, text
from gpushared.gate.api.field_kinds import Version
from gpushared.gate.containers.create import ROOT_USER
from gpushared.gate.containers.gpu_request import ClaimWish, Wish, take_wish, with_dev_meaning
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
    """Ask everything that a create asks: the rules, and also the engine and the system."""

    def __init__(self, ground: HandlerContext) -> None:
        self._ground = ground

    async def explain(self, raw: bytes, version: Version | None, caller: Caller) -> list[FieldFinding]:
        """Explain every field that says something. Raises errors that prevent the explanation itself."""
        notes = Notes()
        try:
            dropped: list[str] = []
            body = check_create(parse_object(raw), dropped if self._ground.tables_are_complete else None)
            meaning = self._ground.policy.dev_containers
            wish = with_dev_meaning(take_wish(body), section(body, "Labels"), meaning)
        except (PermissionRefused, RequestError) as error:
            notes.refused("", None, error)
            return notes.findings
        for name in dropped:
            notes.unread(name)
        _note_wish(wish, notes)
        if self._ground.judges(caller):
            await self._judge(body, wish, version, await account_of(caller), notes)
        return notes.findings

    async def _judge(
        self, body: Body, wish: Wish | None, version: Version | None, account: Account, notes: Notes
    ) -> None:
        ground, caller = self._ground, account.caller
        in_gang = isinstance(wish, ClaimWish) and ground.desk.in_gang(wish.lease, caller)
        context = Context(account, ground.policy, in_gang, wish is not None, version)
        judged = judge_create(body, context, notes)
        if parent := ground.together.name(caller.uid):
            name = f"{HOST_PREFIX}CgroupParent"
            notes.set(name, None, parent, WHY_SET[name])
        try:
            image = section(await find_image(ground.engine, text(judged, "Image")), "Config")
            self._note_env(judged, image, account, wish, notes)
            exposed = {*section(judged, "ExposedPorts"), *section(image, "ExposedPorts")}
            ports = ports_of(judged["HostConfig"], exposed)
            await CreatesUnderWay(ground.engine).check(caller, ground.policy, ports=ports)
            await ground.together.check_start(caller.uid)
        except LimitReached as error:
            notes.refused("", None, error, may_change=True)
        await self._look(judged, account, notes)

    def _note_env(self, judged: Body, image: Body, account: Account, wish: Wish | None, notes: Notes) -> None:
        env = {"no GPU without a lease": ["NVIDIA_VISIBLE_DEVICES=void"]} if wish is None else {}
        if self._ground.policy.home_and_name and judged["User"] != ROOT_USER:
            host = {**judged["HostConfig"]}
            wishes = wishes_of(host["Mounts"])
            ours = put_home({**judged, "HostConfig": host}, image, account, wishes, wishes)
            env |= (
                {"a home and your name": [f"{name}={value}" for name, value in ours.items()]} if ours else {}
            )
            if (asked := judged["HostConfig"].get("Tmpfs")) != (given := host.get("Tmpfs")):
                notes.set(f"{HOST_PREFIX}Tmpfs", asked, given, "a home in memory")
        if env:
            notes.set("Env", None, [entry for entries in env.values() for entry in entries], ", ".join(env))

    async def _look(self, judged: Body, account: Account, notes: Notes) -> None:
        """Look at the facts that only the engine and the system know."""
        engine, mounts = self._ground.engine, judged["HostConfig"]["Mounts"]
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
        for wish in wishes_of(mounts):
            try:
                async with self._ground.pins.held(account, [wish]):
                    pass
            except _REFUSALS as error:
                notes.refused(f"{HOST_PREFIX}Mounts", wish.path, error, may_change=True)
        self._ground.pins.unused()


def _note_wish(wish: Wish | None, notes: Notes) -> None:
    match wish:
        case ClaimWish(lease):
            notes.set(GPUS, None, {"lease": lease}, "the lease brings its GPUs")
        case RequestSpec():
            said = {name: value for name, value in asdict(wish).items() if value}
            notes.set(GPUS, None, said, "GPUs come by a lease of so much")
