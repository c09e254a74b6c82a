"""People whom nobody trusts, each with a uid that no other test has, before one gate."""

from __future__ import annotations

import json
import secrets
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, urlencode

from gpushared.domain.model.request import Caller
from gpushared.gate.docker_gate import Gate
from tests.gate.serving import ROOT, Reply, ServedSocket, ask, request, serving_gate

JSON = "Content-Type: application/json"
GONE = {"containers": {"force": "1", "v": "1"}, "volumes": {"force": "1"}}


@dataclass
class Person:
    """Somebody with a socket; what was made is removed at the end, by root."""

    caller: Caller
    served: ServedSocket
    image: str
    made: list[tuple[str, str]] = field(default_factory=list)

    async def ask(self, method: str, path: str, /, body: object = None, **query: str) -> Reply:
        target = quote(path) + (f"?{urlencode(query)}" if query else "")
        raw = b"" if body is None else json.dumps(body).encode()
        return await ask(self.served, request(method, target, raw, *([JSON] if raw else [])))

    async def get(self, path: str, /, **query: str) -> Any:
        reply = await self.ask("GET", path, **query)
        assert reply.status == 200, reply
        return json.loads(reply.body)

    async def create(self, name: str = "", *command: str, **host: object) -> str:
        """A container's full id; it has no network where ``host`` says nothing."""
        config = {"NetworkMode": "none", **host}
        body = {"Image": self.image, "Cmd": list(command or ("sleep", "600")), "HostConfig": config}
        reply = await self.ask("POST", "/containers/create", body, **({"name": name} if name else {}))
        assert reply.status == 201, reply
        self.made.append(("containers", json.loads(reply.body)["Id"]))
        return self.made[-1][1]

    async def run(self, name: str = "", *command: str, **host: object) -> str:
        container = await self.create(name, *command, **host)
        reply = await self.ask("POST", f"/containers/{container}/start")
        assert reply.status == 204, reply
        return container

    async def make(self, kind: str, name: str) -> Reply:
        """A network or a volume."""
        reply = await self.ask("POST", f"/{kind}/create", {"Name": name})
        if reply.status == 201:
            self.made.append((kind, name))
        return reply


class People:
    """Alice, bob, and root, who tidies up."""

    def __init__(self, alice: Person, bob: Person, root: Person) -> None:
        self.alice, self.bob, self.root = alice, bob, root

    async def tidy(self) -> None:
        made = [*self.alice.made, *self.bob.made, *self.root.made]
        for kind, name in sorted(made):  # containers before what they are on
            await self.root.ask(
                "DELETE", f"/{kind}/{name}", **({"force": "1", "v": "1"} if kind != "networks" else {})
            )


@asynccontextmanager
async def people(gate: Gate, image: str) -> AsyncIterator[People]:
    first = 40_000 + 2 * secrets.randbelow(10_000)
    callers = (Caller(first, first, "alice"), Caller(first + 1, first + 1, "bob"), ROOT)
    async with AsyncExitStack() as stack:
        served = [await stack.enter_async_context(serving_gate(gate, caller)) for caller in callers]
        alice, bob, root = (Person(*each, image) for each in zip(callers, served, strict=True))
        all_of_them = People(alice, bob, root)
        try:
            yield all_of_them
        finally:
            await all_of_them.tidy()
