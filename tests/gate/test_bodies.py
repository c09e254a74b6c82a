"""Parsing, GPU requests and injection as pure cases: a body before, a body after."""

from __future__ import annotations

import contextlib
import copy
import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushared.domain.model.errors import GpushareError, NeverFits, PermissionRefused, RequestError
from gpushared.domain.model.gpu import GpuId
from gpushared.domain.model.lease import LeaseId
from gpushared.domain.model.request_spec import RequestSpec
from gpushared.gate.api.body import MAX_DEPTH, check_create, parse_object, serialise
from gpushared.gate.api.fields import CONFIG_TABLE, HOST_TABLE
from gpushared.gate.api.routes import own_only, parse_target
from gpushared.gate.api.site import SitePolicy
from gpushared.gate.containers.gpu_request import (
    LeaseClaim,
    gpu_request_of,
    hints_for_docker,
    labels_of,
    take_gpu_request,
    with_count,
)
from gpushared.gate.containers.inject import binds_late, inject
from gpushared.gate.policy.admission import CREATE, HOST, judge_create, networks_of
from gpushared.gate.policy.field_rules import Context
from gpushared.net.identity import Account
from gpushared.ports import DeviceMechanism, EditMount, Edits
from tests.gate.lease_services import GPU, WALLS, facts
from tests.gate.serving import ALICE

# --- parsing -------------------------------------------------------------------------------------------

scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
texts = st.text(st.characters(exclude_categories=["Cs"]))
values = st.recursive(
    scalars | texts, lambda inner: st.lists(inner) | st.dictionaries(texts, inner), max_leaves=20
)


@given(st.dictionaries(texts, values), st.booleans())
def test_what_is_judged_is_what_is_sent(body: dict[str, Any], ascii_only: bool) -> None:
    """The bytes for the engine, read by any parser, are the object that was judged."""
    judged = parse_object(json.dumps(body, ensure_ascii=ascii_only).encode())
    assert json.loads(serialise(judged)) == judged == body


@given(st.sampled_from(sorted(HOST)), values)
def test_any_value_of_a_field_of_the_host_config_is_judged_or_refused(name: str, value: object) -> None:
    _judge({"HostConfig": {name: value}})


@given(st.sampled_from(sorted(CREATE.keys() - {"HostConfig"})), values)
def test_any_value_of_a_field_of_the_body_is_judged_or_refused(name: str, value: object) -> None:
    _judge({name: value})


@given(
    st.sampled_from(
        [
            ("DeviceRequests", "Driver"),
            ("DeviceRequests", "Capabilities"),
            ("DeviceRequests", "DeviceIDs"),
            ("Devices", "PathOnHost"),
            ("Mounts", "Type"),
            ("Mounts", "Source"),
            ("LogConfig", "Type"),
            ("LogConfig", "Config"),
            ("RestartPolicy", "Name"),
        ]
    ),
    values,
)
def test_any_value_inside_a_field_is_judged_or_refused(field: tuple[str, str], value: object) -> None:
    outer, inner = field
    entry = {inner: value}
    _judge({"HostConfig": {outer: entry if outer in {"LogConfig", "RestartPolicy"} else [entry]}})


@given(values)
def test_any_port_is_judged_or_refused(value: object) -> None:
    for bindings in (value, [value], [{"HostPort": value}]):
        _judge({"HostConfig": {"PortBindings": {"80/tcp": bindings}}})


def _judge(body: dict[str, Any]) -> None:
    """As the gate does; nothing but the errors of the tree may come out."""
    with contextlib.suppress(RequestError, PermissionRefused):
        check_create(body)
        take_gpu_request(body)
        networks_of(judge_create(body, Context(Account(ALICE, ()), SitePolicy())))


@given(st.binary())
def test_any_bytes_are_an_object_or_a_refusal(raw: bytes) -> None:
    try:
        judged = parse_object(raw)
    except RequestError:
        return
    assert parse_object(serialise(judged)) == judged


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"[]",
        b"null",
        b'{"a":1',
        b'{"a":1}x',
        b'{"a":1}\x00',
        b'{"a":1,"a":1}',
        b'{"b":{"a":1,"\\u0061":2}}',
        b'{"a":NaN}',
        b'{"a":-Infinity}',
        b'{"a":1e999}',
        b'{"a":"\\ud800"}',
        b'{"a":"\xff"}',
        b'\xef\xbb\xbf{"a":1}',
        '{"a":1}'.encode("utf-16"),
        b'{"a":' + b"9" * 5000 + b"}",
        b'{"a":' + b"[" * MAX_DEPTH + b"]" * MAX_DEPTH + b"}",
        b'{"a":' + b"[" * 100_000,
        b'{"a":[' + b"[]," * 200_000 + b"[]]}",
        b'{"a":"' + b"x" * (4 * 1024 * 1024) + b'"}',
    ],
    ids=lambda raw: repr(raw[:30]),
)
def test_a_body_that_leaves_room_for_doubt_is_refused(raw: bytes) -> None:
    with pytest.raises(RequestError):
        parse_object(raw)


@given(st.sampled_from(sorted({*CONFIG_TABLE, *HOST_TABLE})), st.data())
def test_a_known_field_in_other_letters_is_refused(name: str, data: st.DataObject) -> None:
    """The engine would take it for the field: it compares without regard to case, in all of Unicode."""
    alike = {"s": "sSſ", "k": "kKK"}  # noqa: RUF001 - the letters that fold to s and k are the point
    letters = [data.draw(st.sampled_from(alike.get(c.lower(), c.lower() + c.upper()))) for c in name]
    spelled = "".join(letters)
    body = {"HostConfig": {spelled: None}} if name in HOST_TABLE else {spelled: None}
    if spelled == name:
        check_create(body)
    else:
        with pytest.raises(RequestError, match="is not a field"):
            check_create(body)


@pytest.mark.parametrize("name", sorted(HOST_TABLE))
def test_a_field_of_the_host_config_at_the_top_level_is_refused(name: str) -> None:
    with pytest.raises(RequestError, match="belongs under HostConfig"):
        check_create({name: None})


# --- targets -------------------------------------------------------------------------------------------


@given(st.text(min_size=1), st.lists(st.tuples(texts, texts), max_size=5))
def test_a_target_that_was_judged_reads_the_same_when_it_is_sent(
    name: str, query: list[tuple[str, str]]
) -> None:
    from urllib.parse import quote, urlencode

    try:
        raw = f"/v1.41/images/{quote(name)}/json?{urlencode(query)}".encode()
        target = parse_target(raw)
    except (GpushareError, UnicodeEncodeError):
        return
    assert parse_target(target.encode()) == target
    assert list(target.query) == query


# --- GPU requests ------------------------------------------------------------------------------------------

GPUS = {"Driver": "", "Count": 2, "DeviceIDs": None, "Capabilities": [["gpu"]], "Options": {}}
HINTS = [
    (
        "this node has 1 GPU: --gpu 1 is the most",
        "this node has 1 GPU: --gpus 1 is the most; --label gpushare.gpu=0.25 asks for a part of one",
    ),
    (
        "the most that fits is --gpu-memory 81920m (80 GiB) on each GPU",
        "the most that fits is --label gpushare.gpu-memory=81920m (80 GiB) on each GPU",
    ),
    (
        "write 0.25..1, or --gpu 2x0.25..0.5. Done",
        "write 0.25..1, or --label gpushare.gpu=2x0.25..0.5. Done",
    ),
    ("ask for it with --isolation mig", "ask for it with --label gpushare.isolation=mig"),
    ("leave --isolation out", "leave --isolation out"),
    ("it has 8: give --cpus 8 or less", "it has 8: give --cpus 8 or less"),
    ("its models: H100", "its models: H100"),
    ("", ""),
]


@pytest.mark.parametrize(("said", "told"), HINTS)
def test_who_asks_by_dockers_options_is_told_what_to_ask_for_in_words_that_docker_takes(
    said: str, told: str
) -> None:
    with pytest.raises(NeverFits, match="never fits") as refused, hints_for_docker():
        raise NeverFits("3 never fits on this node", hint=said)
    assert refused.value.hint == told


OTHER_CDI = {"Driver": "cdi", "DeviceIDs": ["vendor.com/net=eth0"]}


def cdi(*names: str) -> dict[str, Any]:
    return {"HostConfig": {"DeviceRequests": [{"Driver": "cdi", "DeviceIDs": list(names)}]}}


GPU_REQUESTS: list[tuple[dict[str, Any], object]] = [
    ({}, None),
    ({"Labels": None, "HostConfig": None}, None),
    ({"Labels": {"mine": "1"}}, None),
    ({"Labels": {"gpushare.class": "train"}}, None),
    ({"Labels": {"gpushare.lease": "l-1"}}, LeaseClaim(LeaseId("l-1"))),
    (
        {"Labels": {"gpushare.lease": "l-1"}, "HostConfig": {"DeviceRequests": [GPUS]}},
        LeaseClaim(LeaseId("l-1")),
    ),
    ({"HostConfig": {"DeviceRequests": [GPUS]}}, RequestSpec(gpu="2")),
    ({"HostConfig": {"DeviceRequests": [{**GPUS, "Count": -1}]}}, RequestSpec(gpu="all")),
    ({"HostConfig": {"DeviceRequests": [{**GPUS, "Driver": "nvidia"}]}}, RequestSpec(gpu="2")),
    ({"HostConfig": {"DeviceRequests": [{"Driver": "nvidia", "Count": 1}]}}, RequestSpec(gpu="1")),
    ({"HostConfig": {"DeviceRequests": [OTHER_CDI]}}, None),
    (cdi("nvidia.com/gpu=all"), RequestSpec(gpu="all")),
    (cdi("gpushare.io/gpu=2x0.5"), RequestSpec(gpu="2x0.5")),
    ({"HostConfig": {"Devices": [{"PathOnHost": "gpushare.io/gpu=0.5"}]}}, RequestSpec(gpu="0.5")),
    (
        {
            "Labels": {"gpushare.gpu": "0.5", "gpushare.class": "infer"},
            "HostConfig": {"DeviceRequests": [GPUS]},
        },
        RequestSpec(gpu="0.5", lease_class="infer"),
    ),
    (
        {"Labels": {"gpushare.time": "2h"}, "HostConfig": {"DeviceRequests": [GPUS]}},
        RequestSpec(gpu="2", time="2h"),
    ),
    (
        {"Labels": {"gpushare.gpu": "1", "gpushare.project": "vision", "gpushare.priority": "5"}},
        RequestSpec(gpu="1", project="vision", priority="5"),
    ),
    ({"Labels": {"gpushare.project": "vision"}}, None),
    (
        {"Labels": {"gpushare.gpu": "1", "gpushare.model": "h100,t4", "gpushare.away-from": "l-1"}},
        RequestSpec(gpu="1", models="h100,t4", away_from="l-1"),
    ),
    (
        {"Labels": {"gpushare.gpu": "1"}, "HostConfig": {"NanoCpus": 1_500_000_001, "Memory": 4096}},
        RequestSpec(gpu="1", host_cpu_milli="1501", host_memory_bytes="4096"),
    ),
    (
        {"Labels": {"gpushare.gpu": "1"}, "HostConfig": {"CpuQuota": 50_000, "CpuPeriod": 25_000}},
        RequestSpec(gpu="1", host_cpu_milli="2000"),
    ),
    (
        {"Labels": {"gpushare.gpu": "1"}, "HostConfig": {"NanoCpus": 0, "CpuQuota": -1, "Memory": 0}},
        RequestSpec(gpu="1"),
    ),
    ({"Env": ["NVIDIA_VISIBLE_DEVICES=void"]}, None),
    ({"Env": ["NVIDIA_VISIBLE_DEVICES"]}, None),
]


@pytest.mark.parametrize(("body", "gpu_request"), GPU_REQUESTS)
def test_a_wish_is_found_and_taken_out(body: dict[str, Any], gpu_request: object) -> None:
    left = copy.deepcopy(body)
    assert take_gpu_request(left) == gpu_request
    assert take_gpu_request(left) is None
    assert not any(label.startswith("gpushare.") for label in left.get("Labels") or {})


def test_requests_for_other_devices_stay() -> None:
    body = {"HostConfig": {"DeviceRequests": [OTHER_CDI, GPUS]}}
    take_gpu_request(body)
    assert body["HostConfig"]["DeviceRequests"] == [OTHER_CDI]


@pytest.mark.parametrize(
    "body",
    [
        {"HostConfig": {"DeviceRequests": [{**GPUS, "Count": 0, "DeviceIDs": ["0"]}]}},
        {"HostConfig": {"DeviceRequests": [{**GPUS, "Count": 0}]}},
        {"HostConfig": {"DeviceRequests": [{**GPUS, "Count": -2}]}},
        {"HostConfig": {"DeviceRequests": [{**GPUS, "Count": True}]}},
        {"HostConfig": {"DeviceRequests": [{**GPUS, "Count": 1e3}]}},
        {"HostConfig": {"DeviceRequests": [{"driver": "nvidia", "Count": 1}]}},
        {"HostConfig": {"DeviceRequests": [GPUS, {**GPUS, "Count": 1}]}},
        {"HostConfig": {"DeviceRequests": "all"}},
        cdi("nvidia.com/gpu=0"),
        cdi("nvidia.com/mig=0:0"),
        cdi("NVIDIA.com/gpu=0"),
        cdi("k8s.device-plugin.nvidia.com/gpu=0"),
        cdi("management.nvidia.com/gpu=all", "nvidia.com/gpu=1"),
        cdi("gpushare.io/lease=l-1"),
        cdi("gpushare.io/gpu=0.5", "gpushare.io/gpu=0.5"),
        cdi("gpushare.io/gpu=0.5", "vendor.com/net=eth0"),
        {"HostConfig": {"Devices": [{"PathOnHost": "/dev/nvidia0"}]}},
        {"HostConfig": {"Devices": [{"PathOnHost": "//dev/nvidiactl"}]}},
        {"HostConfig": {"Devices": [{"PathOnHost": "/dev/x/../nvidia-uvm"}]}},
        {"HostConfig": {"Devices": [{"pathonhost": "/dev/nvidia0"}]}},
        {"HostConfig": {"Runtime": "nvidia"}},
        {"Env": ["NVIDIA_VISIBLE_DEVICES=0"]},
        {"Labels": {"gpushare.lease": ""}},
        {"Labels": {"gpushare.gpux": "1"}},
        {"Labels": {"gpushare.gpu": 1}},
    ],
)
def test_a_wish_without_a_clear_size_is_refused(body: dict[str, Any]) -> None:
    with pytest.raises(RequestError):
        take_gpu_request(body)


@given(st.builds(RequestSpec, *[st.sampled_from(["", "1", "all", "x"])] * 7))
def test_a_wish_survives_as_labels(gpu_request: RequestSpec) -> None:
    sized = any((gpu_request.gpu, gpu_request.gpu_memory, gpu_request.gpu_compute, gpu_request.preset))
    assert gpu_request_of(labels_of(gpu_request)) == (gpu_request if sized else None)


def test_all_means_the_number_of_gpus() -> None:
    assert with_count(RequestSpec(gpu="all"), 8) == RequestSpec(gpu="8")
    assert with_count(RequestSpec(gpu="0.5"), 8) == RequestSpec(gpu="0.5")


# --- injection -----------------------------------------------------------------------------------------

EDITS = Edits(
    (GPU,),
    WALLS,
    env={"CUDA_MPS_PIPE_DIRECTORY": "/run/lease/mps"},
    env_defaults={"TF_FORCE_GPU_ALLOW_GROWTH": "true"},
    mounts=(EditMount("/run/gpushared/leases/l-1/mps", "/run/lease/mps"),),
    devices=("/dev/zero",),
)
MOUNT = {
    "Type": "bind",
    "Source": "/run/gpushared/leases/l-1/mps",
    "Target": "/run/lease/mps",
    "ReadOnly": True,
}
DEVICE = {"PathOnHost": "/dev/zero", "PathInContainer": "/dev/zero", "CgroupPermissions": "rw"}
PIPE, GROWTH = "CUDA_MPS_PIPE_DIRECTORY=/run/lease/mps", "TF_FORCE_GPU_ALLOW_GROWTH=true"
BY_HAND = {"Mounts": [MOUNT], "Devices": [DEVICE]}
LEASE_NAME = "gpushare.io/lease=l-1"
M = DeviceMechanism

INJECTIONS: list[tuple[bool, DeviceMechanism, dict[str, Any]]] = [
    (False, M.PLAIN, {"Env": [GROWTH, PIPE], "HostConfig": BY_HAND}),
    (
        False,
        M.DEVICE_REQUEST,
        {
            "Env": [GROWTH, PIPE],
            "HostConfig": {
                **BY_HAND,
                "DeviceRequests": [{"Driver": "", "Capabilities": [["gpu"]], "DeviceIDs": [GPU]}],
            },
        },
    ),
    (
        False,
        M.NVIDIA_RUNTIME,
        {
            "Env": [GROWTH, f"NVIDIA_VISIBLE_DEVICES={GPU}", PIPE],
            "HostConfig": {**BY_HAND, "Runtime": "nvidia"},
        },
    ),
    (
        True,
        M.PLAIN,
        {
            "Env": [GROWTH],
            "HostConfig": {
                "DeviceRequests": [{"Driver": "cdi", "DeviceIDs": [LEASE_NAME]}],
                "Mounts": [MOUNT],
            },
        },
    ),
    (
        True,
        M.CDI,
        {
            "Env": [GROWTH],
            "HostConfig": {
                "DeviceRequests": [{"Driver": "cdi", "DeviceIDs": [f"nvidia.com/gpu={GPU}", LEASE_NAME]}],
                "Mounts": [MOUNT],
            },
        },
    ),
]


@pytest.mark.parametrize(("lease_devices", "mechanism", "after"), INJECTIONS)
def test_a_lease_is_put_in_as_the_engine_can_take_it(
    lease_devices: bool, mechanism: DeviceMechanism, after: dict[str, Any]
) -> None:
    body: dict[str, Any] = {"Env": ["NVIDIA_VISIBLE_DEVICES=all", "CUDA_VISIBLE_DEVICES=7", "GPUSHARE_X=1"]}
    inject(body, "l-1", EDITS, facts(lease_devices=lease_devices, gpu_mechanism=mechanism))
    assert body == after


INSTANCE = GpuId("MIG-1")


def test_a_mig_instance_that_a_spec_names_comes_by_its_name() -> None:
    named = replace(facts(lease_devices=True, gpu_mechanism=M.CDI), cdi_gpus=frozenset({INSTANCE}))
    body: dict[str, Any] = {}
    inject(body, "l-1", replace(EDITS, gpus=(INSTANCE,)), named)
    (request,) = body["HostConfig"]["DeviceRequests"]
    assert request["DeviceIDs"] == ["nvidia.com/gpu=MIG-1", LEASE_NAME]


def test_a_mig_instance_that_no_spec_names_comes_in_the_next_best_way() -> None:
    """Specs are older than instances that were made since; a GPU is asked for by CDI all the same."""
    old = replace(facts(lease_devices=True, gpu_mechanism=M.CDI), cdi_gpus=frozenset({GPU}))
    by_request: dict[str, Any] = {}
    by_runtime: dict[str, Any] = {}
    by_name: dict[str, Any] = {}
    edits = replace(EDITS, gpus=(INSTANCE,))
    inject(by_request, "l-1", edits, replace(old, other_mechanism=M.DEVICE_REQUEST))
    assert [each["DeviceIDs"] for each in by_request["HostConfig"]["DeviceRequests"]] == [
        [INSTANCE],
        [LEASE_NAME],
    ]
    inject(by_runtime, "l-1", edits, replace(old, other_mechanism=M.NVIDIA_RUNTIME))
    assert by_runtime["HostConfig"]["Runtime"] == "nvidia"
    assert f"NVIDIA_VISIBLE_DEVICES={INSTANCE}" in by_runtime["Env"]
    inject(by_name, "l-1", EDITS, old)
    assert by_name["HostConfig"]["DeviceRequests"][0]["DeviceIDs"][0] == f"nvidia.com/gpu={GPU}"


def test_a_mig_instance_that_nothing_can_bring_is_refused_with_what_to_do() -> None:
    old = replace(facts(lease_devices=True, gpu_mechanism=M.CDI), cdi_gpus=frozenset({GPU}))
    with pytest.raises(RequestError, match="no CDI spec names it") as refused:
        inject({}, "l-1", replace(EDITS, gpus=(INSTANCE,)), old)
    assert "nvidia-ctk cdi generate" in (refused.value.hint or "")


@pytest.mark.parametrize("path", ["/run/gpushare", "/run/gpushare/mps", "/run/gpushare/lease.json", "/run"])
def test_a_container_created_before_its_lease_may_not_mount_where_the_lease_will(path: str) -> None:
    body: dict[str, Any] = {"HostConfig": {"Binds": [f"/x:{path}"]}}
    with pytest.raises(RequestError, match="would hide the lease's"):
        inject(body, "c-1", None, facts(lease_devices=True))


def test_a_container_created_before_its_lease_names_only_the_device() -> None:
    body: dict[str, Any] = {"Env": ["A=b"]}
    late = facts(lease_devices=True)
    inject(body, "c-1", None, late)
    request = {"Driver": "cdi", "DeviceIDs": ["gpushare.io/lease=c-1"]}
    assert body == {"Env": ["A=b"], "HostConfig": {"DeviceRequests": [request]}}
    assert binds_late(late)


@pytest.mark.parametrize("mechanism", [M.CDI, M.DEVICE_REQUEST, M.NVIDIA_RUNTIME])
def test_where_the_body_names_the_gpu_the_lease_must_come_first(mechanism: DeviceMechanism) -> None:
    assert not binds_late(facts(lease_devices=True, gpu_mechanism=mechanism))


@pytest.mark.parametrize(
    "body",
    [
        {"HostConfig": {"Binds": ["/x:/run/lease/mps"]}},
        {"HostConfig": {"Binds": ["/x:/run/lease/mps/control:ro"]}},
        {"HostConfig": {"Mounts": [{"Type": "bind", "Source": "/x", "Target": "/run/./lease//mps/"}]}},
        {"HostConfig": {"Mounts": [{"Type": "tmpfs", "Target": "/run/lease/mps/control"}]}},
        {"HostConfig": {"Tmpfs": {"//run/lease/mps": ""}}},
        {"Volumes": {"/run/lease/mps": {}}},
    ],
)
def test_a_mount_that_would_hide_the_leases_is_refused(body: dict[str, Any]) -> None:
    with pytest.raises(RequestError, match="would hide the lease's"):
        inject(body, "l-1", EDITS, facts())


def test_mounts_beside_and_over_the_leases_are_kept() -> None:
    own = {"Binds": ["/x:/run/lease-other"], "Tmpfs": {"/run": ""}}
    body: dict[str, Any] = {"HostConfig": {**own, "Mounts": []}}
    inject(body, "l-1", EDITS, facts())
    assert body["HostConfig"] == {**own, **BY_HAND}


@pytest.mark.parametrize(
    "own", [{}, {"CgroupParent": ""}, {"CgroupParent": None}, {"CgroupParent": "/gpushare/l-1"}]
)
@pytest.mark.parametrize("lease_devices", [False, True])
def test_a_container_is_put_below_the_cgroup_that_the_driver_limits(
    own: dict[str, Any], lease_devices: bool
) -> None:
    body: dict[str, Any] = {"HostConfig": dict(own)}
    placed = replace(EDITS, cgroup_parent="/gpushare/l-1")
    inject(body, "l-1", placed, facts(lease_devices=lease_devices))
    assert body["HostConfig"]["CgroupParent"] == "/gpushare/l-1"


def test_a_cgroup_of_the_callers_own_is_refused_where_the_driver_limits_the_leases() -> None:
    """In theirs nothing would hold the container; taken from it silently, they would not know."""
    body: dict[str, Any] = {"HostConfig": {"CgroupParent": "/mine"}}
    with pytest.raises(RequestError, match="has to be in its lease's cgroup"):
        inject(body, "l-1", replace(EDITS, cgroup_parent="/gpushare/l-1"), facts())


def test_a_cgroup_of_the_callers_own_is_kept_where_nothing_needs_another() -> None:
    body: dict[str, Any] = {"HostConfig": {"CgroupParent": "/mine"}}
    inject(body, "l-1", EDITS, facts())
    assert body["HostConfig"]["CgroupParent"] == "/mine"


# --- filters -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        ("", {"label": ["gpushare.owner=1000"]}),
        (
            '{"label":["a=b"],"status":["exited"]}',
            {"label": ["a=b", "gpushare.owner=1000"], "status": ["exited"]},
        ),
        ('{"label":{"a=b":true,"c":false}}', {"label": ["a=b", "gpushare.owner=1000"]}),
    ],
)
def test_filters_keep_what_was_asked_and_add_the_owner(raw: str, said: dict[str, list[str]]) -> None:
    assert json.loads(own_only(raw, ALICE)) == said


@pytest.mark.parametrize("raw", ["[]", "x", '{"label":"a"}', '{"label":[1]}', '{"label":[],"label":[]}'])
def test_filters_of_another_shape_are_refused(raw: str) -> None:
    with pytest.raises(RequestError):
        own_only(raw, ALICE)


ROUND_THE_LEASE = {
    "a capability without the word gpu": {"DeviceRequests": [{"Count": -1, "Capabilities": [["compute"]]}]},
    "no capability, which fits every driver": {"DeviceRequests": [{"Count": -1, "Capabilities": [[]]}]},
    "NVIDIA's words after another's": {
        "DeviceRequests": [{"Count": -1, "Capabilities": [["amd"], ["gpu", "utility"]]}]
    },
}


@pytest.mark.parametrize("case", ROUND_THE_LEASE)
def test_a_request_for_which_the_engine_would_take_nvidias_driver_is_a_wish(case: str) -> None:
    body: dict[str, Any] = {"HostConfig": copy.deepcopy(ROUND_THE_LEASE[case])}
    assert take_gpu_request(body) == RequestSpec(gpu="all")
    assert body["HostConfig"]["DeviceRequests"] == []


def test_a_request_for_another_vendors_driver_stays() -> None:
    request = {"Count": 1, "Capabilities": [["tpu"]]}
    body: dict[str, Any] = {"HostConfig": {"DeviceRequests": [request]}}
    assert take_gpu_request(body) is None
    assert body["HostConfig"]["DeviceRequests"] == [request]


@pytest.mark.parametrize(
    "host",
    [
        {"Annotations": {"cdi.k8s.io/x": "nvidia.com/gpu=all"}},
        {"Binds": ["/dev/null:/var/run/nvidia-container-devices/all"]},
        {"Mounts": [{"Type": "bind", "Source": "/dev/null", "Target": "/run/nvidia-container-devices/0"}]},
        {"Runtime": "nvidia-cdi"},
    ],
)
def test_words_to_nvidias_runtime_past_the_lease_are_refused(host: dict[str, Any]) -> None:
    with pytest.raises(RequestError, match="would give"):
        take_gpu_request({"HostConfig": host})
