"""What is filled in of a request as it comes, and what placement learns of requests."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpushared.domain.leases import events as m
from gpushared.domain.leases.node_machine import handle, restore
from gpushared.domain.leases.node_state import NodeState
from gpushared.domain.leases.surroundings import free_of_host
from gpushared.domain.leases.terms import demand_profile_of, without_ended
from gpushared.domain.model.errors import NeverFits, NotFound, RequestError
from gpushared.domain.model.gpu import MIB, Gpu, GpuId
from gpushared.domain.model.gpu_names import models_named
from gpushared.domain.model.host import HostSize
from gpushared.domain.model.lease import (
    ContainerId,
    Lease,
    LeaseId,
    Suspended,
)
from gpushared.domain.model.request import Caller, Request
from gpushared.domain.scheduling.placement.demand_profile import FIRST_LESSON

ALICE = Caller(1000, 1000, "alice")
NAMES = ("NVIDIA A100-SXM4-80GB", "NVIDIA GeForce RTX 4090", "Tesla T4", "Tesla T40")
GPUS = tuple(
    Gpu(GpuId(f"GPU-{index}"), index, name, 81920 * MIB, 81920 * MIB) for index, name in enumerate(NAMES)
)
QUARTER = Request(1, 250, None, 250)


def node() -> NodeState:
    return handle(NodeState(), m.GpusSurveyed(GPUS), 0.0).state


def ask(state: NodeState, request: Request, request_id: str = "") -> tuple[NodeState, Lease]:
    step = handle(state, m.RequestSubmitted(request, ALICE, request_id), 1.0)
    assert step.lease is not None
    return step.state, step.lease


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (("a100",), NAMES[:1]),
        (("rtx4090",), NAMES[1:2]),
        (("RTX-4090", "a100"), NAMES[:2]),
        (("geforce rtx 4090",), NAMES[1:2]),
        (("t4",), NAMES[2:]),
        (("Tesla T4",), NAMES[2:3]),
        (("tesla t4",), NAMES[2:]),
    ],
)
def test_models_are_called_by_any_part_of_their_names(words: tuple[str, ...], found: tuple[str, ...]) -> None:
    """A whole name, as programs give it, is that model alone."""
    assert models_named(words, GPUS) == found


def test_one_word_that_is_in_no_name_refuses_them_all() -> None:
    with pytest.raises(NeverFits, match="'b200'") as refused:
        models_named(("a100", "b200"), GPUS)
    assert refused.value.hint == f"its models: {', '.join(NAMES)}"


def test_asking_twice_with_one_id_is_harmless_though_models_were_filled_in() -> None:
    asked = replace(QUARTER, models=("t4",))
    state, first = ask(node(), asked, "id-1")
    assert first.request.models == NAMES[2:]
    state, second = ask(state, asked, "id-1")
    assert (second.id, len(state.leases)) == (first.id, 1)
    with pytest.raises(RequestError, match="used for something else"):
        ask(state, replace(asked, models=("a100",)), "id-1")


@pytest.mark.parametrize("field", ["near", "away_from", "after"])
def test_leases_that_it_names_must_be_known_when_it_is_asked_first(field: str) -> None:
    """Asked again for a container that was stopped meanwhile, those that are over are left out."""
    state, other = ask(node(), QUARTER)
    asked = {field: (str(other.id), "l-zzzz")}
    with pytest.raises(NotFound, match="l-zzzz"):
        ask(state, replace(QUARTER, **asked))  # type: ignore[arg-type]  # of any of these fields
    again = without_ended(replace(QUARTER, **asked), state.leases)  # type: ignore[arg-type]  # as above
    assert getattr(again, field) == (other.id,)


def test_each_request_is_learned_once_and_an_older_state_stays_as_it_was() -> None:
    before = node()
    after, _ = ask(before, QUARTER, "id-1")
    after, _ = ask(after, QUARTER, "id-1")
    assert (before.demand_profile.total, after.demand_profile.total) == (0.0, 1.0)


def test_a_restart_learns_again_what_the_journal_kept() -> None:
    state = node()
    for _ in range(FIRST_LESSON):
        state, _ = ask(state, replace(QUARTER, compute_permille=100, memory_permille=100))
    again = restore(NodeState(), state.leases.values(), state.next_sequence)
    assert again.demand_profile.counts == state.demand_profile.counts
    assert again.demand_profile.lessons == state.demand_profile.lessons == 1


def test_bytes_count_as_the_share_beside_which_they_were_granted() -> None:
    bytes_only = Request(1, None, 8192 * MIB, None)
    state, lease = ask(node(), bytes_only)
    (size,) = state.demand_profile.counts
    assert size.permille == lease.grants[0].compute_permille == 100
    assert demand_profile_of([lease]).counts == {size: 1.0}


def test_a_suspended_container_keeps_its_memory_but_not_its_cpus() -> None:
    request = replace(QUARTER, host_cpu_milli=2000, host_memory_bytes=MIB)
    state, lease = ask(replace(node(), host=HostSize(8000, 10 * MIB)), request)
    assert free_of_host(state) == HostSize(6000, 9 * MIB)
    parked = Suspended(ContainerId("box"), 2.0, 1, lease.grants, None, wanted=True)
    state = replace(state, leases={LeaseId(lease.id): replace(lease, state=parked)})
    assert free_of_host(state) == HostSize(8000, 9 * MIB)
