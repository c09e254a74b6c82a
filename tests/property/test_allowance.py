"""A pool's limit holds for what its nodes give by themselves too, whatever becomes of messages."""

from __future__ import annotations

from hypothesis import event, given, settings
from hypothesis import strategies as st

from tests.property.allowance_world import World

SIZES = (100, 250, 500, 1000)
ON_NODES = (
    *("ask", "ask", "ask", "up", "up", "up", "down", "down", "down"),
    *("give_back", "give_up", "link", "cut", "twice", "restart"),
)
ON_POOL = ("submit", "end_job", "restart", "pause")


@st.composite
def happenings(draw: st.DrawFn) -> tuple[str, int, int]:
    """What happens, on which node (-1 is the coordinator), and of which size."""
    where = draw(st.integers(-1, 2))
    what = draw(st.sampled_from(ON_POOL if where < 0 else ON_NODES))
    return what, where, draw(st.sampled_from(SIZES))


@given(st.sampled_from((500, 1000)), st.lists(happenings(), min_size=20, max_size=80))
@settings(deadline=None)
def test_all_nodes_and_the_pool_together_never_hold_more_than_the_limit(
    limit: int, story: list[tuple[str, int, int]]
) -> None:
    """Messages are late, doubled or lost with their stream; nodes are cut off; all may start again."""
    world = World(limit, nodes=3)
    for what, where, size in story:
        _happen(world, what, where, size)
        assert world.held <= limit, (what, where)
    event(f"full: {world.held == limit}")


@given(st.sampled_from((500, 1000, 2500)), st.lists(happenings(), max_size=40))
@settings(deadline=None)
def test_when_all_hear_of_each_other_again_nobody_waits_for_what_nobody_has(
    limit: int, story: list[tuple[str, int, int]]
) -> None:
    """What is left of the limit is less than what the next one wants, on each node and in the pool."""
    world = World(limit, nodes=3)
    for what, where, size in story:
        _happen(world, what, where, size)
    for node in world.nodes:
        world.link(node)
    for _ in range(30):
        world.settle()
        world.pause()
    assert world.held <= limit
    wants = [want.least_permille for node in world.nodes for want in node.free().allowed.wants]  # type: ignore[union-attr]
    assert all(want > limit - world.held for want in wants), world.held


def _happen(world: World, what: str, where: int, size: int) -> None:
    if where < 0:
        actions = {"submit": lambda: world.submit(size), "end_job": world.end_job, "pause": world.pause}
        (actions.get(what) or world.restart_pool)()
        return
    node = world.nodes[where]
    match what:
        case "ask":
            world.ask(node, size)
        case "give_back":
            world.give_back(node)
        case "give_up":
            world.give_up(node)
        case "link":
            world.link(node)
        case "cut":
            world.cut(node)
        case "up":
            world.hear_up(node)
        case "down" | "twice":
            world.hear_down(node, again=what == "twice")
        case _:
            world.restart_node(node)
