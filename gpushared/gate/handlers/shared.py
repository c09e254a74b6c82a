"""Handle requests about objects of all users: images, the engine's own facts, its events, its plugins."""

from __future__ import annotations

from gpushared.domain.model.errors import NotFound, PermissionRefused, RequestError
from gpushared.gate.api.body import Body, serialise
from gpushared.gate.api.endpoints import BUILD, LOAD
from gpushared.gate.api.fields import AUTH_TABLE
from gpushared.gate.api.routes import Payload, RouteAction, own_only
from gpushared.gate.containers.filtered_views import (
    shown_image,
    shown_images,
    shown_info,
    with_nvidia_runtime,
)
from gpushared.gate.containers.ownership import OK, inspect, own_containers
from gpushared.gate.handlers.call import Call, drop_body
from gpushared.gate.handlers.context import Handler, HandlerContext, with_json
from gpushared.gate.policy.field_rules import check_image, full_names, pulled_from

BUILDER = "docker.io/moby/buildkit"
PULL_PARAMETERS = frozenset({"fromImage", "tag", "platform"})


class EngineHandlers:
    """Handle requests about the engine itself: a confined caller sees its part of the facts and events."""

    def __init__(self, handler_context: HandlerContext) -> None:
        self._handler_context = handler_context

    def for_everybody(self) -> dict[RouteAction, Handler]:
        return {RouteAction.INFO: self._info}

    def for_confined(self) -> dict[RouteAction, Handler]:
        return {
            RouteAction.PASS: self._pass,
            RouteAction.EVENTS: self._events,
            RouteAction.PLUGIN: self._plugin,
        }

    async def _pass(self, call: Call) -> None:
        stream = call.match.route.payload is Payload.STREAM
        body = serialise(await self._handler_context.read(call, AUTH_TABLE)) if stream else None
        await self._handler_context.send(call, body=body)

    async def _info(self, call: Call) -> None:
        answer = await self._handler_context.ask(call, call.target)
        if answer.status == OK:
            leases = await self._handler_context.lease_service.gpu_count() > 0
            info = with_nvidia_runtime(answer.json(), leases=leases)
            if not call.caller.trusted:
                info = shown_info(info, await own_containers(self._handler_context.engine, call.caller))
            answer = with_json(answer, info)
        await call.answer(answer)

    async def _events(self, call: Call) -> None:
        """Stream the events of the caller's containers: only containers' events have the owner's label."""
        filters = own_only(call.target.get("filters"), call.caller)
        await self._handler_context.send(call, call.target.with_query(filters=filters))

    async def _plugin(self, call: Call) -> None:
        raise NotFound(f"No such plugin: {call.match.name}")


class ImageHandlers:
    """Handle requests about images."""

    def __init__(self, handler_context: HandlerContext) -> None:
        self._handler_context = handler_context

    def for_confined(self) -> dict[RouteAction, Handler]:
        return {
            RouteAction.IMAGE: self._image,
            RouteAction.IMAGE_LIST: self._list,
            RouteAction.PULL: self._pull,
            RouteAction.REGISTRY: self._registry,
        }

    async def _image(self, call: Call) -> None:
        answer = await self._handler_context.ask(call, call.target)
        if answer.status == OK:
            answer = with_json(answer, shown_image(answer.json()))
        await call.answer(answer)

    async def _list(self, call: Call) -> None:
        answer = await self._handler_context.ask(call, call.target)
        if answer.status == OK:
            answer = with_json(answer, shown_images(answer.json()))
        await call.answer(answer)

    async def _registry(self, call: Call) -> None:
        """Pass on a call to a registry if the site allows that.

        The engine calls any registry that the request names, from the machine's network and as the engine.
        """
        if not self._handler_context.policy.registry_queries:
            raise PermissionRefused(
                "the engine asks no registry for you here",
                hint="ask it from elsewhere, as with skopeo; `docker pull` gets an image by its name",
            )
        await self._handler_context.send(call)

    async def _pull(self, call: Call) -> None:
        """Pull an image, without the request's body: as a form it could add parameters to the query's."""
        if call.target.get("fromSrc"):
            raise PermissionRefused(LOAD[0], hint=LOAD[1])
        await drop_body(call.exchange)
        image, tag = call.target.get("fromImage"), call.target.get("tag")
        if strange := sorted({name for name, _ in call.target.query} - PULL_PARAMETERS):
            raise PermissionRefused(f"the parameter {strange[0]} is not for you", hint="it is for imports")
        if not image:
            raise RequestError("no image is named", hint="images are imported by trusted users")
        name = f"{image}{'@' if ':' in tag else ':'}{tag}" if tag else image
        check_no_builder(name)
        check_image(name, self._handler_context.policy)
        if ":" not in name.rpartition("/")[2]:
            raise RequestError(f"{name} names no tag", hint=f"pull {name}:latest")
        if description := await inspect(self._handler_context.engine, "images", name, suffix="/json"):
            _check_pulled(name, description)
        await self._handler_context.send(call, body=b"")


def check_no_builder(image: str) -> None:
    """Raise ``PermissionRefused`` for an image that clients run as a privileged container to build with."""
    if full_names(image)[0] == BUILDER:
        raise PermissionRefused(BUILD[0], hint=BUILD[1])


def _check_pulled(name: str, description: Body) -> None:
    """Raise ``PermissionRefused`` if the image was made here.

    A pull would replace it for all users with the image that anybody may have put under its name at a
    registry.
    """
    repositories = pulled_from(description)
    if "@" in name:
        return  # a pull by digest takes no tag from any image
    if repositories is None:
        raise PermissionRefused(
            f"it cannot be told whether {name} was made on this machine, and a pull would replace it for "
            "everybody",
            hint="use it as it is, or pull by the digest, NAME@sha256:...; a trusted user may pull it",
        )
    if full_names(name)[0] not in repositories:
        raise PermissionRefused(
            f"{name} was made on this machine, and a pull would replace it for everybody",
            hint="use it as it is; a trusted user may pull it",
        )
