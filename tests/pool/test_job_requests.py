"""From what somebody asks for to jobs: what is taken, what is refused and in which words."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from gpushared.api.v1 import jobs_pb2, leases_pb2
from gpushared.cli import references
from gpushared.domain.jobs.job import JobSpec, Owner, Pull
from gpushared.domain.jobs.submit_limits import MAX_ARRAY, read_array
from gpushared.domain.model.errors import RequestError
from gpushared.domain.model.lease import JobId
from gpushared.jobs.job_requests import (
    ALPHABET,
    MAX_BODY_BYTES,
    RequestedJobs,
    id_in_array,
    id_of,
    is_job_id,
    is_own_id,
    older_id_of,
    read_submit,
)

ADA = Owner("ada@lab", "ada")
BOB = Owner("bob@lab", "bob")


def wanted(
    body: dict[str, Any] | bytes | None = None,
    is_known: Callable[[JobId], bool] = lambda _: False,
    **fields: Any,
) -> RequestedJobs:
    content = {"Image": fields.get("image", "busybox"), **body} if isinstance(body, dict) else body
    written = content if isinstance(content, bytes) else json.dumps(content or {"Image": "busybox"}).encode()
    lease = leases_pb2.LeaseRequest(gpu="0.5", **fields.pop("lease", {}))
    message = jobs_pb2.SubmitRequest(**{"lease": lease, "image": "busybox", "create_body": written, **fields})
    return read_submit(message, ADA, (), {}, is_known=is_known)


def spec(*args: Any, **fields: Any) -> JobSpec:
    (one,) = wanted(*args, **fields).jobs
    return one[1]


def test_a_job_is_what_docker_would_create_with_a_gpu_request_beside_it() -> None:
    made = spec(
        {"Cmd": ["a", "b"], "HostConfig": {"Memory": 1}}, name="trainer", retries=2, platform="linux/arm64"
    )
    assert json.loads(made.body) == {"Image": "busybox", "Cmd": ["a", "b"], "HostConfig": {"Memory": 1}}
    assert (made.owner, made.name, made.retries, made.platform) == (ADA, "trainer", 2, "linux/arm64")
    assert (made.pull, made.requeue, made.nodes, made.stop_after_seconds) == (Pull.MISSING, True, 1, None)


def test_docker_s_own_removal_becomes_ours_because_docker_s_would_take_the_exit_code_along() -> None:
    made = spec({"HostConfig": {"AutoRemove": True}})
    assert made.remove
    assert "AutoRemove" not in json.loads(made.body)["HostConfig"]
    assert spec(remove=True).remove
    assert not spec().remove


@pytest.mark.parametrize(
    ("body", "fields", "sentence"),
    [
        (b"", {}, "the create body is not JSON"),
        (b"[]", {}, "is not a JSON object"),
        (b'{"Image": "other"}', {}, "is of the image 'other'"),
        ({"HostConfig": []}, {}, "HostConfig is not an object"),
        ({"HostConfig": {"RestartPolicy": {"Name": "always"}}}, {}, "is not restarted by docker"),
        ({"HostConfig": {"RestartPolicy": {"Name": ["always"]}}}, {}, "is not restarted by docker"),
        ({"Env": ["A=" + "x" * MAX_BODY_BYTES]}, {}, "has"),
        ({}, {"image": ""}, "no image was named"),
        ({}, {"name": "no spaces"}, "cannot be a container's name"),
        ({}, {"name": "x" * 200}, "cannot be a container's name"),
        ({}, {"pull": "sometimes"}, "does not say when to pull"),
        ({}, {"retries": -1}, "-1 retries are not possible"),
        ({}, {"retries": 101}, "101 retries are not possible"),
        ({}, {"nodes": 5000}, "5000 nodes are not possible"),
        ({}, {"stop_after_seconds": 1}, "are not possible"),
        ({}, {"request_id": "x" * 200}, "the request id has 200 characters"),
        ({}, {"interactive": True, "retries": 1}, "is not run again by itself"),
        ({}, {"interactive": True, "array": "0-1"}, "cannot be an array"),
        ({}, {"interactive": True, "stop_after_seconds": 60}, "not once a guard watches"),
        ({}, {"lease": {"time": "soon"}}, "soon"),
    ],
)
def test_what_makes_no_sense_is_refused_with_its_name(
    body: dict[str, Any] | bytes, fields: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(RequestError, match=sentence):
        wanted(body, **fields)


# --- arrays


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("", ()),
        ("0-3", (0, 1, 2, 3)),
        ("7", (7,)),
        ("5-9,1,3", (1, 3, 5, 6, 7, 8, 9)),
        ("1,1,0-1", (0, 1)),
        ("999999", (999999,)),
        (f"1-{MAX_ARRAY}", tuple(range(1, MAX_ARRAY + 1))),
    ],
)
def test_the_numbers_of_an_array_are_read_each_once_and_in_order(text: str, numbers: tuple[int, ...]) -> None:
    assert read_array(text) == (numbers, None)


def test_an_array_says_how_many_of_it_run_at_once() -> None:
    assert read_array("0-2%4") == ((0, 1, 2), 4)
    assert [spec.array_limit for _, spec in wanted(array="0-1%1").jobs] == [1, 1]


@pytest.mark.parametrize(
    "text",
    [
        "x",
        "3-1",
        "-1",
        "1-",
        "1,,2",
        "1000000",
        f"0-{MAX_ARRAY}",
        "0-999999",
        "1-2-3",
        "\u0661",
        "0-3%",
        "0-3%0",
        "%2",
        "0-3%x",
        "0%1%1",
    ],
)
def test_what_are_no_numbers_or_too_many_is_refused(text: str) -> None:
    with pytest.raises(RequestError):
        read_array(text)


def test_an_array_of_many_jobs_has_no_long_create_body_for_each_is_kept_with_its_own() -> None:
    long = {"Env": ["X=" + "x" * (MAX_BODY_BYTES // 2)]}
    assert len(wanted(long, array="0-99").jobs) == 100
    with pytest.raises(RequestError, match="to keep"):
        wanted(long, array=f"1-{MAX_ARRAY}")


def test_each_job_of_an_array_has_its_number_in_its_id_and_its_name() -> None:
    made = wanted(array="2,10", name="part")
    assert [job for job, _ in made.jobs] == [f"{made.array}_2", f"{made.array}_10"]
    assert [one.name for _, one in made.jobs] == ["part-2", "part-10"]
    assert {(one.array, one.index) for _, one in made.jobs} == {(made.array, 2), (made.array, 10)}


# --- ids


def test_a_request_that_is_repeated_names_the_same_jobs_and_nobody_else_s() -> None:
    assert wanted(request_id="r", array="0-1").jobs == wanted(request_id="r", array="0-1").jobs
    assert id_of("ada@lab", "r") != id_of("bob@lab", "r")
    assert wanted().jobs != wanted().jobs


@pytest.mark.parametrize("array", ["", "3-4"])
def test_a_request_of_before_the_update_keeps_the_ids_that_it_had(array: str) -> None:
    older = older_id_of(ADA.principal, "r")
    first = id_in_array(older, 3) if array else older
    again = wanted(request_id="r", array=array, is_known=lambda job: job == first)
    assert again.jobs[0][0] == first
    assert wanted(request_id="r", array=array).jobs[0][0] != first


@pytest.mark.parametrize("older", [False, True])
@pytest.mark.parametrize("array", ["", "0-1"])
@pytest.mark.parametrize("request_id", ["", "r"])
def test_every_job_has_an_id_that_its_own_request_gives(request_id: str, array: str, *, older: bool) -> None:
    for job, made in wanted(request_id=request_id, array=array, is_known=lambda _: older).jobs:
        assert is_own_id(job, made)
        assert not is_own_id(job, replace(made, owner=BOB))
        assert not is_own_id(job, replace(made, request_id="another"))
        assert not is_own_id(id_in_array(job, 7), made)


def test_an_id_by_chance_is_of_a_form_that_no_request_is_given_any_more() -> None:
    free = replace(spec(), request_id="")
    assert is_own_id(JobId("0123456789"), free)
    assert is_own_id(JobId("0123456789_3"), replace(free, array=JobId("0123456789"), index=3))
    for job in (id_of("bob@lab", "r"), "012345678", "0123456789ab", "0123456789_3", "o123456789"):
        assert not is_own_id(JobId(job), free)


def test_the_command_line_knows_a_job_s_id_when_it_sees_one() -> None:
    for number in range(200):
        made, older = id_of("ada@lab", str(number)), older_id_of("ada@lab", str(number))
        assert (len(made), len(older)) == (13, 10)
        assert set(made) <= set(ALPHABET)
        for text in (made, f"{made}_7", older, f"{older}_7"):
            assert is_job_id(text)
            assert references.is_job_id(text)
    for text in (
        "trainer",
        "l-7f3k",
        "0123456789_",
        "0123456789_x",
        "012345678",
        "0123456789ab",
        "iiiiiiiiii",
    ):
        assert not is_job_id(text)
        assert not references.is_job_id(text)
