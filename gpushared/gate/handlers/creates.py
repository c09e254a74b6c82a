"""Handle a container's create: judge its body, read its GPU request, and put its lease in."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import stat
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict
from itertools import islice
from pathlib import Path

from gpushared.config.gate_settings import DRIVER_CAPABILITIES
from gpushared.domain.model.errors import (
    EngineUnavailable,
    LimitReached,
    NotFound,
    PermissionRefused,
    RequestError,
    TimedOut,
)
from gpushared.domain.model.request_spec import RequestSpec
from gpushared.engine.reality import DRIVER_OF_DISPLAYS, machine
from gpushared.gate.api.body import (
    CAPABILITIES,
    LABEL_PORTS,
    Body,
    check_driver_capabilities,
    count_ports,
    driver_capabilities,
    named_capabilities,
    objects,
    section,
    strings,
    text,
)
from gpushared.gate.api.routes import RouteAction
from gpushared.gate.containers.create import CREATED, ROOT_USER, CreateOrder, Creator
from gpushared.gate.containers.gpu_request import (
    SIZE_HINT,
    GpuRequest,
    LeaseClaim,
    take_gpu_request,
    with_dev_meaning,
)
from gpushared.gate.containers.inject import merge_env
from gpushared.gate.containers.ownership import (
    LABEL_HOST_PATHS,
    check_name,
    find_image,
    find_network,
    find_volume,
    hide_holder,
    image_config,
)
from gpushared.gate.containers.passwd import LABEL_USERS, USERS_FILE, passwd_line, put_home
from gpushared.gate.containers.user_limits import CreatesUnderWay
from gpushared.gate.handlers.call import Call, while_waiting
from gpushared.gate.handlers.context import Handler, HandlerContext
from gpushared.gate.handlers.shared import check_no_builder
from gpushared.gate.mounts.held_mounts import LABEL_PINS
from gpushared.gate.policy.admission import judge_create, networks_of
from gpushared.gate.policy.field_rules import Context
from gpushared.gate.policy.mount_rules import lead_to, unnamed_volumes, volumes_of, wishes_of
from gpushared.net.http_client import EngineAnswer
from gpushared.net.identity import Account, NeededPath, account_of

LOOK_SECONDS = 5.0
MOST_NODES = 4096
PROC = "/proc"
_RULE = re.compile(r"\s*(?P<kind>[abc])\s+(?P<major>\d+|\*):(\d+|\*)\s+(?P<access>[rwm]+)\s*")


class Creates:
    """Handle creates."""

    def __init__(self, handler_context: HandlerContext) -> None:
        self._handler_context = handler_context
        self._creator = Creator(
            handler_context.engine,
            handler_context.lease_service,
            handler_context.name,
            handler_context.volume_locks,
        )
        self._creates_under_way = CreatesUnderWay(handler_context.engine)

    def for_everybody(self) -> dict[RouteAction, Handler]:
        return {RouteAction.CREATE: self._create}

    async def close(self) -> None:
        """Wait for the creates that hold a lease."""
        await self._creator.close()

    async def _create(self, call: Call) -> None:
        try:
            with call.exchange.share.create():
                answer = await self._created(call)
        except NotFound as error:
            # A 404 here means to clients that the image is missing: they would pull the image.
            raise RequestError(error.message, hint=error.hint) from error
        if not call.caller.trusted:
            name = call.target.get("name")
            answer = await hide_holder(answer, name, self._handler_context.engine, call.caller)
        await call.answer(answer)

    async def _created(self, call: Call) -> EngineAnswer:
        body = await self._handler_context.read_create(call)
        gpu_request = with_dev_meaning(
            take_gpu_request(body), section(body, "Labels"), self._handler_context.policy.dev_containers
        )
        async with AsyncExitStack() as stack:
            judged = self._handler_context.judges(call.caller)
            try:
                if judged:
                    body = await self._confine(body, call, gpu_request, stack)
                else:
                    await check_devices(body)
                if gpu_request is not None:
                    await self._give_driver_capabilities(body, judged=judged)
            except (PermissionRefused, RequestError, NotFound, LimitReached):
                await self._creator.forgo(gpu_request, call.caller)
                raise
            order = CreateOrder(call.target, body, call.caller, call.record, confined=judged)
            work = self._creator.create(order, gpu_request)
            answer = await while_waiting(call.exchange, work, may_queue=isinstance(gpu_request, RequestSpec))
        if answer.status != CREATED:
            self._handler_context.pins.unused()
        return answer

    async def _give_driver_capabilities(self, body: Body, *, judged: bool) -> None:
        """Set the capabilities of NVIDIA's driver for the container.

        The user's variable decides, else the image's.
        """
        allowed = self._handler_context.policy.driver_capabilities if judged else DRIVER_CAPABILITIES
        env = strings(body, "Env")
        check_driver_capabilities(env, allowed)
        if (named := named_capabilities(env)) is None:
            image = await image_config(self._handler_context.engine, text(body, "Image"))
            named = named_capabilities(strings(image, "Env")) or ""
        body["Env"] = merge_env(env, {CAPABILITIES: driver_capabilities(named, allowed)})

    def _maps_users(self) -> bool:
        try:
            return self._handler_context.lease_service.engine_facts().maps_users
        except EngineUnavailable:
            return True  # the engine has not described itself yet

    async def _confine(
        self, body: Body, call: Call, gpu_request: GpuRequest | None, stack: AsyncExitStack
    ) -> Body:
        """Return the body as a confined caller gets it; ``stack`` holds its files until the container exists."""
        context, caller = self._handler_context, call.caller
        engine, policy = context.engine, context.policy
        await check_name(call.target.get("name"), engine, caller)
        if section(body, "HostConfig").get("Privileged"):
            check_no_builder(text(body, "Image"))
        account = await account_of(caller)
        in_gang = isinstance(gpu_request, LeaseClaim) and context.lease_service.in_gang(
            gpu_request.lease, caller
        )
        judged = judge_create(body, Context(account, policy, in_gang, gpu_request is not None, call.version))
        image = await find_image(engine, text(judged, "Image"))
        config = section(image, "Config")
        exposed = {*section(judged, "ExposedPorts"), *section(config, "ExposedPorts")}
        ports = count_ports(judged["HostConfig"], exposed)
        await stack.enter_async_context(self._creates_under_way.for_one_more(caller, policy, ports))
        if parent := await context.user_containers.parent(caller.uid):
            judged["HostConfig"]["CgroupParent"] = parent
        for network in networks_of(judged):
            await find_network(engine, network, caller)
        for volume in volumes_of(judged["HostConfig"]["Mounts"]):
            await find_volume(engine, volume, caller)
        self._own_volumes(judged, config, call)
        # These labels are always set: the caller or an image may have set them too.
        labels = {LABEL_HOST_PATHS: "[]", LABEL_PINS: "", LABEL_PORTS: str(ports), LABEL_USERS: ""}
        labels |= await self._hold_files(judged, image, account, stack, home_and_name=policy.home_and_name)
        judged["Labels"] = {**section(judged, "Labels"), **labels}
        return judged

    def _own_volumes(self, judged: Body, config: Body, call: Call) -> None:
        """Make the caller the owner of all volumes that the engine makes for the container."""
        mounts = judged["HostConfig"]["Mounts"]
        paths = {*section(judged, "Volumes"), *section(config, "Volumes")}
        mounts += unnamed_volumes(judged["HostConfig"], paths)
        for mount in mounts:
            if mount["Type"] == "volume":
                options = section(mount, "VolumeOptions")
                mount["VolumeOptions"] = self._handler_context.labelled(call, options)

    async def _hold_files(
        self, judged: Body, image: Body, account: Account, stack: AsyncExitStack, *, home_and_name: bool
    ) -> dict[str, str]:
        """Hold the host's files that the body mounts; with ``home_and_name`` add a home and a passwd file.

        ``image`` is the engine's description of the image. Returns the labels that name the files.
        """
        context, caller, labels = self._handler_context, account.caller, dict[str, str]()
        mounts, config = judged["HostConfig"]["Mounts"], section(image, "Config")
        resolved: Sequence[NeededPath] = ()
        if wishes := wishes_of(mounts):
            pin = await stack.enter_async_context(context.pins.hold(account, wishes))
            resolved = pin.wishes
            lead_to(mounts, pin)
            labels[LABEL_HOST_PATHS] = json.dumps([asdict(path) for path in resolved])
            labels[LABEL_PINS] = pin.name
        if home_and_name and judged["User"] != ROOT_USER:
            put_home(judged, config, account, wishes, resolved)
            # Root with another number could not read the daemon's file when the container starts.
            line = b"" if self._maps_users() else passwd_line(judged, config, caller)
            if passwd := await stack.enter_async_context(context.passwd.with_line(image, line)):
                mounts.append({"Type": "bind", "Source": str(passwd), "Target": USERS_FILE, "ReadOnly": True})
                labels[LABEL_USERS] = passwd.name
        return labels


async def check_devices(body: Body) -> None:
    """Raise ``RequestError`` if devices or device rules of a create body would give a GPU.

    Trusted callers may name any path, so the check reads the kernel's device numbers of the file at the path.
    """
    host = section(body, "HostConfig")
    paths = [path for device in objects(host, "Devices") if isinstance(path := device.get("PathOnHost"), str)]
    rules = strings(host, "DeviceCgroupRules")
    if not paths and not rules:
        return
    try:
        async with asyncio.timeout(LOOK_SECONDS):
            gpu_device = await asyncio.to_thread(_first_gpu_device, paths, rules)
    except TimeoutError:
        raise TimedOut(f"{', '.join(paths)} could not be looked at", hint="try again later") from None
    if gpu_device:
        raise RequestError(f"{gpu_device} would be a GPU without a lease", hint=SIZE_HINT)


def _first_gpu_device(paths: list[str], rules: list[str]) -> str:
    """Return the first rule or path that would give a GPU; empty if none does."""
    majors = frozenset(number for number, driver in machine().majors.items() if driver != DRIVER_OF_DISPLAYS)
    for rule in rules:
        if _covers(rule, majors):
            return f"the device rule {rule!r}"
    return next((path for path in paths if _gives_gpu(path, majors)), "")


def _covers(rule: str, majors: frozenset[int]) -> bool:
    """Return True if the rule lets a program read or write such devices; only making nodes does no harm."""
    match = _RULE.fullmatch(rule)
    if match is None or match["kind"] == "b" or not set(match["access"]) & {"r", "w"}:
        return False
    return match["kind"] == "a" or match["major"] == "*" or int(match["major"]) in majors


def _gives_gpu(path: str, majors: frozenset[int]) -> bool:
    real = os.path.realpath(path)
    # A path in /proc means different files to different processes, and the engine is another process.
    if path.startswith(PROC + "/") or real.startswith(PROC + "/"):
        return True
    return any(
        stat.S_ISCHR(each.st_mode) and os.major(each.st_rdev) in majors for each in _files_at(Path(real))
    )


def _files_at(path: Path) -> Iterator[os.stat_result]:
    """Yield the file and, for a directory, the files in it: the engine gives each device in it."""
    # If a file cannot be checked, the engine finds that out too, and reports it.
    with contextlib.suppress(OSError):
        yield path.stat()
        for each in islice(path.rglob("*"), MOST_NODES):
            with contextlib.suppress(OSError):
                yield each.stat()
