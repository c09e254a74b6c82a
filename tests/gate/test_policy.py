"""The presets, option by option as docker's own command line writes them, and what holds for every body."""

from __future__ import annotations

import copy
import re
import shlex
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpushared.cli.capture import capture
from gpushared.cli.start import NOT_IN_A_POOL
from gpushared.config.gate_settings import ADDABLE, PolicyPreset, Publish
from gpushared.domain.model.errors import GpushareError, PermissionRefused, RequestError
from gpushared.gate.api.body import check_create, parse_object
from gpushared.gate.api.field_kinds import Field, FieldKind, Table
from gpushared.gate.api.fields import CREATE_TABLE, HOST_TABLE, NETWORKING_TABLE
from gpushared.gate.api.site import SitePolicy, root_mark
from gpushared.gate.containers.gpu_request import GpuRequest, take_gpu_request
from gpushared.gate.policy.admission import judge_create, judge_exec, judge_update
from gpushared.gate.policy.field_findings import OPTIONS, FieldDecision, Notes
from gpushared.gate.policy.field_rules import Context
from gpushared.gate.policy.process_rules import ROOT_CAPABILITIES
from gpushared.gate.policy.site_presets import PRESETS
from gpushared.net.identity import Account
from tests.bed import parts
from tests.gate.policy_cases import CASES, DROPPED, NO, SET, YES, Case
from tests.gate.serving import ALICE

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "policy.md"
ACCOUNT = Account(ALICE, (ALICE.gid, 2000), "/home/alice")
WORDS = {
    FieldDecision.ALLOWED: YES,
    FieldDecision.REFUSED: NO,
    FieldDecision.SET: SET,
    FieldDecision.DROPPED: DROPPED,
}
OPEN, LAB, STRICT = (PRESETS[preset] for preset in PolicyPreset)


def context(policy: SitePolicy = LAB, **more: Any) -> Context:
    return Context(ACCOUNT, policy, **more)


@pytest.fixture(scope="module")
def program() -> str:
    if not parts.DOCKER.exists():
        parts.absent("cli", f"there is no {parts.DOCKER}")
    return str(parts.DOCKER.resolve())


# --- each option in each preset ------------------------------------------------------------------------


@pytest.mark.parametrize("preset", PolicyPreset)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.option)
def test_a_preset_does_with_an_option_what_its_table_says(
    program: str, case: Case, preset: PolicyPreset
) -> None:
    """As the docker command line writes it into a body, and with a hint where it is refused."""
    network = [] if case.field in {"NetworkMode", "Links"} else ["--network", "none"]
    outcome, said = look(body_of(program, *network, *shlex.split(case.option)), case.field, preset)
    assert outcome == case.outcome(preset), said
    if outcome == NO:
        assert case.instead
        assert case.instead in said


@cache
def body_of(program: str, *words: str) -> bytes:
    return capture(program, [*words, "busybox"], "1.45").body


def look(raw: bytes, field: str, preset: PolicyPreset) -> tuple[str, str]:
    """What became of one field, and the hints of the refusals."""
    notes = Notes()
    body = check_create(parse_object(raw))
    try:
        gpu_request: GpuRequest | None = take_gpu_request(body)
    except RequestError as error:
        return NO, error.hint or ""
    if gpu_request is not None:
        return SET, "a lease"
    judge_create(body, context(PRESETS[preset]), notes)
    name = field if field in CREATE_TABLE else f"HostConfig.{field}"
    found = {one.field: one for one in notes.findings}
    refused = [one for one in notes.findings if one.decision is FieldDecision.REFUSED]
    if refused:
        assert name in {one.field for one in refused}
        return NO, " ".join(f"{one.why} {one.hint}" for one in refused)
    return WORDS[found[name].decision], found[name].why


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.option)
def test_the_page_says_what_becomes_of_the_option(case: Case) -> None:
    """An option with which every preset does the same stands below a heading that says so."""
    page = PAGE.read_text()
    if case.open == case.lab == case.strict:
        _, _, section = page.partition(f"### {case.open.capitalize()} in every preset")
        assert f"`{case.option}`" in section.partition("\n#")[0]
    else:
        assert f"| `{case.option}` | {case.open} | {case.lab} | {case.strict} |" in page


@pytest.mark.parametrize("name", NOT_IN_A_POOL)
def test_no_policy_gives_what_the_command_line_refuses_for_a_pool(name: str) -> None:
    cases = [case for case in CASES if re.match(f"--{name}(?![a-z-])", case.option)]
    assert {case.outcome(preset) for case in cases for preset in PolicyPreset} == {NO}


def test_every_option_of_the_table_is_named_in_explanations() -> None:
    fields = {case.field if case.field in CREATE_TABLE else f"HostConfig.{case.field}" for case in CASES}
    silent = {"HostConfig.", "HostConfig.MaskedPaths"}
    assert fields - silent <= OPTIONS.keys()


# --- rules of a site -----------------------------------------------------------------------------------


def host(body: dict[str, Any], policy: SitePolicy, **more: Any) -> dict[str, Any]:
    judged = judge_create({"HostConfig": body}, context(policy, **more))
    result: dict[str, Any] = judged["HostConfig"]
    return result


ROOT = replace(LAB, root_inside=True, host_ipc=True, networks=OPEN.networks, devices=("/dev/fuse",))
BIND = {"Mounts": [{"Type": "bind", "Source": "/home/alice", "Target": "/x", "ReadOnly": True}]}


@pytest.mark.parametrize(
    ("shared", "words"),
    [
        (BIND, "Mounts"),
        ({"Binds": ["/home/alice:/x:ro"]}, "Mounts"),
        ({"Devices": [{"PathOnHost": "/dev/fuse"}]}, "Devices"),
        ({"IpcMode": "host"}, "IpcMode"),
        ({"NetworkMode": "host"}, "NetworkMode"),
    ],
)
def test_who_is_root_inside_has_nothing_of_the_machine(shared: dict[str, Any], words: str) -> None:
    """Read-only mounts neither: root reads what the caller may not."""
    judge_create({"HostConfig": shared}, context(ROOT))
    with pytest.raises(PermissionRefused, match=f"{words} would give what is the machine's"):
        judge_create({"User": "root", "HostConfig": shared}, context(ROOT))


def test_who_is_root_inside_has_what_packages_need_and_a_mark_that_no_image_can_bring() -> None:
    judged = judge_create({"User": "0:0", "HostConfig": {"CapAdd": ["cap_chown"]}}, context(ROOT))
    made = judged["HostConfig"]
    assert (judged["User"], made["CapDrop"], made["GroupAdd"]) == ("0:0", ["ALL"], [])
    assert made["CapAdd"] == sorted(ROOT_CAPABILITIES)
    assert made["ContainerIDFile"] == root_mark(ALICE.uid)


def test_nobody_sets_the_mark_of_root_inside() -> None:
    assert "ContainerIDFile" not in host({"ContainerIDFile": root_mark(ALICE.uid)}, LAB)


def test_root_inside_has_no_gpu() -> None:
    with pytest.raises(PermissionRefused, match="has a GPU"):
        judge_create({"User": "root"}, context(ROOT, leased=True))


def test_root_inside_runs_with_the_engines_own_seccomp_profile() -> None:
    options = {"SecurityOpt": ["seccomp=unconfined"]}
    judged = judge_create({"User": "root", "HostConfig": options}, context(OPEN))
    assert judged["HostConfig"]["SecurityOpt"] == ["no-new-privileges"]


def test_a_capability_for_who_is_not_root_inside_is_left_out() -> None:
    assert "CapAdd" not in host({"CapAdd": ["SYS_PTRACE"]}, OPEN)


LIMITED = replace(LAB, memory_limit_bytes=8 << 30, cpu_limit=4.0)


@pytest.mark.parametrize(
    ("asked", "given"),
    [
        ({}, {"Memory": 8 << 30, "NanoCpus": 4_000_000_000}),
        ({"Memory": 0, "NanoCpus": 0}, {"Memory": 8 << 30, "NanoCpus": 4_000_000_000}),
        ({"Memory": 1 << 30, "NanoCpus": 1}, {"Memory": 1 << 30, "NanoCpus": 1}),
        ({"CpuQuota": 200_000}, {"CpuQuota": 200_000}),
        ({"CpuPeriod": 50_000}, {"CpuPeriod": 50_000, "CpuQuota": 200_000}),
        ({"CpuQuota": -1}, {"NanoCpus": 4_000_000_000}),
    ],
)
def test_a_container_has_the_sites_limits_where_it_asks_for_none(
    asked: dict[str, Any], given: dict[str, Any]
) -> None:
    judged = host(asked, LIMITED)
    assert given.items() <= judged.items()
    assert given.keys() & {"NanoCpus", "CpuQuota"} == {
        name for name in ("NanoCpus", "CpuQuota") if judged.get(name, 0) > 0
    }


@pytest.mark.parametrize(
    "asked",
    [
        {"Memory": (8 << 30) + 1},
        {"Memory": -1},
        {"MemorySwap": -1},
        {"NanoCpus": 4_000_000_001},
        {"CpuQuota": 400_001},
        {"CpuQuota": 100_000, "CpuPeriod": 20_000},
    ],
)
def test_more_than_the_sites_limits_is_refused_at_a_create_and_later(asked: dict[str, Any]) -> None:
    with pytest.raises(PermissionRefused, match="than a container may have here"):
        host(asked, LIMITED)
    with pytest.raises(PermissionRefused, match="than a container may have here"):
        judge_update(asked, context(LIMITED))


@pytest.mark.parametrize(
    "asked", [{"CpuQuota": -1}, {"CpuPeriod": 1000}, {"CpuPeriod": 1000, "CpuQuota": -1}]
)
def test_an_update_that_names_half_of_a_limit_on_cpus_is_refused_where_the_site_has_one(
    asked: dict[str, Any],
) -> None:
    with pytest.raises(PermissionRefused, match="by its quota and period together"):
        judge_update(asked, context(LIMITED))
    assert judge_update(asked, context(LAB)) == asked


def test_an_update_of_the_quota_where_the_site_has_a_limit_says_of_which_period() -> None:
    """The container may have a shorter one."""
    judged = judge_update({"CpuQuota": 400_000}, context(LIMITED))
    assert judged == {"CpuQuota": 400_000, "CpuPeriod": 100_000}


IMAGES = replace(LAB, images=("nvcr.io/nvidia/*", "docker.io/library/python", "ghcr.io/lab/train:v*"))
HEX = "0123456789abcdef" * 4


@pytest.mark.parametrize(
    "image", ["nvcr.io/nvidia/pytorch:24.05-py3", "python", "python:3.12", "library/python",
              f"docker.io/python@sha256:{HEX}", "index.docker.io/library/python", "ghcr.io/lab/train:v2"]
)  # fmt: skip
def test_an_image_is_allowed_by_its_full_name(image: str) -> None:
    judge_create({"Image": image}, context(IMAGES))


@pytest.mark.parametrize(
    "image", ["busybox", "evil.io/nvcr.io/nvidia/x", "nvcr.io/nvidia", "nvcr.io:443/nvidia/x", HEX, HEX[:12],
              f"sha256:{HEX}", "ghcr.io/lab/train:latest", "someone/python", "", "localhost/python"]
)  # fmt: skip
def test_an_image_that_is_not_named_so_is_refused(image: str) -> None:
    """An id may be that of any image."""
    with pytest.raises(PermissionRefused):
        judge_create({"Image": image}, context(IMAGES))


def test_an_image_without_its_digest_is_refused_where_the_site_wants_digests() -> None:
    digests = replace(LAB, image_digest=True)
    judge_create({"Image": f"python@sha256:{HEX}"}, context(digests))
    for image in ("python", "python:3.12", f"python@sha256:{HEX[:-1]}", "python@md5:0"):
        with pytest.raises(PermissionRefused, match="without its digest"):
            judge_create({"Image": image}, context(digests))


@pytest.mark.parametrize(
    "path",
    [
        "/dev/nvidia0",
        "/dev/nvidia-caps/nvidia-cap1",
        "/dev/dri/renderD128",
        "/dev/dri",
        "/dev/kfd",
        "/dev/mem",
        "/dev/kmsg",
        "/dev/sda",
        "/dev/sda1",
        "/dev/nvme0n1",
        "/dev/dm-0",
        "/dev/mapper/x",
        "/dev/vfio/1",
        "/dev/shm/link",
        "/dev/fd/3",
        "/dev/char/195:0",
        "/dev/../etc/passwd",
        "/dev/infiniband/umad0",
        "/dev/infiniband",
        "/etc/passwd",
        "/dev/tty1",
        "/dev/loop0",
        "/dev/cpu/0/msr",
        "dev/fuse",
        "/dev//mem",
        "/dev",
        "/dev/",
        "/dev/fuse/",
    ],
)
def test_no_site_can_give_a_gpu_a_disk_or_memory_as_a_device(path: str) -> None:
    widest = replace(LAB, devices=("/dev/*", "/dev/*/*"))
    with pytest.raises(PermissionRefused, match="not for you"):
        host({"Devices": [{"PathOnHost": path, "PathInContainer": path}]}, widest)


def test_a_device_has_its_own_name_inside_and_cannot_be_made_anew() -> None:
    given = host({"Devices": [{"PathOnHost": "/dev/fuse", "CgroupPermissions": "rwm"}]}, LAB)["Devices"]
    assert given == [{"PathOnHost": "/dev/fuse", "PathInContainer": "/dev/fuse", "CgroupPermissions": "rw"}]
    with pytest.raises(PermissionRefused, match="its own name"):
        host({"Devices": [{"PathOnHost": "/dev/fuse", "PathInContainer": "/dev/nvidia0"}]}, LAB)


def test_a_port_without_a_binding_is_published_on_this_machine_only_where_that_is_the_rule() -> None:
    """The engine would publish it to everybody."""
    nothing: list[list[str] | None] = [[], None]
    for none in nothing:
        judged = host({"PortBindings": {"80/tcp": none}, "NetworkMode": "none"}, STRICT)
        assert judged["PortBindings"] == {"80/tcp": [{"HostIp": "127.0.0.1", "HostPort": ""}]}
    with pytest.raises(PermissionRefused, match="not published"):
        host({"PortBindings": {"80/tcp": []}}, replace(LAB, publish=Publish.NEVER))


def test_the_shared_bridge_is_refused_however_it_is_named() -> None:
    endpoints: dict[str, Any] = {"NetworkingConfig": {"EndpointsConfig": {"bridge": {}, "mine": {}}}}
    bodies: list[dict[str, Any]] = [
        {},
        {"HostConfig": {}},
        {"HostConfig": {"NetworkMode": "mine"}, **endpoints},
    ]
    for body in bodies:
        with pytest.raises(PermissionRefused, match="the bridge that all containers share"):
            judge_create(body, context(STRICT))


def test_a_program_joins_as_whom_its_container_runs() -> None:
    for policy in (LAB, OPEN):
        with pytest.raises(PermissionRefused, match="is not you"):
            judge_exec({"User": "root", "Cmd": ["id"]}, context(policy))
    assert "User" not in judge_exec({"User": str(ALICE.uid), "Container": "x"}, context())


NAMES_ITSELF = ("", "{{.ID}}", "{{ .FullID }}", "{{.ImageName}}/{{.Name}}/{{.ID}}", "{{.DaemonName}}-{{.ID}}")
OTHERS_NAMES = ("sshd", "{{.Name}}", "{{.ImageName}}", "sshd[1]: {{.ID}}", "{{.ID}}\nsshd", "{{.ImageID}}")


@pytest.mark.parametrize("driver", ["journald", ""])
def test_an_entry_of_the_journal_bears_its_container_s_name(driver: str) -> None:
    """A container can be called sshd; and the engine's default driver may be the journal."""
    for tag in NAMES_ITSELF:
        assert host({"LogConfig": {"Type": driver, "Config": {"tag": tag}}}, LAB)["LogConfig"]
    for tag in OTHERS_NAMES:
        with pytest.raises(PermissionRefused, match="names something else than the container"):
            host({"LogConfig": {"Type": driver, "Config": {"tag": tag}}}, OPEN)
    for option in ("labels", "env"):
        with pytest.raises(PermissionRefused, match="under any name"):
            host({"LogConfig": {"Type": driver, "Config": {option: "SYSLOG_IDENTIFIER"}}}, OPEN)


@pytest.mark.parametrize("driver", ["json-file", "local"])
def test_a_file_of_the_container_s_own_takes_any_words(driver: str) -> None:
    config = {"tag": "sshd", "labels": "a,b", "env": "X", "max-size": "1m"}
    assert host({"LogConfig": {"Type": driver, "Config": config}}, LAB)["LogConfig"]["Config"] == config


# --- versions ------------------------------------------------------------------------------------------


def test_a_field_that_the_requests_version_does_not_have_is_left_out_as_its_description_says() -> None:
    body = {"Image": "x", "MacAddress": "02:42:ac:11:00:02", "HostConfig": {"Umask": 18, "KernelMemory": 1}}
    old = judge_create({**body, "MacAddress": ""}, context(version=(1, 41)))
    assert "Umask" not in old["HostConfig"]
    assert old["HostConfig"]["KernelMemory"] == 1
    new = judge_create(body, context(version=(1, 56)))
    assert new["HostConfig"]["Umask"] == 18
    assert "KernelMemory" not in new["HostConfig"]
    assert "MacAddress" not in new


def test_what_is_left_out_is_told() -> None:
    notes = Notes()
    judge_create({"HostConfig": {"Umask": 18}}, context(version=(1, 41)), notes)
    (finding,) = [one for one in notes.findings if one.field == "HostConfig.Umask"]
    assert finding.decision is FieldDecision.DROPPED
    assert "1.41" in finding.why


# --- what holds for every body -------------------------------------------------------------------------

words = st.just("") | st.sampled_from(
    [
        "host",
        "none",
        "bridge",
        "private",
        "root",
        "0",
        "1000",
        "alice",
        "ALL",
        "CHOWN",
        "SYS_ADMIN",
        "mine",
        "unconfined",
        "no-new-privileges",
        "always",
        "bind",
        "seccomp=unconfined",
        "/dev/fuse",
        "/dev/nvidia0",
        "/etc:/etc",
        "/home/alice:/x",
        "volume",
        "tmpfs",
        "/x",
        "net.core.somaxconn",
        "size=1g",
        "80",
        "8080",
        "0.0.0.0",
    ]
)


def values(field: Field) -> st.SearchStrategy[Any]:
    record = records(field.table) if field.table is not None else st.just({})
    kinds: dict[FieldKind, st.SearchStrategy[Any]] = {
        FieldKind.FLAG: st.booleans(),
        FieldKind.WHOLE: st.integers(-2, 2**40),
        FieldKind.TEXT: words,
        FieldKind.TEXTS: st.lists(words, max_size=2),
        FieldKind.WORDS: words | st.lists(words, max_size=2),
        FieldKind.TEXT_LISTS: st.lists(st.lists(words, max_size=2), max_size=1),
        FieldKind.PAIRS: st.dictionaries(words, words, max_size=2),
        FieldKind.NAMES: st.dictionaries(words, st.just({}), max_size=2),
        FieldKind.SIZE: st.just([24, 80]),
        FieldKind.OPAQUE: st.just({}),
        FieldKind.RECORD: record,
        FieldKind.RECORDS: st.lists(record, max_size=2),
        FieldKind.RECORD_BY_NAME: st.dictionaries(words, record, max_size=2),
        FieldKind.RECORDS_BY_NAME: st.dictionaries(words, st.lists(record, max_size=2), max_size=1),
    }
    return st.none() | kinds[field.kind]


def records(table: Table) -> st.SearchStrategy[dict[str, Any]]:
    """A few of the table's fields at a time, so that some bodies pass."""

    def entry(name: str) -> st.SearchStrategy[tuple[str, Any]]:
        return st.tuples(st.just(name), values(table[name]))

    return st.lists(st.sampled_from(sorted(table)).flatmap(entry), max_size=3).map(dict)


policies = st.sampled_from([OPEN, LAB, STRICT, ROOT, LIMITED, replace(STRICT, networks=OPEN.networks)])


@settings(max_examples=400, deadline=None)
@given(records(CREATE_TABLE), records(HOST_TABLE), policies, st.sampled_from([None, (1, 41), (1, 56)]))
def test_whatever_is_asked_for_a_judged_body_is_within_the_policy_and_stays_as_it_is(
    top: dict[str, Any], of_host: dict[str, Any], policy: SitePolicy, version: tuple[int, int] | None
) -> None:
    asked = {**top, "HostConfig": of_host}
    where = context(policy, version=version)
    try:
        judged = judge_create(check_create(copy.deepcopy(asked)), where)
    except GpushareError:
        return
    made = judged["HostConfig"]
    assert judged.keys() <= CREATE_TABLE.keys()
    assert made.keys() <= HOST_TABLE.keys()
    assert (judged.get("NetworkingConfig") or {}).keys() <= NETWORKING_TABLE.keys()
    assert not made.get("Privileged")
    assert made["CapDrop"] == ["ALL"]
    assert "no-new-privileges" in made["SecurityOpt"]
    assert set(made.get("CapAdd") or ()) <= {*policy.capabilities, *ROOT_CAPABILITIES} <= set(ADDABLE)
    is_root = judged["User"] == "0:0"
    assert is_root or (judged["User"] == f"{ALICE.uid}:{ALICE.gid}" and not made.get("CapAdd"))
    if is_root:
        assert policy.root_inside
        assert not any(mount["Type"] == "bind" for mount in made["Mounts"])
    assert not made.get("PidMode")
    assert 0 < made["PidsLimit"] <= policy.pids_limit
    assert judge_create(check_create(copy.deepcopy(judged)), where) == judged


@settings(max_examples=200, deadline=None)
@given(records(CREATE_TABLE), records(HOST_TABLE), policies)
def test_an_explanation_refuses_exactly_what_is_refused(
    top: dict[str, Any], of_host: dict[str, Any], policy: SitePolicy
) -> None:
    asked, notes = {**top, "HostConfig": of_host}, Notes()
    judge_create(copy.deepcopy(asked), context(policy), notes)
    whys = [one.why for one in notes.findings if one.decision is FieldDecision.REFUSED]
    assert (refusal(asked, policy) in whys) is bool(whys)


def refusal(asked: dict[str, Any], policy: SitePolicy) -> str:
    """The judge's own sentence, empty where it passes."""
    try:
        judge_create(asked, context(policy))
    except GpushareError as error:
        return error.message
    return ""
