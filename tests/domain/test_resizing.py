"""Another size for a lease: who may, when, how far up and how far down, and what it becomes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpushared.domain.leases import events as m
from gpushared.domain.leases.events import Condition
from gpushared.domain.leases.instructions import MakeEdits
from gpushared.domain.leases.node_machine import handle
from gpushared.domain.leases.node_rules import Action, Rules, WatchdogPolicy
from gpushared.domain.leases.node_state import NodeState, Step
from gpushared.domain.model.elastic import is_elastic
from gpushared.domain.model.errors import (
    GpushareError,
    LimitReached,
    NeverFits,
    PermissionRefused,
    RequestError,
    StateConflict,
    Unavailable,
)
from gpushared.domain.model.gpu import MIB, Gpu, GpuId
from gpushared.domain.model.lease import (
    ComputeCap,
    ContainerId,
    Grant,
    Lease,
    LeaseId,
    LeaseState,
    MemoryWall,
    Queued,
    Requeued,
    Reserved,
    Resuming,
    Suspended,
    Suspending,
    Walls,
)
from gpushared.domain.model.request import (
    Caller,
    Isolation,
    LeaseClass,
    Request,
)
from gpushared.domain.model.request_spec import (
    NewSize,
    RequestSpec,
    describe,
    read_request,
    read_size,
)

ROOT = Caller(0, 0, "root", trusted=True)
ALICE = Caller(1000, 1000, "alice")
BOB = Caller(1001, 1001, "bob")
GIB = 1024 * MIB
TOTAL = 80 * GIB
ONE, TWO = (Gpu(GpuId(f"GPU-{n}"), n, "H100", TOTAL, TOTAL) for n in range(2))
CHECKPOINTS = m.Means(no_checkpoint="", checkpoint_with_mps=True)
MPS = Walls(MemoryWall.MPS_CLIENT, ComputeCap.MPS_PERCENTAGE)


def part(permille: int, limit: int | None = None, count: int = 1) -> Request:
    return Request(count, permille, None, permille, time_limit_seconds=limit)


WHOLE = Request(1, 1000, None, 1000, Isolation.EXCLUSIVE)


class Node:
    def __init__(self, gpus: int = 1, action: Action = Action.KILL) -> None:
        self.now = 1000.0
        policy = WatchdogPolicy(action)
        self.state = NodeState(rules=Rules(watchdog=dict.fromkeys(LeaseClass, policy)))
        self.send(m.GpusSurveyed((ONE, TWO)[:gpus]))
        self.use()

    def send(self, event: m.Event) -> Step:
        step = handle(self.state, event, self.now)
        self.state = step.state
        return step

    def ask(self, request: Request, caller: Caller = ALICE, request_id: str = "") -> LeaseId:
        lease = self.send(m.RequestSubmitted(request, caller, request_id)).lease
        assert lease is not None
        return lease.id

    def run(self, request: Request, walls: Walls = MPS) -> LeaseId:
        """A lease whose container runs behind these walls."""
        lease = self.ask(request)
        box = ContainerId(f"box-of-{lease}")
        self.send(m.EditsMade(lease, walls))
        self.send(m.ContainerCreated(lease, box, "box", "image"))
        self.send(m.ContainerSeen(box, Condition.RUNNING))
        return lease

    def use(self, used: dict[LeaseId, int] | None = None, stray: int = 0) -> None:
        """A sample in which the processes of these leases hold so much of GPU 0."""
        by_lease = {lease: {ONE.id: size} for lease, size in (used or {}).items()}
        readable = frozenset(self.state.gpus)
        self.send(
            m.GpusSampled(self.now, frozenset(by_lease), {ONE.id: stray}, readable, used_bytes=by_lease)
        )

    def resize(self, lease: LeaseId, by: Caller = ALICE, /, **words: str) -> Step:
        return self.send(m.ResizeAsked(lease, by, read_size(**words)))

    def of(self, lease: LeaseId) -> Lease:
        return self.state.find(lease)

    def grant(self, lease: LeaseId) -> tuple[int, int]:
        """GiB and permille on its first GPU."""
        grant = self.of(lease).grants[0]
        return grant.memory_bytes // GIB, grant.compute_permille


@pytest.mark.parametrize(
    ("request_", "words", "expected"),
    [
        (part(250), {"gpu": "0.5"}, (40, 500)),
        (part(250), {"gpu_memory": "12g"}, (12, 250)),
        (part(250), {"gpu_compute": "50%"}, (20, 500)),
        (part(250), {"gpu": "0.1", "gpu_memory": "30g"}, (30, 100)),
        (part(250), {"gpu": "0.5", "gpu_compute": "10%"}, (40, 100)),
        (Request(memory_bytes=8 * GIB), {"gpu_memory": "16g"}, (16, 200)),
        (Request(memory_bytes=8 * GIB), {"gpu_compute": "60%"}, (8, 600)),
        (Request(1, 300, 8 * GIB), {"gpu_memory": "16g"}, (16, 300)),
    ],
)
def test_what_is_said_changes_and_the_rest_stays(
    request_: Request, words: dict[str, str], expected: tuple[int, int]
) -> None:
    """Only the compute of a request for memory alone follows its memory, as it did from the start."""
    node = Node()
    lease = node.run(request_)
    step = node.resize(lease, **words)
    assert node.grant(lease) == expected
    assert MakeEdits(lease) in step.instructions
    assert node.of(lease).story[-1].text.startswith("alice resized it from ")


@pytest.mark.parametrize("words", [{"gpu": "0.25"}, {"gpu_memory": "20g"}, {"gpu_compute": "25%"}])
def test_the_size_that_it_has_changes_nothing(words: dict[str, str]) -> None:
    node = Node()
    lease = node.run(part(250))
    step = node.resize(lease, **words)
    assert (step.changed, step.instructions) == ((), ())
    assert step.lease == node.of(lease)


@pytest.mark.parametrize(("caller", "may"), [(ALICE, True), (ROOT, True), (BOB, False)])
def test_only_its_owner_and_the_trusted_may(caller: Caller, may: bool) -> None:
    node = Node()
    lease = node.run(part(250))
    if may:
        node.resize(lease, caller, gpu="0.5")
        return
    with pytest.raises(PermissionRefused):
        node.resize(lease, caller, gpu="0.5")


@pytest.mark.parametrize(
    ("words", "error", "says"),
    [
        ({"gpu_memory": "67g"}, LimitReached, "50 GiB and 40% of the compute free, and 51 GiB more would be"),
        ({"gpu_compute": "61%"}, LimitReached, "GPU 0 has 50 GiB"),
        ({"gpu_memory": "81g"}, NeverFits, "never fits on GPU 0"),
        ({"gpu": "2x0.5"}, RequestError, "keeps this number"),
        ({}, RequestError, "no new size"),
    ],
)
def test_what_cannot_be_is_refused_and_changes_nothing(
    words: dict[str, str], error: type[GpushareError], says: str
) -> None:
    node = Node()
    lease = node.run(part(200))
    node.run(Request(1, 400, 14 * GIB))
    before = node.state
    with pytest.raises(error, match=says):
        node.resize(lease, **words)
    assert node.state is before


def test_memory_that_strangers_hold_is_not_leased() -> None:
    node = Node()
    lease = node.run(part(250))
    node.use(stray=50 * GIB)
    with pytest.raises(LimitReached, match="10 GiB"):
        node.resize(lease, gpu_memory="31g")
    node.resize(lease, gpu_memory="30g")
    assert node.grant(lease) == (30, 250)


@pytest.mark.parametrize(
    ("used", "asked", "may"),
    [(0, "1g", True), (10, "10g", False), (10, "10495m", False), (10, "10496m", True), (10, "21g", True)],
)
def test_memory_is_lowered_to_what_is_used_and_a_margin(used: int, asked: str, may: bool) -> None:
    node = Node()
    lease = node.run(part(250))
    node.use({lease: used * GIB} if used else {})
    if may:
        node.resize(lease, gpu_memory=asked)
        assert node.of(lease).grants[0].memory_bytes // MIB in (1024, 10496, 21504)
        return
    with pytest.raises(StateConflict, match="uses 10 GiB on GPU 0") as refused:
        node.resize(lease, gpu_memory=asked)
    assert "10.2 GiB" in refused.value.hint


@pytest.mark.parametrize("blind", ["old", "unreadable", "untold"])
def test_memory_is_not_lowered_by_guess(blind: str) -> None:
    node = Node()
    lease = node.run(part(250))
    if blind == "old":
        node.now += 60
    elif blind == "unreadable":
        node.send(m.GpusSampled(node.now, frozenset(), {}, frozenset(), {}))
    else:
        node.use({lease: 0})
    with pytest.raises(Unavailable, match="not known"):
        node.resize(lease, gpu_memory="10g")
    node.resize(lease, gpu_compute="10%")
    node.resize(lease, gpu_memory="30g")
    assert node.grant(lease) == (30, 100)


def test_what_is_freed_is_granted_in_the_same_step() -> None:
    node = Node()
    lease = node.run(part(750))
    waits = node.ask(part(500))
    assert isinstance(node.of(waits).state, Queued)
    step = node.resize(lease, gpu="0.5")
    assert node.grant(waits) == (40, 500)
    assert set(step.instructions) == {MakeEdits(lease), MakeEdits(waits)}


@pytest.mark.parametrize(
    ("own_limit", "others_limit", "may"),
    [(None, None, False), (None, 600, False), (3600, 600, False), (300, 600, True), (300, None, False)],
)
def test_a_raise_does_not_delay_the_head_of_the_queue(
    own_limit: int | None, others_limit: int | None, may: bool
) -> None:
    """Where time limits say that it is over before the head starts, it may use the room until then."""
    node = Node()
    lease = node.run(part(250, own_limit))
    node.run(part(500, others_limit))
    head = node.ask(part(600))
    assert isinstance(node.of(head).state, Queued)
    if may:
        node.resize(lease, gpu="0.5")
        return
    with pytest.raises(LimitReached, match=f"kept for {head}"):
        node.resize(lease, gpu="0.5")


def test_a_raise_leaves_what_is_fixed_for_a_project_s_build_work() -> None:
    node = Node()
    node.send(m.ProjectSet("lab", ROOT, users=("bob",), fixed=500))
    lease = node.run(part(250))
    with pytest.raises(LimitReached, match="room on GPU 0 is fixed for build work of lab"):
        node.resize(lease, gpu="0.75")
    assert grown(node, lease, gpu="0.1..1").compute_permille == 500


@pytest.mark.parametrize("model", ["", "H100"])
def test_a_raise_leaves_the_project_within_its_limits(model: str) -> None:
    node = Node()
    node.send(m.ProjectSet("vision", ROOT, users=("alice",), model=model, limit=600))
    lease, other = node.run(part(250)), node.run(part(100))
    with pytest.raises(LimitReached, match=r"project vision holds 0\.35 GPUs; its limit is 0\.6 GPUs"):
        node.resize(lease, gpu="0.75")
    node.resize(lease, gpu="0.5")
    assert grown(node, other, gpu="0.1..1").compute_permille == 100


def test_build_work_of_the_project_may_be_raised_into_it() -> None:
    node = Node()
    node.send(m.ProjectSet("lab", ROOT, users=("bob",), fixed=500))
    build = node.ask(replace(part(250), lease_class=LeaseClass.BUILD), BOB)
    node.ask(part(500))
    node.resize(build, BOB, gpu="0.5")
    assert node.of(build).grants[0].compute_permille == 500


def test_a_raise_beside_the_head_s_gpus_is_free() -> None:
    node = Node(gpus=2)
    lease = node.run(part(250))
    node.run(replace(part(900), gpus=(TWO.id,)))
    head = node.ask(replace(part(500), gpus=(TWO.id,)))
    node.resize(lease, gpu="0.5")
    assert node.grant(lease) == (40, 500)
    assert isinstance(node.of(head).state, Queued)


def test_in_the_queue_the_request_changes_and_keeps_its_place() -> None:
    node = Node()
    node.run(part(750))
    first, second = node.ask(part(500)), node.ask(part(400))
    node.resize(first, gpu="0.6")
    assert [lease.id for lease in node.state.waiting()] == [first, second]
    assert node.of(first).request == part(600)
    node.resize(first, gpu="0.2")
    assert node.grant(first) == (16, 200)
    with pytest.raises(NeverFits):
        node.resize(second, gpu_memory="90g")


def test_asking_again_for_a_lease_that_was_resized_since_gives_that_lease() -> None:
    """A client that lost its connection asks again as it did at first."""
    node = Node()
    node.run(part(750))
    lease = node.ask(part(500), request_id="r1")
    node.resize(lease, gpu="0.6")
    assert node.ask(part(500), request_id="r1") == lease
    with pytest.raises(RequestError, match="something else"):
        node.ask(part(300), request_id="r1")


def test_a_reservation_is_resized_before_its_container_but_not_under_it() -> None:
    node = Node()
    lease = node.ask(part(250))
    node.resize(lease, gpu="0.5")
    assert node.grant(lease) == (40, 500)
    assert node.of(lease).created_grants == ()
    node.send(m.ClaimAsked(lease, ALICE))
    assert isinstance(node.of(lease).state, Reserved)
    with pytest.raises(StateConflict, match="being created"):
        node.resize(lease, gpu="0.25")


def test_whole_gpus_and_leases_on_their_way_out_are_not_resized() -> None:
    node = Node(gpus=2)
    whole, part_ = node.run(WHOLE), node.run(part(250))
    queued = node.ask(WHOLE)
    node.send(m.StopAsked(part_, ALICE, 0))
    for lease in (whole, queued, part_):
        with pytest.raises(StateConflict) as refused:
            node.resize(lease, gpu="0.5")
        assert refused.value.hint


@pytest.mark.parametrize("size", [{"gpu": "0.3"}, {"gpu": "0.1..0.25"}, {"gpu_memory": "6g"}])
@pytest.mark.parametrize("asked", ["0.25", "0.25..0.5"])
@pytest.mark.parametrize("state", [Suspending, Suspended, Resuming])
def test_a_lease_that_is_off_its_gpus_keeps_its_size_and_it_is_said_how_it_comes_back(
    state: type[LeaseState], asked: str, size: dict[str, str]
) -> None:
    node = Node()
    node.send(m.MeansKnown(CHECKPOINTS))
    lease = node.run(read_request(RequestSpec(gpu=asked), {}))
    node.send(m.PauseAsked(lease, ALICE))
    if state is not Suspending:
        node.send(m.ContainerSuspended(lease))
    if state is Resuming:
        node.send(m.ResumeAsked(lease, ALICE))
    before = node.of(lease)
    assert isinstance(before.state, state)
    with pytest.raises(StateConflict, match="comes back with the size it has") as refused:
        node.resize(lease, **size)
    assert f"`gpushare resume {lease}`" in refused.value.hint
    assert node.of(lease) == before


def gives_way(node: Node, lease: LeaseId) -> None:
    """Its container is stopped, and the lease waits for another start, because Bob has the GPU."""
    node.send(m.PreemptAsked(lease, ROOT))
    node.now += 60
    node.send(m.Tick())
    node.send(m.ContainerSeen(ContainerId(f"box-of-{lease}"), Condition.EXITED, exit_code=143))
    node.now += 1
    node.use()
    assert isinstance(node.of(lease).state, Requeued)


@pytest.mark.parametrize(
    ("size", "grant"),
    [({"gpu": "0.5"}, (40, 500)), ({"gpu": "0.1..0.4"}, (32, 400)), ({"gpu_memory": "6g"}, (6, 250))],
)
def test_a_lease_that_waits_to_be_started_again_starts_with_its_new_size(
    size: dict[str, str], grant: tuple[int, int]
) -> None:
    node = Node()
    node.send(m.MeansKnown(m.Means(binds_late=True)))
    lease, whole = node.run(replace(part(250), requeue=True)), node.ask(WHOLE, BOB)
    gives_way(node, lease)
    node.resize(lease, **size)
    assert node.of(lease).grants == ()
    node.send(m.ReleaseAsked(whole, BOB))
    assert node.grant(lease) == grant


def test_a_lease_whose_container_keeps_its_settings_waits_with_the_size_of_its_creation() -> None:
    node = Node()
    lease = node.run(replace(part(250), requeue=True))
    node.ask(WHOLE, BOB)
    gives_way(node, lease)
    with pytest.raises(StateConflict, match="starts with the size it was created with"):
        node.resize(lease, gpu="0.5")


@pytest.mark.parametrize(("held", "asked"), [(250, "1"), (1000, "0.5")])
def test_sharing_a_gpu_and_having_it_alone_are_two_ways_to_set_up_a_container(held: int, asked: str) -> None:
    node = Node()
    lease = node.run(part(held))
    with pytest.raises(StateConflict, match="between sharing"):
        node.resize(lease, gpu=asked)


@pytest.mark.parametrize(
    ("words", "action", "walls"),
    [
        ({"gpu": "0.5"}, Action.KILL, MPS),
        ({"gpu_memory": "10g"}, Action.KILL, Walls(MemoryWall.WATCHDOG, ComputeCap.MPS_PERCENTAGE)),
        ({"gpu_memory": "10g"}, Action.WARN, Walls(MemoryWall.NONE, ComputeCap.MPS_PERCENTAGE)),
        ({"gpu_compute": "10%"}, Action.KILL, Walls(MemoryWall.MPS_CLIENT, ComputeCap.NONE)),
    ],
)
def test_limits_that_running_processes_keep_are_no_walls_of_a_smaller_lease(
    words: dict[str, str], action: Action, walls: Walls
) -> None:
    node = Node(action=action)
    lease = node.run(part(250))
    node.resize(lease, **words)
    node.send(m.EditsMade(lease, MPS))
    assert node.of(lease).walls == walls


def test_a_server_of_its_own_keeps_the_limits_it_began_with_too() -> None:
    node = Node(action=Action.KILL)
    lease = node.run(part(250), walls=Walls(MemoryWall.MPS_SERVER, ComputeCap.MPS_PERCENTAGE))
    node.resize(lease, gpu_memory="10g")
    assert node.of(lease).walls == Walls(MemoryWall.WATCHDOG, ComputeCap.MPS_PERCENTAGE)


def test_a_server_s_limit_is_no_wall_of_a_smaller_lease_either() -> None:
    """A server keeps the limit that it began with."""
    node = Node()
    lease = node.run(part(250), Walls(MemoryWall.MPS_SERVER, ComputeCap.MPS_PERCENTAGE))
    node.resize(lease, gpu_memory="30g")
    assert node.of(lease).walls == Walls(MemoryWall.MPS_SERVER, ComputeCap.MPS_PERCENTAGE)
    node.resize(lease, gpu_memory="10g")
    assert node.of(lease).walls == Walls(MemoryWall.WATCHDOG, ComputeCap.MPS_PERCENTAGE)


def test_what_the_container_was_created_with_is_remembered_through_all_resizes() -> None:
    node = Node()
    lease = node.run(part(250))
    for size in ("0.5", "0.3"):
        node.resize(lease, gpu=size)
    assert node.of(lease).created_grants == (Grant(ONE.id, 20 * GIB, 250),)


def test_the_watchdog_holds_it_to_the_new_size_at_once() -> None:
    node = Node()
    lease = node.run(part(250))
    node.resize(lease, gpu="0.5")
    node.use({lease: 30 * GIB})
    assert node.of(lease).health.over_since is None
    node.use({lease: 5 * GIB})
    node.resize(lease, gpu="0.1")
    node.use({lease: 10 * GIB})
    assert node.of(lease).health.over_since is not None


def test_every_gpu_of_a_lease_gets_the_new_size() -> None:
    node = Node(gpus=2)
    lease = node.run(part(250, count=2))
    node.run(replace(part(500), gpus=(TWO.id,)))
    with pytest.raises(LimitReached, match="GPU 1"):
        node.resize(lease, gpu="2x0.6")
    node.resize(lease, gpu="2x0.5")
    assert [grant.compute_permille for grant in node.of(lease).grants] == [500, 500]


def test_a_new_size_is_read_as_a_request_s() -> None:
    assert read_size(gpu="2x0.5", gpu_compute="30%") == NewSize(2, 300, None, 500)
    assert read_size(gpu_memory="8g") == NewSize(1, None, 8 * GIB, None)


# --- ranges --------------------------------------------------------------------------------------------


def grown(node: Node, lease: LeaseId, **size: str) -> Grant:
    """What it has after a resize as one types it."""
    node.resize(lease, **size)
    (grant,) = node.of(lease).grants
    return grant


def test_a_range_is_as_much_as_is_free_now() -> None:
    node = Node()
    lease = node.run(part(250))
    node.ask(part(300))
    grant = grown(node, lease, gpu="0.25..1")
    assert (grant.compute_permille, grant.memory_bytes) == (700, ONE.memory_of_share(700))


@pytest.mark.parametrize("range_", ["0.25..1", "0.5..1"])
def test_a_range_on_an_empty_gpu_stays_a_part_however_little_less_that_is(range_: str) -> None:
    node = Node()
    lease = node.run(read_request(RequestSpec(gpu="0.25..0.5"), {}))
    grant = grown(node, lease, gpu=range_)
    assert (grant.compute_permille, grant.memory_bytes) == (999, ONE.memory_of_share(999))
    assert describe(node.of(lease).request) == range_


def test_a_range_of_memory_beside_all_of_the_compute_stays_a_part_too() -> None:
    node = Node()
    lease = node.run(Request(1, 1000, 8 * GIB))
    assert grown(node, lease, gpu_memory="8g..500g").memory_bytes == TOTAL - MIB


@pytest.mark.parametrize("size", [{"gpu": "0.5"}, {"gpu": "0.25..0.5"}, {"gpu_memory": "20g"}])
@pytest.mark.parametrize("binds_late", [True, False])
def test_a_range_that_got_all_of_a_gpu_gets_another_size_by_a_start_only(
    binds_late: bool, size: dict[str, str]
) -> None:
    node = Node()
    node.send(m.MeansKnown(m.Means(binds_late=binds_late)))
    lease = node.run(read_request(RequestSpec(gpu="0.25..1"), {}))
    assert node.grant(lease) == (80, 1000)
    with pytest.raises(StateConflict, match="between sharing") as refused:
        node.resize(lease, **size)
    assert ("docker start" in refused.value.hint) is binds_late


def test_a_range_that_got_all_of_a_gpu_keeps_it_with_another_range_up_to_all_of_it() -> None:
    node = Node()
    lease = node.run(read_request(RequestSpec(gpu="0.25..1"), {}))
    assert grown(node, lease, gpu="0.5..1").compute_permille == 1000
    assert describe(node.of(lease).request) == "0.5..1"


def test_a_range_of_memory_leaves_the_compute_as_it_is() -> None:
    node = Node()
    lease = node.run(part(250))
    node.ask(part(300))
    grant = grown(node, lease, gpu_memory="8g..500g")
    assert (grant.compute_permille, grant.memory_bytes) == (250, TOTAL - ONE.memory_of_share(300))


def test_a_range_below_the_size_shrinks_to_its_end() -> None:
    node = Node()
    assert grown(node, node.run(part(500)), gpu="0.1..0.2").compute_permille == 200


def test_a_range_whose_least_is_not_free_is_refused() -> None:
    node = Node()
    lease = node.run(part(250))
    node.ask(part(700))
    with pytest.raises(LimitReached):
        grown(node, lease, gpu="0.5..1")


def test_a_range_does_not_grow_where_the_room_is_kept_for_the_head() -> None:
    node = Node()
    lease = node.run(part(250))
    node.ask(part(250))
    node.ask(part(750))
    assert grown(node, lease, gpu="0.1..1").compute_permille == 250


def test_a_plain_size_ends_a_range() -> None:
    node = Node()
    lease = node.run(read_request(RequestSpec(gpu="0.25..0.5"), {}))
    assert grown(node, lease, gpu="0.75").compute_permille == 750
    assert not is_elastic(node.of(lease).request)


def test_a_range_that_gives_the_size_that_it_has_counts_from_the_next_start_on() -> None:
    node = Node()
    lease = node.run(part(500))
    node.ask(part(500))
    assert grown(node, lease, gpu="0.25..0.75").compute_permille == 500
    assert describe(node.of(lease).request) == "0.25..0.75"


def test_compute_that_others_leave_can_be_had_and_given_up() -> None:
    node = Node()
    lease = node.run(part(250))
    assert grown(node, lease, gpu_compute="25%..100%").ceiling_permille == 1000
    assert grown(node, lease, gpu_memory="8g").ceiling_permille == 1000
    assert grown(node, lease, gpu_compute="25%").ceiling_permille == 250


def test_what_runs_under_a_lower_ceiling_than_before_is_capped_by_nothing() -> None:
    """It keeps the one that it began with."""
    node = Node()
    lease = node.run(read_request(RequestSpec(gpu="0.25", gpu_compute="25%..100%"), {}))
    grown(node, lease, gpu_compute="50%..80%")
    walls = node.of(lease).walls
    assert walls is not None
    assert walls.compute_cap is ComputeCap.NONE


def test_a_number_of_gpus_is_no_size_of_a_lease() -> None:
    node = Node(2)
    with pytest.raises(RequestError, match="keeps this number of GPUs"):
        grown(node, node.run(part(250)), gpu="1..2")
