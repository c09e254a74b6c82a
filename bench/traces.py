"""Reads a trace of hosts and tasks, and makes the sequence of requests of an experiment from it."""

from __future__ import annotations

import csv
import gzip
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from gpushared.domain.model.gpu import (
    MIB,
    WHOLE_PERMILLE,
    Gpu,
    GpuId,
)
from gpushared.domain.model.request import Request
from gpushared.domain.scheduling.placement.hosts import Host

GPU_BYTES = 80_000 * MIB
"""The trace has no GPU memory; a share of the compute comes with the same share of this."""
ASKED_OF_ALL = 1.3
Load = Sequence[Request]


def read_fleet(folder: Path) -> list[Host]:
    return [
        Host(
            row["sn"],
            tuple(_gpu(row["sn"], row["model"], index) for index in range(int(row["gpu"]))),
            int(row["cpu_milli"]),
            int(row["memory_mib"]) * MIB,
        )
        for row in _rows(folder / "nodes.csv.gz")
    ]


def read_tasks(folder: Path) -> list[Request]:
    return [_request(row) for row in _rows(folder / "tasks.csv.gz")]


def sequence(tasks: Load, hosts: Sequence[Host], seed: int) -> list[Request]:
    """All tasks in random order, then drawn again, until they ask for 1.3 times the GPUs of the hosts."""
    chance = random.Random(seed)
    load = list(tasks)
    chance.shuffle(load)
    aim = ASKED_OF_ALL * WHOLE_PERMILLE * sum(len(host.gpus) for host in hosts)
    asked = sum(map(asked_permille, load))
    while asked < aim:
        load.append(chance.choice(tasks))
        asked += asked_permille(load[-1])
    return load


def asked_permille(request: Request) -> int:
    return request.gpu_count * (request.compute_permille or 0)


def varied(hosts: list[Host], tasks: list[Request], how: str) -> tuple[list[Host], list[Request]]:
    """Another list made of this one, to see that a policy does not live by its exact sizes."""
    what, _, seed = how.partition(":")
    chance = random.Random(int(seed or 0))
    if what == "hosts":
        drawn = chance.choices(hosts, k=800)
        return [_renamed(host, f"host-{number}") for number, host in enumerate(drawn)], tasks
    return hosts, _other_tasks(what, tasks, hosts, chance)


def _other_tasks(
    what: str, tasks: list[Request], hosts: Sequence[Host], chance: random.Random
) -> list[Request]:
    match what:
        case "":
            return tasks
        case "half":
            return chance.sample(tasks, len(tasks) // 2)
        case "again":
            return chance.choices(tasks, k=len(tasks))
        case "kinds":
            weights = {task: chance.expovariate(1) for task in dict.fromkeys(tasks)}
            return chance.choices(tasks, [weights[task] for task in tasks], k=len(tasks))
        case "sizes":
            return _resized(tasks, chance)
        case "gangs":
            return _shifted(tasks, chance, lambda task: task.gpu_count > 1, 0.5)
        case "shared":
            return _shifted(
                tasks, chance, lambda task: 0 < (task.compute_permille or 0) < WHOLE_PERMILLE, 0.6
            )
        case "bound":
            return _bound(tasks, hosts, chance)
        case "cpu":
            idle = [task for task in tasks if not task.gpu_count]
            return [*tasks, *chance.choices(idle, k=len(tasks) // 10)]
        case _:
            raise SystemExit(f"unknown variation {what!r}")


def _resized(tasks: Load, chance: random.Random) -> list[Request]:
    """Each size of a part times 0.7 to 1.3."""
    sizes = sorted({task.compute_permille or 0 for task in tasks} - {0, WHOLE_PERMILLE})
    grown = {size: min(1000, max(50, round(size * chance.uniform(0.7, 1.3), -1))) for size in sizes}
    return [_sized(task, int(grown.get(task.compute_permille or 0, 0))) for task in tasks]


def _bound(tasks: Load, hosts: Sequence[Host], chance: random.Random) -> list[Request]:
    """Tasks of one GPU at random bound to the scarcer models, until those are asked for by 80 % of their GPUs."""
    counts = Counter(gpu.name for host in hosts for gpu in host.gpus)
    ((usual, _),) = counts.most_common(1)
    total = counts.total()
    del counts[usual]
    names, weights = list(counts), list(counts.values())
    ones = sum(asked_permille(task) for task in tasks if task.gpu_count == 1)
    odds = 0.8 * counts.total() / total * sum(map(asked_permille, tasks)) / ones
    return [
        replace(task, models=tuple(chance.choices(names, weights)))
        if task.gpu_count == 1 and chance.random() < odds
        else task
        for task in tasks
    ]


def _shifted(
    tasks: Load, chance: random.Random, is_one: Callable[[Request], bool], part: float
) -> list[Request]:
    """As many tasks drawn again, so that those of a sort ask for this part of all that is asked for."""
    ones = sum(asked_permille(task) for task in tasks if is_one(task))
    others = sum(map(asked_permille, tasks)) - ones
    weights = [part / max(1, ones) if is_one(task) else (1 - part) / max(1, others) for task in tasks]
    return chance.choices(tasks, weights, k=len(tasks))


def _rows(path: Path) -> Iterator[dict[str, str]]:
    with gzip.open(path, "rt", newline="") as file:
        yield from csv.DictReader(file)


def _gpu(host: str, model: str, index: int) -> Gpu:
    return Gpu(GpuId(f"{host}/{index}"), index, model, GPU_BYTES, GPU_BYTES)


def _request(row: dict[str, str]) -> Request:
    count = int(row["num_gpu"])
    share = int(row["gpu_milli"]) if count else 0
    return Request(
        gpu_count=count,
        compute_permille=share,
        memory_permille=share,
        models=tuple(model for model in row["gpu_spec"].split("|") if model),
        host_cpu_milli=int(row["cpu_milli"]),
        host_memory_bytes=int(row["memory_mib"]) * MIB,
    )


def _sized(task: Request, share: int) -> Request:
    return replace(task, compute_permille=share, memory_permille=share) if share else task


def _renamed(host: Host, name: str) -> Host:
    gpus = tuple(replace(gpu, id=GpuId(f"{name}/{gpu.index}")) for gpu in host.gpus)
    return replace(host, name=name, gpus=gpus)
