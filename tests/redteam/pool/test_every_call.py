"""Every call that a coordinator serves, made by everybody who may not make it: nothing is told or changed.

The calls come from the descriptors, so that a new one is attacked as soon as it is there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from google.protobuf.message import Message

from gpushared.api.v1 import jobs_pb2
from gpushared.pool.trust.assertions import ASSERTION_METADATA
from tests.redteam.pool.lab import CALLS, Code, Lab, Metadata, ask, bearer

ONLY_ON_NODES = {"Jobs/Door", "Jobs/Reserve", "History/Recent"}
OPEN_TO_STRANGERS = {"Join/GetTrust"}
OF_ONE_JOB = {
    f"Jobs/{name}"
    for name in ("Get", "Wait", "Watch", "Cancel", "Hold", "SetPriority", "Explain", "Logs", "Tunnel")
}
OF_ONE_JOB |= {"History/Report"}
OWN_BUSINESS = {
    *("Jobs/List", "Jobs/Nodes", "Jobs/SubmitBatch", "Leases/List", "Gpus/List"),
    *(f"History/{name}" for name in ("Ended", "Usage", "Waits", "Jobs", "Export")),
}
"""Calls that every user may make, and that tell and change nothing of others."""


def picture(lab: Lab) -> tuple[object, ...]:
    """All that an attack could have changed."""
    admin = lab.coordinator.admin
    return (
        lab.ada.get(lab.job),
        [(one.id, one.revoked) for one in admin.api_tokens()],
        [(one.id, one.revoked) for one in admin.join_tokens()],
        admin.anchors(),
        lab.ada.nodes(),
    )


def expected_of_a_stranger(call: str) -> set[Code]:
    if call in ONLY_ON_NODES or call.startswith("NodeLink/"):
        return {Code.UNIMPLEMENTED, Code.PERMISSION_DENIED}
    return {Code.OK} if call in OPEN_TO_STRANGERS else {Code.PERMISSION_DENIED}


def expected_of_another_user(call: str) -> set[Code]:
    """Whoever may use the pool, and has nothing to do with Ada."""
    if call in OF_ONE_JOB or call == "Jobs/Submit":
        return {Code.NOT_FOUND}
    return {Code.OK} if call in OWN_BUSINESS else expected_of_a_stranger(call)


NO_TOKEN: dict[str, Metadata] = {
    "nothing": (),
    "a made-up token": bearer("gsp_0123456789_0123456789012345678901234567890123456789012"),
    "a node's word on the users' port": ((ASSERTION_METADATA, b"x"),),
    "two tokens": (*bearer("a"), *bearer("b")),
}


@pytest.mark.parametrize("having", NO_TOKEN)
def test_nobody_without_a_token_is_answered_at_the_users_port(lab: Lab, having: str) -> None:
    before = picture(lab)
    with lab.as_stranger(lab.coordinator.ports[0]) as channel:
        ended = {call: ask(channel, call, lab.message(call), NO_TOKEN[having])[0] for call in CALLS}
    assert {call: code for call, code in ended.items() if code not in expected_of_a_stranger(call)} == {}
    assert picture(lab) == before


def test_nobody_without_a_certificate_is_answered_at_the_nodes_port(lab: Lab) -> None:
    before = picture(lab)
    with lab.as_stranger(lab.coordinator.ports[1]) as channel:
        ended = {call: ask(channel, call, lab.message(call), bearer(lab.eve))[0] for call in CALLS}
    assert set(ended.values()) == {Code.UNAVAILABLE}
    assert picture(lab) == before


def test_another_user_s_token_finds_and_changes_nothing_of_ada_s(lab: Lab) -> None:
    before = picture(lab)
    with lab.as_stranger(lab.coordinator.ports[0]) as channel:
        ended = {call: ask(channel, call, lab.message(call), bearer(lab.eve)) for call in CALLS}
    check_others(lab, {call: ended[call] for call in CALLS})
    assert picture(lab) == before


def test_a_member_s_user_finds_and_changes_nothing_of_ada_s(lab: Lab) -> None:
    """Also where the member calls its user Ada: it speaks for its own realm, and that is another Ada."""
    before = picture(lab)
    for principal in ("eve@ws2", "ada@ws2", "root@ws2"):
        with lab.as_member() as channel:
            ended = {}
            for call in sorted(CALLS.keys() - {"NodeLink/Connect", "NodeLink/Serve"}):
                message = lab.message(call)
                ended[call] = ask(channel, call, message, lab.word(principal, message))
        check_others(lab, ended)
    assert picture(lab) == before


def check_others(lab: Lab, ended: dict[str, tuple[Code, Any]]) -> None:
    """That a user was answered as one who has nothing to do with Ada's job, and was told nothing of it."""
    wrong = {call: code for call, (code, _) in ended.items() if code not in expected_of_another_user(call)}
    assert wrong == {}
    assert lab.job not in str([answer for _, answer in ended.values()])


WORDS: dict[str, Callable[[Lab, Message], Metadata]] = {
    "no word": lambda _lab, _message: (),
    "a word for Ada, of whose realm it is not": lambda lab, message: lab.word("ada@lab", message),
    "a word for root of the pool": lambda lab, message: lab.word("root@lab", message),
    "a word for another request": lambda lab, _: lab.word("eve@ws2", jobs_pb2.JobRef(job_id="other")),
    "Ada's token beside no word": lambda lab, _: bearer(lab.eve),
}


@pytest.mark.parametrize("having", WORDS)
def test_a_member_without_its_word_for_exactly_this_is_not_answered(lab: Lab, having: str) -> None:
    before = picture(lab)
    asked = [call for call in CALLS if not call.startswith(("NodeLink/", "Join/"))]
    with lab.as_member() as channel:
        ended = {
            call: ask(channel, call, message, WORDS[having](lab, message))[0]
            for call in asked
            for message in [lab.message(call)]
        }
    allowed = {Code.PERMISSION_DENIED, Code.UNIMPLEMENTED}
    assert {call: code for call, code in ended.items() if code not in allowed} == {}
    assert {call for call, code in ended.items() if code is Code.UNIMPLEMENTED} == ONLY_ON_NODES
    assert picture(lab) == before


def test_a_word_counts_once(lab: Lab) -> None:
    message = jobs_pb2.ListJobsRequest()
    word = lab.word("eve@ws2", message)
    with lab.as_member() as channel:
        assert [ask(channel, "Jobs/List", message, word)[0] for _ in range(2)] == [
            Code.OK,
            Code.PERMISSION_DENIED,
        ]


SCOPES: dict[str, Sequence[str]] = {
    "submit": ["Jobs/Submit", "Jobs/SubmitBatch"],
    "read": [
        *("Jobs/Get", "Jobs/List", "Jobs/Wait", "Jobs/Watch", "Jobs/Explain", "Jobs/Nodes"),
        *(
            call
            for call in CALLS
            if call.startswith(("History/", "Leases/", "Gpus/")) and call not in ONLY_ON_NODES
        ),
    ],
    "cancel": ["Jobs/Cancel", "Jobs/Hold", "Jobs/SetPriority"],
    "logs": ["Jobs/Logs"],
}


@pytest.mark.parametrize("scope", SCOPES)
def test_ada_s_own_token_does_no_more_than_its_scope(lab: Lab, scope: str) -> None:
    words = lab.coordinator.token_file("ada", scope).read_text().strip()
    before = picture(lab)
    others = [
        call for call in CALLS if call not in SCOPES[scope] and not call.startswith(("NodeLink/", "Join/"))
    ]
    with lab.as_stranger(lab.coordinator.ports[0]) as channel:
        ended = {call: ask(channel, call, lab.message(call), bearer(words))[0] for call in others}
    wrong = {call: code for call, code in ended.items() if code is not Code.PERMISSION_DENIED}
    assert wrong == dict.fromkeys(ONLY_ON_NODES, Code.UNIMPLEMENTED)
    assert picture(lab) == before


def test_ada_s_token_does_what_its_scope_says(lab: Lab) -> None:
    with lab.as_stranger(lab.coordinator.ports[0]) as channel:
        words = lab.coordinator.token_file("ada", "read").read_text().strip()
        for call in ("Jobs/Get", "Jobs/List", "Jobs/Explain", "Jobs/Watch"):
            code, answer = ask(channel, call, lab.message(call), bearer(words))
            assert code is Code.OK
            assert lab.job in str(answer)
