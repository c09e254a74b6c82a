"""Jobs on a real node: the daemon as a process, the real engine, real containers."""

from __future__ import annotations

import base64
import json
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from gpushared.ports import LABEL_DEVICE, LABEL_JOB
from tests.bed import parts
from tests.node.conftest import NewDaemon
from tests.node.daemon import END_SECONDS, OWN_LABEL, DaemonFailed, DaemonProcess, Json, Refused, wait_until
from tests.node.grpc_client import ask

ADA, BOB = 5, 7
"""``games`` and ``lp``: users that every Debian has, and nobody uses."""
OVER = ("succeeded", "failed", "cancelled")


def body_of(daemon: DaemonProcess, *command: str, **fields: Any) -> str:
    body = {
        "Image": parts.BUSYBOX_IMAGE,
        "Cmd": list(command),
        "Labels": {OWN_LABEL: daemon.directory.name},
        "StopTimeout": 0,
        "HostConfig": {"NetworkMode": "none"},
        **fields,
    }
    return base64.b64encode(json.dumps(body).encode()).decode()


def submit(
    daemon: DaemonProcess,
    *command: str,
    uid: int = 0,
    gpu: str = "0.25",
    lease: Json | None = None,
    **fields: Any,
) -> list[str]:
    """The ids of the jobs."""
    message = {
        "lease": {"gpu": gpu, **(lease or {})},
        "image": parts.BUSYBOX_IMAGE,
        "create_body": body_of(daemon, *command),
        **fields,
    }
    answer = daemon.call("Jobs/Submit", message, uid=uid)
    assert isinstance(answer["job_ids"], list)
    return list(answer["job_ids"])


def job(daemon: DaemonProcess, job_id: str, uid: int = 0) -> Json:
    return daemon.call("Jobs/Get", {"job_id": job_id}, uid=uid)


def wait_job(daemon: DaemonProcess, job_id: str, *states: str, uid: int = 0) -> Json:
    """Wait, by the daemon's own long poll, until the job is in one of these states (over, unless said)."""
    token, deadline = "", time.monotonic() + END_SECONDS
    seen: Json = {}
    while time.monotonic() < deadline:
        seen = daemon.call("Jobs/Wait", {"job_id": job_id, "token": token, "timeout_seconds": 5}, uid=uid)
        if seen["state"] in (states or OVER):
            return seen
        assert states or seen["state"] not in OVER, seen
        token = seen["token"]
    raise DaemonFailed(f"the job is {seen}:\n{daemon.text()[-3000:]}")


def story(daemon: DaemonProcess, job_id: str) -> list[str]:
    explained = daemon.call("Jobs/Explain", {"job_id": job_id})
    return [entry["text"] for entry in explained["story"]]


def marks(path: Path) -> Counter[str]:
    """What containers wrote in a folder that they all have: one line for each beginning."""
    return Counter(path.read_text().split()) if path.exists() else Counter()


# --- one job


def test_a_submitted_job_runs_and_its_output_and_exit_code_are_had_by_the_command_line(
    daemon: DaemonProcess,
) -> None:
    options = ["--network", "none", "--label", f"{OWN_LABEL}={daemon.directory.name}", "-e", "GREETING=hello"]
    script = 'echo "$GREETING $GPUSHARE_JOB_ID $GPUSHARE_COMPUTE_PERCENT"; exit 3'
    done = daemon.gpushare("submit", "--gpu", "0.25", *options, parts.BUSYBOX_IMAGE, "sh", "-c", script)
    assert done.returncode == 0, done.stderr
    name = done.stdout.strip()
    waited = daemon.gpushare("wait", name)
    assert (waited.returncode, waited.stdout) == (3, "")
    assert daemon.gpushare("logs", name).stdout == f"hello {name} 25\n"
    assert daemon.gpushare("logs", f"job-{name}").stdout == f"hello {name} 25\n"
    assert "exit code 3" in daemon.gpushare("why", name).stdout
    listed = daemon.gpushare("jobs", "--ended", "-o", "columns=job,state", "--no-headers").stdout
    assert listed.split() == [name, "failed(3)"]


def test_a_job_waits_in_the_node_s_queue_and_says_why(daemon: DaemonProcess) -> None:
    holder = daemon.request("2")
    (name,) = submit(daemon, "true", gpu="1")
    waiting = wait_job(daemon, name, "queued")
    assert waiting["position"] == 1
    assert waiting["reason"]
    lease = daemon.lease(waiting["parts"][0]["lease_id"])
    assert lease["state"] == "queued"
    daemon.call("Leases/Release", {"lease_id": holder["id"]})
    assert wait_job(daemon, name)["state"] == "succeeded"


def test_nobody_who_waits_is_needed(daemon: DaemonProcess) -> None:
    """A request without a client leaves the queue after a while; a job's does not."""
    (name,) = submit(daemon, "sleep", "1000")
    assert wait_job(daemon, name, "running")["parts"][0]["state"] == "running"
    assert daemon.gpushare("cancel", "--grace", "0", name).stdout == f"{name}\n"
    assert wait_job(daemon, name)["state"] == "cancelled"


def test_the_same_request_gives_the_same_job(daemon: DaemonProcess) -> None:
    first = submit(daemon, "true", request_id="mine")
    assert submit(daemon, "true", request_id="mine") == first
    assert wait_job(daemon, first[0])["state"] == "succeeded"
    assert submit(daemon, "true", request_id="mine") == first
    assert submit(daemon, "true", request_id="mine", uid=ADA) != first


@pytest.mark.parametrize("engine", ["docker_engine", "cdi_engine"])
def test_a_name_that_is_taken_is_refused_at_once(
    new_daemon: NewDaemon, engine: str, request: pytest.FixtureRequest
) -> None:
    """While its job waits, while it runs, and as long as its container is there, as docker has it."""
    found = request.getfixturevalue(engine)
    daemon = new_daemon(engine=getattr(found, "socket", found))
    daemon.start()
    called: dict[str, Any] = {"name": f"x-{daemon.directory.name}"}

    def refusal() -> str:
        with pytest.raises(Refused) as refused:
            submit(daemon, "true", **called)
        assert refused.value.code == "failed_precondition"
        return refused.value.message

    holder = daemon.request("2")
    (first,) = submit(daemon, "sleep", "1000", **called)
    assert f"that of job {first}," in refusal()
    daemon.call("Leases/Release", {"lease_id": holder["id"]})
    wait_job(daemon, first, "running")
    assert f"that of job {first}," in refusal()
    with pytest.raises(Refused, match="is that of somebody else's job"):
        submit(daemon, "true", uid=ADA, **called)
    daemon.call("Jobs/Cancel", {"job_id": first, "grace_seconds": 0})
    wait_job(daemon, first)
    assert "a container on this node is called" in refusal()
    daemon.check("rm", called["name"])
    (second,) = submit(daemon, "true", **called)
    assert wait_job(daemon, second)["state"] == "succeeded"


def test_a_request_that_is_sent_again_does_not_meet_its_own_container(daemon: DaemonProcess) -> None:
    called: dict[str, Any] = {"name": f"x-{daemon.directory.name}", "request_id": "mine"}
    first = submit(daemon, "true", **called)
    wait_job(daemon, first[0])
    assert submit(daemon, "true", **called) == first


def test_a_job_s_container_gets_no_restart_policy_afterwards_either(daemon: DaemonProcess) -> None:
    """The engine would start it at a boot, whoever runs the job by then; other changes are as ever."""
    (name,) = submit(daemon, "sleep", "1000")
    wait_job(daemon, name, "running")
    refused = daemon.docker("update", "--restart", "always", f"job-{name}")
    assert "a job's container is not restarted by docker" in refused.stderr
    daemon.check("update", "--restart", "no", "--cpu-shares", "512", f"job-{name}")


def test_a_job_s_container_that_its_attempt_did_not_wait_for_is_not_started_later(
    daemon: DaemonProcess,
) -> None:
    """So a start that comes late, such as the daemon's own after a freeze, runs no job a second time."""
    (name,) = submit(daemon, "true")
    over = wait_job(daemon, name, "succeeded")
    labels = {LABEL_JOB: name, LABEL_DEVICE: over["parts"][0]["lease_id"], OWN_LABEL: daemon.directory.name}
    words = [word for label, value in labels.items() for word in ("--label", f"{label}={value}")]
    created = parts.docker(daemon.engine, "create", "--name", f"late-{name}", *words, parts.BUSYBOX_IMAGE)
    assert created.returncode == 0, created.stderr
    refused = daemon.docker("start", f"late-{name}")
    assert f"was made for an attempt of job {name} that is over" in refused.stderr
    assert daemon.leases() == {}
    parts.docker(daemon.engine, "rm", f"late-{name}")


def test_a_job_that_is_removed_leaves_no_container(daemon: DaemonProcess) -> None:
    (name,) = submit(daemon, "true", remove=True)
    assert wait_job(daemon, name)["state"] == "succeeded"
    deadline = time.monotonic() + END_SECONDS
    while parts.docker(daemon.engine, "inspect", f"job-{name}").returncode == 0:
        assert time.monotonic() < deadline, "the container stays"
        time.sleep(0.1)
    assert "has been removed" in daemon.gpushare("logs", name).stderr


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"lease": {"gpu": "64"}}, "GPUs"),
        ({"lease": {"gpu": "much"}}, "much"),
        ({"nodes": 2}, "one node cannot be several"),
        ({"pool": True}, "this node is in no pool"),
        ({"pool": True}, "leave --pool and --node out"),
        ({"node": "elsewhere"}, "this node is in no pool"),
        ({"after": [{"job_id": "0000000000"}]}, "there is no job"),
        ({"array": "5-1"}, "are no numbers of an array"),
        ({"image": ""}, "no image was named"),
        ({"stop_after_seconds": 60}, "--stop-after is for jobs of the pool"),
    ],
)
def test_what_can_never_run_is_refused_before_it_is_kept(
    lone_daemon: DaemonProcess, fields: Json, sentence: str
) -> None:
    message = {
        "lease": {"gpu": "1"},
        "image": "x",
        "create_body": base64.b64encode(b'{"Image": "x"}').decode(),
    }
    with pytest.raises(Refused) as refused:
        lone_daemon.call("Jobs/Submit", message | fields)
    assert sentence in refused.value.message + refused.value.hint
    assert lone_daemon.call("Jobs/List", {"ended": True})["jobs"] == []


def test_whoever_waits_for_a_lease_is_told_of_it_and_of_the_socket_in_one_call(daemon: DaemonProcess) -> None:
    """And whoever asks again with the same id, of the same; where there is no room, of what it waits for."""
    asked = {
        "job": {"request_id": "r1", "lease": {"gpu": "2"}, "image": parts.BUSYBOX_IMAGE, "interactive": True},
        "timeout_seconds": 30,
    }
    answer = daemon.call("Jobs/Reserve", asked)
    (part,) = answer["job"]["parts"]
    assert (part["state"], answer["door"]["here"]) == ("reserved", True)
    assert answer["door"] == daemon.call("Jobs/Door", {"job_id": answer["job"]["id"]})
    (again,) = ask(daemon.socket, [("Jobs/Reserve", asked)])
    assert (again["job"]["id"], again["door"]) == (answer["job"]["id"], answer["door"])
    other = {**asked["job"], "request_id": "r2"}  # type: ignore[dict-item]  # it is a mapping
    waiting = daemon.call("Jobs/Reserve", {"job": other, "timeout_seconds": 0.1})
    assert (waiting["job"]["position"], waiting.get("door")) == (1, None)
    with pytest.raises(Refused, match="an array has many leases"):
        daemon.call("Jobs/Reserve", {"job": {**other, "array": "0-1"}})


def test_grpc_and_json_give_the_same_answers_about_jobs(daemon: DaemonProcess) -> None:
    (name,) = submit(daemon, "sh", "-c", "echo out; echo err >&2; exit 4")
    wait_job(daemon, name)
    (other,) = submit(daemon, "true", lease={"held": True})
    calls: list[tuple[str, Json]] = [
        ("Jobs/Get", {"job_id": name}),
        ("Jobs/Explain", {"job_id": name}),
        ("Jobs/List", {"ended": True}),
        ("Jobs/Hold", {"job_id": other, "held": True}),
        ("Jobs/Wait", {"job_id": name, "token": "other"}),
        ("Jobs/Door", {"job_id": name}),
    ]
    by_grpc = ask(daemon.socket, calls)
    assert by_grpc == [daemon.call(call, message) for call, message in calls]
    refused, watched, logs, theirs, none, batch = ask(
        daemon.socket,
        [
            ("Jobs/Get", {"job_id": "nothing"}),
            ("Jobs/Watch", {"job_id": name}),
            ("Jobs/Logs", {"job_id": name}),
            ("Jobs/Logs", {"job_id": other}),
            ("Jobs/Nodes", {}),
            ("Jobs/SubmitBatch", {"jobs": [{}, {}]}),
        ],
    )
    assert (refused["code"], bool(refused["hint"])) == ("not_found", True)
    assert [one["state"] for one in watched["items"]] == ["failed"]
    written = {one["stderr"]: base64.b64decode(one["data"]) for one in logs["items"]}
    assert written == {False: b"out\n", True: b"err\n"}
    assert theirs["code"] == "failed_precondition"
    (alone,) = none["nodes"]
    assert (none["pool"], alone["presence"], len(alone["gpus"])) == ("", "ready", 2)
    assert [one["code"] for one in batch["results"]] == ["invalid_argument"] * 2
    (hidden,) = ask(daemon.socket, [("Jobs/Logs", {"job_id": name})], uid=BOB)
    assert hidden["code"] == "not_found"


def test_whoever_attaches_writes_to_a_job_that_waits_for_it(daemon: DaemonProcess) -> None:
    options = ["--network", "none", "--label", f"{OWN_LABEL}={daemon.directory.name}", "-i"]
    done = daemon.gpushare(
        "submit", "--gpu", "0.25", *options, parts.BUSYBOX_IMAGE, "sh", "-c", "read x; exit $x"
    )
    name = done.stdout.strip()
    wait_job(daemon, name, "running")
    attached = daemon.gpushare("attach", name, stdin="7\n")
    assert attached.returncode == 7
    assert daemon.gpushare("wait", name).returncode == 7


# --- arrays, dependencies, retries


def test_an_array_of_twenty_runs_each_once_and_knows_its_numbers(
    daemon: DaemonProcess, tmp_path: Path
) -> None:
    tmp_path.chmod(0o777)
    body = body_of(
        daemon, "sh", "-c", "echo $GPUSHARE_ARRAY_INDEX >>/out/seen",
        HostConfig={"NetworkMode": "none", "Binds": [f"{tmp_path}:/out"]},
    )  # fmt: skip
    names = submit(daemon, create_body=body, array="1-20", gpu="0.1")
    assert [name.partition("_")[2] for name in names] == [str(number) for number in range(1, 21)]
    array = names[0].partition("_")[0]
    assert daemon.gpushare("wait", array).returncode == 0
    assert marks(tmp_path / "seen") == Counter(str(number) for number in range(1, 21))
    listed = daemon.call("Jobs/List", {"array_id": array, "ended": True})["jobs"]
    assert sorted(one["id"] for one in listed) == sorted(names)
    assert daemon.free_permille() == [1000, 1000]


def test_an_array_is_meant_by_its_name(daemon: DaemonProcess) -> None:
    name = f"{daemon.directory.name}-sweep"
    submit(daemon, "sleep", "1000", array="0-2", name=name, gpu="0.1", lease={"held": True})
    listed = daemon.gpushare("jobs", "-q", "--array", name).stdout.split()
    assert len(listed) == 3
    for words in (("why", name), ("unhold", name), ("priority", name, "5"), ("logs", name), ("stop", name)):
        done = daemon.gpushare(*words)
        assert done.returncode == 125
        assert (
            f"'{name}' is an array of 3 jobs\n  hint: name one: {', '.join(listed)}; or all:" in done.stderr
        )
    (after,) = submit(daemon, "true", after=[{"job_id": name}])
    assert job(daemon, after)["reason"].startswith("it waits for 3 jobs")
    assert daemon.gpushare("cancel", name).stdout.split() == listed[::-1]
    assert daemon.gpushare("wait", name).returncode == 125
    assert wait_job(daemon, after)["state"] == "succeeded"


def test_a_chain_runs_in_its_order_and_breaks_where_one_fails(daemon: DaemonProcess, tmp_path: Path) -> None:
    def writing(text: str, code: int) -> str:
        host = {"NetworkMode": "none", "Binds": [f"{tmp_path}:/out"]}
        return body_of(daemon, "sh", "-c", f"echo {text} >>/out/seen; exit {code}", HostConfig=host)

    tmp_path.chmod(0o777)
    (first,) = submit(daemon, create_body=writing("first", 0))
    (second,) = submit(daemon, create_body=writing("second", 4), after=[{"job_id": first, "ok": True}])
    (third,) = submit(daemon, create_body=writing("third", 0), after=[{"job_id": second, "ok": True}])
    (fourth,) = submit(daemon, create_body=writing("fourth", 0), after=[{"job_id": third}])
    assert wait_job(daemon, fourth)["state"] == "succeeded"
    assert (tmp_path / "seen").read_text().split() == ["first", "second", "fourth"]
    broken = job(daemon, third)
    assert (broken["state"], second in broken["reason"]) == ("failed", True)


def test_a_job_that_fails_is_tried_again_as_often_as_was_said(daemon: DaemonProcess, tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    script = 'echo x >>/out/seen; test "$(wc -l </out/seen)" -ge 2'
    body = body_of(
        daemon, "sh", "-c", script, HostConfig={"NetworkMode": "none", "Binds": [f"{tmp_path}:/out"]}
    )
    (name,) = submit(daemon, create_body=body, retries=3)
    done = wait_job(daemon, name)
    assert (done["state"], done["attempt"]) == ("succeeded", 2)
    assert marks(tmp_path / "seen") == Counter(x=2)
    assert any("retry 1 of 3" in line for line in story(daemon, name))


def test_each_attempt_s_output_is_had_while_the_next_one_waits_and_after(
    daemon: DaemonProcess, tmp_path: Path
) -> None:
    tmp_path.chmod(0o777)
    script = 'echo "$GPUSHARE_ATTEMPT"; echo x >>/out/seen; test "$(wc -l </out/seen)" -ge 2'
    body = body_of(
        daemon, "sh", "-c", script, HostConfig={"NetworkMode": "none", "Binds": [f"{tmp_path}:/out"]}
    )
    (name,) = submit(daemon, create_body=body, retries=1)
    wait_until(lambda: job(daemon, name)["tries"] != [], "the first attempt is over")
    held = daemon.gpushare("hold", name)
    assert held.returncode == 0, held.stderr
    waiting = daemon.gpushare("logs", name)
    assert waiting.stdout == "1\n"
    assert "this is the output of attempt 1" in waiting.stderr
    daemon.gpushare("unhold", name)
    done = wait_job(daemon, name)
    assert done["state"] == "succeeded"
    assert 0 < done["started_at"] <= done["ended_at"] <= time.time()
    output = [daemon.gpushare("logs", *words, name).stdout for words in ([], ["--attempt", "1"])]
    assert output == ["2\n", "1\n"]
    none = daemon.gpushare("logs", "--attempt", "9", name)
    assert (none.returncode, "no attempt 9 that ran" in none.stderr) == (125, True)
    (row,) = daemon.gpushare("jobs", "--ended", "-o", "columns=ran", "--no-headers").stdout.split()
    assert row.endswith("s")
    (streamed,) = ask(daemon.socket, [("Jobs/Logs", {"job_id": name, "attempt": 1})])
    assert [base64.b64decode(one["data"]) for one in streamed["items"]] == [b"1\n"]


def test_more_jobs_than_the_node_s_queue_takes_wait_in_the_job_store_and_all_run(
    new_daemon: NewDaemon, docker_engine: str
) -> None:
    """The queue's bound is one for requests; people who wait at a terminal find room in it meanwhile."""
    daemon = new_daemon(engine=docker_engine, config="[queue]\nmax_queued_per_user = 4\n")
    daemon.start()
    holder = daemon.request("2", uid=ADA)
    names = submit(daemon, "true", array="1-9", uid=ADA)
    wait_job(daemon, names[0], "queued", uid=ADA)
    others = daemon.request("1", uid=ADA)
    assert others["state"] == "queued"
    assert "behind others" in job(daemon, names[-1], uid=ADA)["reason"]
    for lease in (holder, others):
        daemon.call("Leases/Release", {"lease_id": lease["id"]}, uid=ADA)
    for name in names:
        assert wait_job(daemon, name, uid=ADA)["state"] == "succeeded"


# --- its end


def test_a_queued_job_leaves_the_queue_when_it_is_cancelled(daemon: DaemonProcess) -> None:
    daemon.request("2")
    (name,) = submit(daemon, "true", gpu="1")
    lease = wait_job(daemon, name, "queued")["parts"][0]["lease_id"]
    daemon.call("Jobs/Cancel", {"job_id": name})
    assert wait_job(daemon, name)["state"] == "cancelled"
    assert lease not in daemon.leases()


def test_a_held_job_is_not_begun_until_it_is_let_go(daemon: DaemonProcess) -> None:
    (name,) = submit(daemon, "true", lease={"held": True})
    assert job(daemon, name)["state"] == "held"
    assert daemon.leases() == {}
    assert daemon.gpushare("unhold", name).stdout == f"{name}\n"
    assert wait_job(daemon, name)["state"] == "succeeded"


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"image": "gpushared-test/absent", "pull": "never"}, "gpushared-test/absent"),
        ({"binds": ["/nonexistent/path:/x"]}, "/nonexistent/path"),
    ],
)
def test_what_is_missing_where_it_runs_fails_the_job_by_its_name(
    daemon: DaemonProcess, fields: Json, reason: str
) -> None:
    image = fields.pop("image", parts.BUSYBOX_IMAGE)
    host = {"NetworkMode": "none", "Binds": fields.pop("binds", [])}
    body = body_of(daemon, "true", Image=image, HostConfig=host)
    (name,) = submit(daemon, create_body=body, image=image, uid=ADA, **fields)
    done = wait_job(daemon, name, uid=ADA)
    assert (done["state"], reason in done["reason"]) == ("failed", True), done


# --- whose it is


def test_a_user_neither_sees_nor_ends_another_s_job(daemon: DaemonProcess) -> None:
    (name,) = submit(daemon, "sleep", "1000", uid=ADA, name=f"hers-{daemon.directory.name}")
    wait_job(daemon, name, "running", uid=ADA)
    for call in ("Get", "Wait", "Cancel", "Hold", "Explain", "Door"):
        for reference in (name, name[:5], f"hers-{daemon.directory.name}"):
            with pytest.raises(Refused) as refused:
                daemon.call(f"Jobs/{call}", {"job_id": reference}, uid=BOB)
            assert refused.value.code == "not_found"
    assert daemon.call("Jobs/List", {}, uid=BOB)["jobs"] == []
    with pytest.raises(Refused) as refused:
        daemon.call("Jobs/List", {"all": True}, uid=BOB)
    assert refused.value.code == "permission_denied"
    with pytest.raises(Refused):
        submit(daemon, "true", uid=BOB, after=[{"job_id": name}])
    assert [one["id"] for one in daemon.call("Jobs/List", {}, uid=ADA)["jobs"]] == [name]
    assert [one["id"] for one in daemon.call("Jobs/List", {"all": True})["jobs"]] == [name]
    daemon.call("Jobs/Cancel", {"job_id": name, "grace_seconds": 0})
    assert wait_job(daemon, name, uid=ADA)["state"] == "cancelled"


def test_a_job_runs_as_its_owner(daemon: DaemonProcess) -> None:
    (name,) = submit(daemon, "sh", "-c", 'test "$(id -u)" = 5', uid=ADA)
    assert wait_job(daemon, name, uid=ADA)["state"] == "succeeded"
    (name,) = submit(daemon, "sh", "-c", 'test "$(id -u)" = 0')
    assert wait_job(daemon, name)["state"] == "succeeded"


# --- the daemon dies


def test_a_killed_daemon_loses_no_job_and_begins_none_twice(
    new_daemon: NewDaemon, docker_engine: str, tmp_path: Path
) -> None:
    """Some run, some wait in the node's queue, some for others; the daemon is killed again and again."""
    daemon = new_daemon(engine=docker_engine)
    daemon.start()
    tmp_path.chmod(0o777)
    body = body_of(
        daemon, "sh", "-c", "echo $GPUSHARE_JOB_ID >>/out/seen; sleep 1",
        HostConfig={"NetworkMode": "none", "Binds": [f"{tmp_path}:/out"]},
    )  # fmt: skip
    names = submit(daemon, create_body=body, array="0-11", gpu="0.5")
    names += submit(daemon, create_body=body, after=[{"job_id": names[0]}, {"job_id": names[5]}])
    for _ in range(4):
        time.sleep(0.7)  # into the middle of whatever it does
        daemon.kill()
        daemon.start()
    for name in names:
        assert wait_job(daemon, name)["state"] == "succeeded", story(daemon, name)
    assert marks(tmp_path / "seen") == Counter(names)
    assert daemon.leases() == {}


def test_a_job_that_ends_while_the_daemon_is_away_ends_with_its_own_code(daemon: DaemonProcess) -> None:
    (name,) = submit(daemon, "sh", "-c", "sleep 1; exit 9")
    wait_job(daemon, name, "running")
    daemon.kill()
    deadline = time.monotonic() + END_SECONDS
    while daemon.container(f"job-{name}")["State"]["Running"]:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    daemon.start()
    done = wait_job(daemon, name)
    assert (done["state"], done["exit_code"], done["attempt"]) == ("failed", 9, 1)


def test_what_was_over_before_a_restart_is_known_after_it(daemon: DaemonProcess) -> None:
    (name,) = submit(daemon, "true")
    wait_job(daemon, name)
    (held,) = submit(daemon, "true", lease={"held": True})
    daemon.restart()
    assert job(daemon, name)["state"] == "succeeded"
    assert job(daemon, held)["state"] == "held"
    assert story(daemon, name)[0].startswith("submitted by root@")


def test_an_array_runs_so_many_at_once_and_does_so_after_a_restart(daemon: DaemonProcess) -> None:
    names = submit(daemon, "sleep", "1000", array="0-3%2", lease={"gpu": "0.1"})
    first, second, third, _ = names
    for name in (first, second):
        wait_job(daemon, name, "running")
    daemon.restart()
    explanation = daemon.call("Jobs/Explain", {"job_id": third})
    assert (explanation["reason_code"], explanation["sentence"]) == (
        "array_limit",
        "its array runs 2 at a time",
    )
    assert [job(daemon, name)["state"] for name in names] == ["running", "running", "queued", "queued"]
    daemon.call("Jobs/Cancel", {"job_id": first, "grace_seconds": 0})
    wait_job(daemon, third, "running")
    assert job(daemon, names[3])["state"] == "queued"
    daemon.gpushare_says("cancel", "--all", "--grace", "0")


def test_a_job_and_its_lease_count_to_one_project(new_daemon: NewDaemon, docker_engine: str) -> None:
    daemon = new_daemon(engine=docker_engine, config='[projects.vision]\nusers = ["root"]\n')
    daemon.start()
    (held,) = submit(daemon, "true", lease={"held": True})
    (name,) = submit(daemon, "true")
    over = wait_job(daemon, name)
    lease = daemon.lease(over["parts"][0]["lease_id"])
    projects = [lease["project"], over["project"], job(daemon, held)["project"]]
    assert projects == ["vision"] * 3
