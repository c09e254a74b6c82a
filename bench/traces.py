"""Reads a trace of hosts and tasks, and makes the sequence of requests of an experiment from it."""

from __future__ import annotations

import csv
import gzip
import random
from collections.abc import Iterator, Sequence
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
    match what:
        case "":
            pass
        case "half":
            tasks = chance.sample(tasks, len(tasks) // 2)
        case "again":
            tasks = chance.choices(tasks, k=len(tasks))
        case "kinds":
            weights = {task: chance.expovariate(1) for task in dict.fromkeys(tasks)}
            tasks = chance.choices(tasks, [weights[task] for task in tasks], k=len(tasks))
        case "sizes":
            sizes = sorted({task.compute_permille or 0 for task in tasks} - {0, WHOLE_PERMILLE})
            grown = {size: min(1000, max(50, round(size * chance.uniform(0.7, 1.3), -1))) for size in sizes}
            tasks = [_sized(task, int(grown.get(task.compute_permille or 0, 0))) for task in tasks]
        case "hosts":
            drawn = chance.choices(hosts, k=800)
            hosts = [_renamed(host, f"host-{number}") for number, host in enumerate(drawn)]
        case _:
            raise SystemExit(f"unknown variation {what!r}")
    return hosts, tasks


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
