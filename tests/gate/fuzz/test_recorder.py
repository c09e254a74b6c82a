"""The recorder answers as an engine does: what it says of its things, a real one says of such things too."""

from __future__ import annotations

import json
import uuid
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest

from gpushared.net.http_client import EngineAnswer, EngineSocket
from tests.gate.fuzz.recording import answer_of

LABELS = {"gpushared-test": "recorder"}


async def _post(engine: EngineSocket, path: str, body: Mapping[str, Any]) -> EngineAnswer:
    return await engine.call("POST", path.encode(), json.dumps(body).encode())


@asynccontextmanager
async def _things(engine: EngineSocket, image: str) -> AsyncIterator[dict[str, str]]:
    """A container with an exec, a network and a volume: the recorder's names for them, and the engine's."""
    name = f"recorder-{uuid.uuid4().hex[:10]}"
    host = {"NetworkMode": "none", "CapDrop": ["ALL"]}
    body = {"Image": image, "Cmd": ["sleep", "600"], "User": "1000:1000", "HostConfig": host}
    await _post(engine, f"/containers/create?name={name}", {**body, "Labels": LABELS})
    try:
        await _post(engine, f"/containers/{name}/start", {})
        execed = await _post(engine, f"/containers/{name}/exec", {"Cmd": ["true"]})
        await _post(engine, "/networks/create", {"Name": name, "Labels": LABELS})
        await _post(engine, "/volumes/create", {"Name": name, "Labels": LABELS})
        yield {
            "/containers/mine/json": f"/containers/{name}/json",
            f"/exec/{'e' * 64}/json": f"/exec/{execed.json()['Id']}/json",
            "/networks/net": f"/networks/{name}",
            "/volumes/vol": f"/volumes/{name}",
            "/containers/json": "/containers/json",
            "/images/json": "/images/json",
            "/containers/nobody/logs": "/containers/nobody/logs?stdout=1",
        }
    finally:
        for path in (f"/containers/{name}?force=1", f"/networks/{name}", f"/volumes/{name}"):
            await engine.call("DELETE", path.encode())


def _differences(said: Any, real: Any, where: str) -> list[str]:
    """Where what the recorder says has another shape than what the engine says."""
    if isinstance(said, dict) and isinstance(real, dict):
        missing = [f"{where}.{key}" for key in said.keys() - real.keys() if "gpushare." not in key]
        common = said.keys() & real.keys()
        return missing + [
            each for key in common for each in _differences(said[key], real[key], f"{where}.{key}")
        ]
    return [] if type(said) is type(real) else [f"{where}: {said!r}, the engine: {real!r}"]


@pytest.mark.docker
async def test_the_recorder_answers_in_the_shapes_of_a_real_engine(
    docker_engine: str, busybox_image: str
) -> None:
    engine = EngineSocket(docker_engine)
    async with _things(engine, busybox_image) as paths:
        for ours, theirs in paths.items():
            status, said = answer_of("GET", ours)
            answer = await engine.call("GET", theirs.encode())
            assert answer.status == status, ours
            assert _differences(said, answer.json(), ours) == []
