"""Create bodies full of what the engine is lenient about: what is made is what was judged."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushared.domain.model.request import Caller
from gpushared.gate.docker_gate import Gate
from gpushared.net.http_client import EngineSocket
from tests.gate.fuzz import wire
from tests.gate.fuzz.rig import Rig, fuzzed
from tests.gate.fuzz.tap import tapping
from tests.gate.lease_services import FakeLeaseService
from tests.gate.serving import ALICE, ROOT, Reply, ServedSocket, ask, request, serving_gate

HARMLESS: dict[str, Any] = {
    "Memory": 64 << 20,
    "NanoCpus": 500_000_000,
    "ShmSize": 1 << 20,
    "OomScoreAdj": 100,
    "ReadonlyRootfs": True,
    "AutoRemove": False,
    "Init": True,
    "Tmpfs": {"/scratch": "size=1m"},
    "Dns": ["192.0.2.1"],
    "Ulimits": [{"Name": "nofile", "Soft": 64, "Hard": 64}],
    "RestartPolicy": {"Name": "on-failure", "MaximumRetryCount": 2},
}
HARMFUL: dict[str, Any] = {
    "Privileged": True,
    "CapAdd": ["SYS_ADMIN"],
    "CapDrop": ["CHOWN"],
    "Binds": ["/:/host"],
    "Mounts": [{"Type": "bind", "Source": "/", "Target": "/host"}],
    "PidMode": "host",
    "IpcMode": "host",
    "UTSMode": "host",
    "UsernsMode": "host",
    "CgroupnsMode": "host",
    "CgroupParent": "/",
    "NetworkMode": "host",
    "SecurityOpt": ["apparmor=unconfined"],
    "Devices": [{"PathOnHost": "/dev/kmsg", "PathInContainer": "/dev/kmsg", "CgroupPermissions": "rwm"}],
    "DeviceCgroupRules": ["a *:* rwm"],
    "DeviceRequests": [{"Driver": "nvidia", "Count": -1, "Capabilities": [["gpu"]]}],
    "Runtime": "nvidia",
    "VolumesFrom": ["other"],
    "MaskedPaths": [],
    "ReadonlyPaths": [],
    "GroupAdd": ["0"],
}
CONFIG: dict[str, Any] = {
    "Env": ["A=b"],
    "Labels": {"a": "b"},
    "WorkingDir": "/tmp",
    "Hostname": "h",
    "User": "0",
    "StopTimeout": 1,
    "Tty": False,
    "Volumes": {"/v": {}},
}
NOTHING: tuple[object, ...] = (None, False, "", 0, [], {})
MADE_OF_NOTHING: dict[str, tuple[object, ...]] = {
    "Runtime": ("runc",),
    "IpcMode": ("private", "shareable"),
    "CgroupnsMode": ("private", "host"),
    "NetworkMode": ("default", "bridge"),
    "SecurityOpt": (["label=disable"],),  # what host's namespaces bring
}
"""What the engine puts where nothing is said."""
FOLDED = str.maketrans({"s": "\u017f", "S": "\u017f", "k": "\u212a", "K": "\u212a"})
SPELLINGS = (
    str.lower,
    str.upper,
    lambda key: key.translate(FOLDED),
    lambda key: f"{key} ",
    lambda key: f"\ufeff{key}",
)
TWISTS = (
    lambda value: None,
    lambda value: [value],
    lambda value: float(value) if isinstance(value, int) else value,
    str,
    lambda value: {"value": value},
    lambda value: 10**30,
    lambda value: -1,
)


RARELY = st.integers(0, 9).map(lambda number: number == 9)


@st.composite
def members(draw: st.DrawFn, known: dict[str, Any], most: int) -> list[str]:
    """Members of an object as text, so that a key may stand there twice."""
    texts = []
    for key in draw(st.lists(st.sampled_from(sorted(known)), max_size=most)):
        spelled = draw(st.sampled_from(SPELLINGS))(key) if draw(RARELY) else key
        value = draw(st.sampled_from(TWISTS))(known[key]) if draw(RARELY) else known[key]
        texts.append(f"{json.dumps(spelled, ensure_ascii=draw(st.booleans()))}:{json.dumps(value)}")
    return texts


@st.composite
def bodies(draw: st.DrawFn) -> bytes:
    harmful = draw(st.just(0) | st.just(0) | st.just(2))
    host = ['"NetworkMode":"none"', *draw(members(HARMLESS, 4)), *draw(members(HARMFUL, harmful))]
    top = [
        '"Image":"IMAGE"',
        '"Cmd":["true"]',
        f'"HostConfig":{{{",".join(host)}}}',
        *draw(members(CONFIG, 3)),
    ]
    if harmful:
        top += draw(members(HARMFUL, 1))
        again = ",".join(draw(members(HARMFUL, 2)))
        top += draw(st.sampled_from([[], [], [f'"hostconfig":{{{again}}}'], [f'"HostConfig":{{{again}}}']]))
    text = f"{{{','.join(draw(st.permutations(top)))}}}"
    after = draw(st.sampled_from(["", "", "", "", " \n", '{"HostConfig":{"Privileged":true}}', "\x00", "]"]))
    return (text + after).encode()


class TappedGates(Rig):
    """Gates before a real engine, and what they send to it."""

    def __init__(self, engine: str, image: str) -> None:
        super().__init__()
        self._engine, self._image = engine, image
        self._served: dict[Caller, ServedSocket] = {}

    def create(self, body: bytes, caller: Caller) -> tuple[Reply, Any, Any]:
        """The answer, the body that the engine got and the container that it made; None without."""
        return self.runner.run(self._create(body.replace(b"IMAGE", self._image.encode()), caller))

    async def open(self) -> None:
        self._tap = await self.stack.enter_async_context(tapping(self._engine))
        for caller in (ROOT, ALICE):
            serving = serving_gate(Gate(self._tap.path, FakeLeaseService()), caller)
            self._served[caller] = await self.stack.enter_async_context(serving)

    async def _create(self, body: bytes, caller: Caller) -> tuple[Reply, Any, Any]:
        self._tap.connections.clear()
        reply = await ask(self._served[caller], request("POST", "/v1.41/containers/create", body))
        sent = [wire.read(bytes(raw)) for raw in self._tap.connections if raw]
        posted = [json.loads(each.body) for each in sent if each.method == "POST"]
        if reply.status != 201:
            return reply, posted[-1] if posted else None, None
        engine, name = EngineSocket(self._engine), json.loads(reply.body)["Id"]
        made = (await engine.call("GET", f"/containers/{name}/json".encode())).json()
        await engine.call("DELETE", f"/containers/{name}?force=1&v=1".encode())
        return reply, posted[-1], made


@pytest.fixture(scope="module")
def gates(docker_engine: str, busybox_image: str) -> Iterator[TappedGates]:
    with TappedGates(docker_engine, busybox_image) as gates:
        yield gates


@pytest.mark.parametrize("caller", [ROOT, ALICE], ids=lambda caller: caller.name)
@fuzzed(40)
@given(body=bodies())
def test_the_container_that_is_made_is_the_one_that_was_judged(
    gates: TappedGates, caller: Caller, body: bytes
) -> None:
    reply, sent, made = gates.create(body, caller)
    if made is None:
        assert reply.status in {400, 403, 409, 429, 500}, reply
        assert caller.trusted or reply.status != 500, "the engine is not asked what it cannot do"
        return
    assert surprises(sent, made) == []
    if not caller.trusted:
        assert made["Config"]["User"].startswith(f"{caller.uid}:")
        assert made["HostConfig"]["CapDrop"] == ["ALL"]
        assert [mount for mount in made["Mounts"] if mount["Type"] == "bind"] == []
        for name in ("Privileged", "CapAdd", "Devices", "DeviceRequests", "PidMode", "VolumesFrom", "Binds"):
            assert made["HostConfig"][name] in NOTHING, name
    assert made["HostConfig"]["DeviceRequests"] in NOTHING, "GPUs are had by leases only"


def surprises(sent: dict[str, Any], made: dict[str, Any]) -> list[str]:
    """Where the container is not what the body says: a field has another value, or one that nobody gave."""
    host = sent["HostConfig"]
    others = [
        f"{key}: {value!r} where nothing was said"
        for key, value in made["HostConfig"].items()
        if key in HARMFUL
        and host.get(key) in NOTHING
        and value not in (*NOTHING, *MADE_OF_NOTHING.get(key, ()))
        and key not in {"MaskedPaths", "ReadonlyPaths"}
    ]
    config = {key: value for key, value in sent.items() if key not in {"HostConfig", "NetworkingConfig"}}
    return [
        *others,
        *_differing(host, made["HostConfig"]),
        *_differing(config, {**made["Config"], "MacAddress": ""}),
    ]


def _differing(said: dict[str, Any], is_so: dict[str, Any]) -> list[str]:
    return [
        f"{key}: {value!r} became {is_so.get(key)!r}"
        for key, value in said.items()
        if value not in NOTHING and not _holds(value, is_so.get(key))
    ]


def _holds(said: Any, is_so: Any) -> bool:
    """Lists and objects of the image's own may be added to what was said."""
    if isinstance(said, dict) and isinstance(is_so, dict):
        return all(_holds(value, is_so.get(key)) for key, value in said.items() if value not in NOTHING)
    if isinstance(said, list) and isinstance(is_so, list):
        return all(any(_holds(one, other) for other in is_so) for one in said)
    return bool(said == is_so)


@pytest.mark.parametrize("caller", [ROOT, ALICE], ids=lambda caller: caller.name)
def test_the_oracle_sees_containers_and_what_is_wrong_with_them(gates: TappedGates, caller: Caller) -> None:
    body = b'{"Image":"IMAGE","Cmd":["true"],"HostConfig":{"NetworkMode":"none","Memory":67108864}}'
    reply, sent, made = gates.create(body, caller)
    assert reply.status == 201
    assert surprises(sent, made) == []
    made["HostConfig"] |= {"Privileged": True, "Memory": 1 << 30}
    made["Config"]["Cmd"] = ["false"]
    assert [each.partition(":")[0] for each in surprises(sent, made)] == ["Privileged", "Memory", "Cmd"]
