"""Handle a container's create: judge its body, take out its wish for a GPU, put in its lease."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict

from gpushared.config.gate_settings import DRIVER_CAPABILITIES
from gpushared.domain.model.errors import (
    EngineUnavailable,
    LimitReached,
    NotFound,
    PermissionRefused,
    RequestError,
)
from gpushared.domain.model.request_spec import RequestSpec
from gpushared.gate.api.body import Body, section, strings, text
from gpushared.gate.api.driver_capabilities import (
    VARIABLE,
    check_driver_capabilities,
    driver_capabilities,
    named_in,
)
from gpushared.gate.api.published_ports import LABEL_PORTS, ports_of
from gpushared.gate.api.routes import RouteAction
from gpushared.gate.containers.count_limits import CreatesUnderWay
from gpushared.gate.containers.create import CREATED, ROOT_USER, CreateOrder, Creator
from gpushared.gate.containers.gpu_nodes import check_devices
from gpushared.gate.containers.gpu_request import ClaimWish, Wish, take_wish, with_dev_meaning
from gpushared.gate.containers.homes import USERS_FILE, passwd_line, put_home
from gpushared.gate.containers.inject import merge_env
from gpushared.gate.containers.names import check_name, hide_holder
from gpushared.gate.containers.ownership import (
    LABEL_HOST_PATHS,
    find_image,
    find_network,
    find_volume,
    image_config,
)
from gpushared.gate.containers.passwd import LABEL_USERS
from gpushared.gate.handlers.call import Call
from gpushared.gate.handlers.context import Handler, HandlerContext
from gpushared.gate.handlers.images import check_no_builder
from gpushared.gate.handlers.interim import while_waiting
from gpushared.gate.mounts.held_mounts import LABEL_PINS
from gpushared.gate.policy.admission import judge_create, networks_of
from gpushared.gate.policy.field_rules import Context
from gpushared.gate.policy.mount_rules import lead_to, unnamed_volumes, volumes_of, wishes_of
from gpushared.net.accounts import PathWish, look_up
from gpushared.net.http_client import EngineAnswer


class Creates:
    """Handle creates."""

    def __init__(self, ground: HandlerContext) -> None:
        self._ground = ground
        self._creator = Creator(ground.engine, ground.desk, ground.name, ground.volume_turns)
        self._room = CreatesUnderWay(ground.engine)

    def everybody(self) -> dict[RouteAction, Handler]:
        return {RouteAction.CREATE: self._create}

    async def close(self) -> None:
        """Wait for the creates that hold a lease."""
        await self._creator.close()

    async def _create(self, call: Call) -> None:
        try:
            with call.exchange.share.create():
                answer = await self._created(call)
        except NotFound as error:
            # A 404 here means to clients that the image is missing: they would pull it.
            raise RequestError(error.message, hint=error.hint) from error
        if not call.caller.trusted:
            name = call.target.get("name")
            answer = await hide_holder(answer, name, self._ground.engine, call.caller)
        await call.answer(answer)

    async def _created(self, call: Call) -> EngineAnswer:
        body = await self._ground.read_create(call)
        wish = with_dev_meaning(take_wish(body), section(body, "Labels"), self._ground.policy.dev_containers)
        async with AsyncExitStack() as held:
            judged = self._ground.judges(call.caller)
            try:
                if judged:
                    body = await self._confine(body, call, wish, held)
                else:
                    await check_devices(body)
                if wish is not None:
                    await self._give_driver_capabilities(body, judged=judged)
            except (PermissionRefused, RequestError, NotFound, LimitReached):
                await self._creator.forgo(wish, call.caller)
                raise
            order = CreateOrder(call.target, body, call.caller, call.record, confined=judged)
            work = self._creator.create(order, wish)
            answer = await while_waiting(call.exchange, work, may_queue=isinstance(wish, RequestSpec))
        if answer.status != CREATED:
            self._ground.pins.unused()
        return answer

    async def _give_driver_capabilities(self, body: Body, *, judged: bool) -> None:
        """Set what the container gets of NVIDIA's driver, by the user's word or the image's."""
        given = self._ground.policy.driver_capabilities if judged else DRIVER_CAPABILITIES
        env = strings(body, "Env")
        check_driver_capabilities(env, given)
        if (named := named_in(env)) is None:
            image = await image_config(self._ground.engine, text(body, "Image"))
            named = named_in(strings(image, "Env")) or ""
        body["Env"] = merge_env(env, {VARIABLE: driver_capabilities(named, given)})

    def _maps_users(self) -> bool:
        try:
            return self._ground.desk.engine_facts().maps_users
        except EngineUnavailable:
            return True  # it has not described itself yet

    async def _confine(self, body: Body, call: Call, wish: Wish | None, held: AsyncExitStack) -> Body:
        ground, caller = self._ground, call.caller
        engine, desk, policy = ground.engine, ground.desk, ground.policy
        await check_name(call.target.get("name"), engine, caller)
        if section(body, "HostConfig").get("Privileged"):
            check_no_builder(text(body, "Image"))
        account = await look_up(caller)
        in_gang = isinstance(wish, ClaimWish) and desk.in_gang(wish.lease, caller)
        judged = judge_create(body, Context(account, policy, in_gang, wish is not None, call.version))
        described = await find_image(engine, text(judged, "Image"))
        image = section(described, "Config")
        exposed = {*section(judged, "ExposedPorts"), *section(image, "ExposedPorts")}
        ports = ports_of(judged["HostConfig"], exposed)
        await held.enter_async_context(self._room.for_one_more(caller, policy, ports))
        if parent := await ground.together.parent(caller.uid):
            judged["HostConfig"]["CgroupParent"] = parent
        mounts = judged["HostConfig"]["Mounts"]
        for network in networks_of(judged):
            await find_network(engine, network, caller)
        for volume in volumes_of(mounts):
            await find_volume(engine, volume, caller)
        named = {*section(judged, "Volumes"), *section(image, "Volumes")}
        mounts += unnamed_volumes(judged["HostConfig"], named)
        for mount in mounts:
            if mount["Type"] == "volume":
                mount["VolumeOptions"] = ground.labelled(call, section(mount, "VolumeOptions"))
        # Set in any case: the caller or an image may have set them too.
        labels = {LABEL_HOST_PATHS: "[]", LABEL_PINS: "", LABEL_PORTS: str(ports), LABEL_USERS: ""}
        found: Sequence[PathWish] = ()
        if wishes := wishes_of(mounts):
            pin = await held.enter_async_context(self._ground.pins.held(account, wishes))
            found = pin.wishes
            lead_to(mounts, pin)
            labels |= {
                LABEL_HOST_PATHS: json.dumps([asdict(path) for path in pin.wishes]),
                LABEL_PINS: pin.name,
            }
        if policy.home_and_name and judged["User"] != ROOT_USER:
            put_home(judged, image, account, wishes, found)
            # Root of another number could not come to the daemon's file when the container starts.
            line = b"" if self._maps_users() else passwd_line(judged, image, caller)
            if passwd := await held.enter_async_context(ground.passwd.with_line(described, line)):
                mounts.append({"Type": "bind", "Source": str(passwd), "Target": USERS_FILE, "ReadOnly": True})
                labels[LABEL_USERS] = passwd.name
        judged["Labels"] = {**section(judged, "Labels"), **labels}
        return judged
