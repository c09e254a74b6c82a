"""What a leased container gets of NVIDIA's driver: by its user's word, its image's, and the site's."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gpushared.config.gate_settings import DRIVER_CAPABILITIES, GateConfig
from gpushared.domain.model.errors import GpushareError, PermissionRefused, RequestError
from gpushared.gate.api.body import CAPABILITIES, check_driver_capabilities, driver_capabilities
from gpushared.gate.containers.gpu_request import take_gpu_request
from gpushared.gate.containers.inject import strip_env
from gpushared.gate.docker_gate import Gate
from gpushared.gate.policy.admission import judge_create
from gpushared.gate.policy.field_rules import Context
from gpushared.gate.policy.site_presets import policy_of
from gpushared.net.identity import Account
from tests.gate.lease_services import FakeLeaseService
from tests.gate.people import people
from tests.gate.serving import ALICE

ALL_GIVEN, VIDEO_ONLY = DRIVER_CAPABILITIES, ("video",)


@pytest.mark.parametrize(
    ("named", "given", "value"),
    [
        ("", ALL_GIVEN, "compute,utility"),
        ("all", ALL_GIVEN, "all"),
        ("compute,utility,video", ALL_GIVEN, "compute,utility,video"),
        ("graphics", ALL_GIVEN, "graphics"),
        ("video, compute,video,", ALL_GIVEN, "video,compute"),
        ("all", VIDEO_ONLY, "compute,utility,video"),
        ("compute,utility,video", VIDEO_ONLY, "compute,utility,video"),
        ("compute,graphics", VIDEO_ONLY, "compute"),
        ("graphics", VIDEO_ONLY, "compute,utility"),
        ("all", (), "compute,utility"),
    ],
)
def test_what_is_named_is_given_as_far_as_the_site_gives_it(
    named: str, given: tuple[str, ...], value: str
) -> None:
    assert driver_capabilities(named, given) == value


@pytest.mark.parametrize(
    ("value", "given", "refused", "words"),
    [
        ("compute,cuda", ALL_GIVEN, RequestError, "NVIDIA's driver has no capability 'cuda'"),
        ("ALL", ALL_GIVEN, RequestError, "NVIDIA's driver has no capability 'ALL'"),
        (
            "graphics",
            VIDEO_ONLY,
            PermissionRefused,
            "the capability graphics of NVIDIA's driver is not given",
        ),
    ],
)
def test_a_word_that_is_unknown_or_not_given_is_refused_with_those_that_are(
    value: str, given: tuple[str, ...], refused: type[GpushareError], words: str
) -> None:
    with pytest.raises(refused, match=words) as error:
        check_driver_capabilities([f"{CAPABILITIES}={value}"], given)
    assert ", ".join(("name all, or some of compute, utility", *given)) in (error.value.hint or "")


def test_what_leases_do_not_have_is_not_judged() -> None:
    """Without a GPU the variable means nothing."""
    body = {"Env": [f"{CAPABILITIES}=graphics"]}
    policy = policy_of(GateConfig(driver_capabilities=VIDEO_ONLY))
    account = Account(ALICE, (), "/home/alice")
    assert judge_create(body, Context(account, policy))["Env"] == body["Env"]
    with pytest.raises(PermissionRefused, match="not given here"):
        judge_create(body, Context(account, policy, leased=True))


@pytest.mark.parametrize(
    ("capabilities", "env"),
    [
        ([["gpu"]], ["A=1", f"{CAPABILITIES}=graphics"]),
        ([["gpu", "compute", "video"]], ["A=1", f"{CAPABILITIES}=compute,video"]),
        ([["tpu"], ["nvidia", "display"]], ["A=1", f"{CAPABILITIES}=display"]),
    ],
)
def test_what_a_device_request_names_wins_as_it_does_in_the_engine(
    capabilities: list[list[str]], env: list[str]
) -> None:
    request = {"Driver": "nvidia", "Count": 1, "Capabilities": capabilities}
    body: dict[str, Any] = {
        "Env": ["A=1", f"{CAPABILITIES}=graphics"],
        "HostConfig": {"DeviceRequests": [request]},
    }
    take_gpu_request(body)
    assert strip_env(body["Env"]) == env


@pytest.mark.docker
async def test_a_confined_user_s_refusal_ends_the_lease_that_was_made_for_the_container(
    docker_engine: str, busybox_image: str
) -> None:
    lease_service = FakeLeaseService()
    gate = Gate(docker_engine, lease_service, policy_of(GateConfig(driver_capabilities=VIDEO_ONLY)))
    async with people(gate, busybox_image) as everybody:
        alice = everybody.alice
        lease_service.owners["l-alices"] = alice.caller.uid
        body = {"Image": busybox_image, "Labels": {"gpushare.lease": "l-alices"}}
        reply = await alice.ask("POST", "/containers/create", {**body, "Env": [f"{CAPABILITIES}=graphics"]})
        assert (reply.status, lease_service.call_names) == (403, ["claim", "release"])
        assert "the capability graphics of NVIDIA's driver is not given here" in reply.message
        made = await alice.ask("POST", "/containers/create", {**body, "Env": [f"{CAPABILITIES}=all"]})
        assert made.status == 201, made
        alice.made.append(("containers", json.loads(made.body)["Id"]))
        shown = await alice.get(f"/containers/{alice.made[-1][1]}/json")
        assert f"{CAPABILITIES}=compute,utility,video" in shown["Config"]["Env"]
