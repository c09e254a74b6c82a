"""Make the rows of each panel of the daemon's answers, with the figures and columns of the listings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from gpushared.cli import gpus, nodes, ps, queue, text
from gpushared.cli.sparkline import sparkline
from gpushared.cli.table import Column, Row
from gpushared.cli.top.answers import Answers, gpu_key
from gpushared.client import Gpu, Lease, UnmanagedProcess
from gpushared.light import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from gpushared.api.v1.messages import PoolNode

    Item = Gpu | Lease | UnmanagedProcess | PoolNode

BAR_WIDTH = 12
GPUS, LEASES, QUEUE, NODES = "gpus", "leases", "queue", "nodes"


class PanelRow(NamedTuple):
    """Hold a row; ``key`` stays the same while its cells change."""

    key: str
    cells: Row
    item: Item


class Panel(NamedTuple):
    """Hold a panel. ``total``: how many rows there are without the filter."""

    name: str
    columns: Sequence[Column]
    drops: Sequence[str]
    rows: Sequence[PanelRow]
    total: int
    order: str
    empty: str


class Order(NamedTuple):
    """Name an order of rows; rows with smaller figures come first."""

    name: str
    figure: Callable[[Item], object] | None = None


def _used(item: Item) -> int:
    used: int = getattr(item, "memory_used_bytes", None) or getattr(item, "memory_bytes", None) or 0
    return -used


ORDERS: Mapping[str, Sequence[Order]] = {
    GPUS: (
        Order(""),
        Order("util", lambda gpu: -(getattr(gpu, "utilization_ratio", None) or 0.0)),
        Order("memory", _used),
        Order("free", lambda gpu: -getattr(gpu, "memory_free_bytes", 0)),
    ),
    LEASES: (
        Order(""),
        Order("user", lambda item: getattr(item, "owner", "") or getattr(item, "user", "")),
        Order("gpu", lambda item: [grant.gpu_index for grant in getattr(item, "grants", ())]),
        Order("memory", _used),
        Order("idle", lambda item: getattr(item, "idle_since", None) or float("inf")),
        Order("left", lambda item: getattr(item, "expires_at", None) or float("inf")),
    ),
    QUEUE: (
        Order(""),
        Order("user", lambda item: getattr(item, "owner", "")),
        Order("waited", lambda item: getattr(item, "since", 0.0) or getattr(item, "created_at", 0.0)),
    ),
    NODES: (Order(""), Order("state", lambda item: getattr(item, "presence", ""))),
}
"""The orders of each panel; the first is that of the listing."""


def panels(
    answers: Answers, now: float, *, filter_text: str, orders: Mapping[str, int], plain: bool
) -> dict[str, Panel]:
    """Return the panels in their order on the screen. ``filter_text`` chooses leases and waiting requests."""
    in_pool = answers.nodes is not None
    running, waiting = _leases(answers, now), _waiting(answers, now)
    shown = {GPUS: _panel(GPUS, _gpus(answers, now, plain=plain), "", orders, in_pool=in_pool)}
    if answers.nodes is not None:
        rows = [PanelRow(node.name, nodes.node_row(node, now), node) for node in answers.nodes.nodes]
        shown[NODES] = _panel(NODES, rows, "", orders, in_pool=in_pool)
    shown[LEASES] = _panel(LEASES, running, filter_text, orders, in_pool=in_pool)
    shown[QUEUE] = _panel(QUEUE, waiting, filter_text, orders, in_pool=in_pool)
    return shown


def _panel(
    name: str, rows: Sequence[PanelRow], filter_text: str, orders: Mapping[str, int], *, in_pool: bool
) -> Panel:
    order = ORDERS[name][orders.get(name, 0) % len(ORDERS[name])]
    matches = [row for row in rows if _matches(row.cells, filter_text)]
    if order.figure is not None:
        figure = order.figure
        matches.sort(key=lambda row: figure(row.item))  # type: ignore[arg-type,return-value]  # of one kind each
    columns = [column for column in COLUMNS[name] if in_pool or not column.pool]
    return Panel(name, columns, DROPS[name], matches, len(rows), order.name, EMPTY[name])


def _matches(cells: Row, filter_text: str) -> bool:
    return not filter_text or any(filter_text.lower() in cell.lower() for cell in cells.values())


def _gpus(answers: Answers, now: float, *, plain: bool) -> list[PanelRow]:
    walls = _walls(answers)
    return [
        PanelRow(
            key,
            {
                **gpus.gpu_row(gpu, gpu.node, now),
                "trend": sparkline(answers.trends.get(key, ()), plain=plain),
                "held and used": memory_bar(gpu, plain=plain),
                "health": health(gpu),
                "wall": ",".join(walls.get(key, ())),
            },
            gpu,
        )
        for gpu in answers.gpus.gpus
        for key in (gpu_key(gpu),)
    ]


def _walls(answers: Answers) -> dict[str, list[str]]:
    """Return the walls that keep the leases on each GPU inside their memory."""
    walls_by_gpu: dict[str, dict[str, None]] = {}
    for lease in answers.leases.leases:
        for grant in lease.grants if lease.memory_wall else ():
            walls_by_gpu.setdefault(f"{lease.node}/{grant.gpu_uuid}", {})[lease.memory_wall] = None
    return {key: sorted(walls) for key, walls in walls_by_gpu.items()}


def health(gpu: Gpu) -> str:
    """Return one word; the lines above the panels have the sentence."""
    if gpu.mode in {*gpus.NO_LEASES, "unknown"}:  # unknown while its node is silent
        return gpu.mode
    return "trouble" if gpu.trouble else "ok"


def memory_bar(gpu: Gpu, *, plain: bool) -> str:
    """Draw the memory: used, held by leases and not used, free."""
    marks = "#=." if plain else "█▒·"
    total = max(1, gpu.memory_total_bytes)
    held_bytes = max(0, gpu.memory_leasable_bytes - gpu.memory_free_bytes) if gpu.memory_leasable_bytes else 0
    used_places = _places(gpu.memory_used_bytes or 0, total)
    held_places = max(0, _places(held_bytes, total) - used_places)
    return (
        marks[0] * used_places + marks[1] * held_places + marks[2] * (BAR_WIDTH - used_places - held_places)
    )


def _places(part: int, total: int) -> int:
    """Return how many places a part takes; one that is not nothing takes one at least."""
    return min(BAR_WIDTH, max(int(part > 0), round(BAR_WIDTH * part / total)))


def _leases(answers: Answers, now: float) -> list[PanelRow]:
    rows = [
        PanelRow(f"{lease.node}/{lease.id}", ps.lease_row(lease, now), lease)
        for lease in answers.leases.leases
        if lease.waiting is None
    ]
    numbers: Counter[str] = Counter()
    for process in answers.leases.unmanaged:
        name = f"{process.node}/{process.pid}/{process.gpu_uuid}"
        numbers[name] += 1
        rows.append(PanelRow(f"{name}/{numbers[name]}", ps.unmanaged_row(process), process))
    return rows


def _waiting(answers: Answers, now: float) -> list[PanelRow]:
    return [
        PanelRow(f"{lease.node}/{lease.id or number}", queue.lease_row(lease, waiting, now), lease)
        for number, (lease, waiting) in enumerate(queue.queued_leases(answers.leases))
    ]


def notes(answers: Answers, now: float) -> list[str]:
    """Return a line for each thing that is wrong now, as ``gpushare gpus`` and ``gpushare nodes`` write them."""
    lines = gpus.notes(answers.gpus, now) + list(answers.leases.notices)
    if answers.nodes is not None:
        lines += nodes.notes(answers.nodes, now)
    return [text.printable(note) for note in dict.fromkeys(lines)]


def _chosen(columns: Sequence[Column], *names: str) -> list[Column]:
    by_key = {column.key: column for column in columns}
    return [by_key[name] for name in names]


_IDLE = Column("idle", right=True)
COLUMNS: Mapping[str, Sequence[Column]] = {
    GPUS: (
        Column("node", least=8, pool=True),
        *_chosen(gpus.LISTING.columns, "gpu", "name", "util"),
        Column("trend"),
        Column("held and used"),
        *_chosen(gpus.LISTING.columns, "memory", "temp", "power"),
        Column("health", coloured=True),
        Column("wall", least=10),
        *_chosen(gpus.LISTING.columns, "leases", "free"),
    ),
    LEASES: (
        *_chosen(ps.LISTING.columns, "lease", "node", "user", "state", "gpu", "share", "memory"),
        _IDLE,
        *_chosen(ps.LISTING.columns, "wall", "age", "left", "image", "name"),
    ),
    QUEUE: [column for column in queue.LISTING.columns if not column.wide and column.key != "image"],
    NODES: [column for column in nodes.LISTING.columns if not column.wide],
}
DROPS: Mapping[str, Sequence[str]] = {
    GPUS: (
        *("leases", "wall", "power", "temp", "trend", "name", "health", "held and used", "node"),
        *("free", "memory"),
    ),
    LEASES: ("image", "wall", "age", "share", "idle", "left", "gpu", "name", "memory", "user"),
    QUEUE: queue.LISTING.drops,
    NODES: nodes.LISTING.drops,
}
EMPTY: Mapping[str, str] = {
    GPUS: "there is no GPU",
    LEASES: "no leases",
    QUEUE: "nobody waits",
    NODES: "there is no node",
}
