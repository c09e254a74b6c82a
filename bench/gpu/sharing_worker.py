"""One client of the sharing benchmark: warms up, says so, waits for its turn, works, tells.

    sharing_worker.py KIND BATCH SECONDS      KIND: infer or train

Prints ``{"action": "ready"}``, waits for a line on standard input, works, and prints one line with its rounds
and the percentiles of their latency. A round is one inference, of a few matrix products and a small
convolution net, or one training step of that net.
"""

from __future__ import annotations

import importlib
import json
import sys
import time
from collections.abc import Callable
from typing import Any

WARM_UP_ROUNDS = 20
SIDE, IMAGE = 768, 96
TRAIN_BATCH_FACTOR = 8


def main(kind: str, batch: int, seconds: float) -> int:
    torch = importlib.import_module("torch")
    turn = _infer(torch, batch) if kind == "infer" else _train(torch, batch * TRAIN_BATCH_FACTOR)
    for _ in range(WARM_UP_ROUNDS):
        turn()
    torch.cuda.synchronize()
    _say({"action": "ready"})
    sys.stdin.readline()
    taken = _work(torch, turn, seconds)
    _say(figures(taken) | {"action": "worked", "memory_bytes": torch.cuda.max_memory_reserved()})
    # Stays until it is told, so that the others' memory is counted beside this one's.
    sys.stdin.readline()
    return 0


def figures(taken: list[float]) -> dict[str, float]:
    """Rounds, their time in all, and percentiles."""
    ordered = sorted(taken)
    last = len(ordered) - 1
    return {
        "rounds": len(ordered),
        "seconds": sum(ordered),
        "p50_seconds": ordered[last * 50 // 100],
        "p99_seconds": ordered[last * 99 // 100],
    }


def _work(torch: Any, turn: Callable[[], None], seconds: float) -> list[float]:
    taken: list[float] = []
    until = time.perf_counter() + seconds
    while (began := time.perf_counter()) < until:
        turn()
        torch.cuda.synchronize()
        taken.append(time.perf_counter() - began)
    return taken


def _net(torch: Any) -> Any:
    nn = torch.nn
    layers: list[Any] = []
    for inputs, outputs in ((3, 32), (32, 64), (64, 64)):
        layers += [nn.Conv2d(inputs, outputs, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
    side = IMAGE // 8
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(64 * side * side, 10)).cuda()


def _infer(torch: Any, batch: int) -> Callable[[], None]:
    net = _net(torch).half().eval()
    images = torch.randn(batch, 3, IMAGE, IMAGE, device="cuda", dtype=torch.half)
    left = torch.randn(SIDE, SIDE, device="cuda", dtype=torch.half)
    right = torch.randn(SIDE, SIDE, device="cuda", dtype=torch.half)

    def turn() -> None:
        with torch.inference_mode():
            product = left
            for _ in range(4):
                product = product @ right
            net(images)

    return turn


def _train(torch: Any, batch: int) -> Callable[[], None]:
    net = _net(torch)
    images = torch.randn(batch, 3, IMAGE, IMAGE, device="cuda")
    labels = torch.randint(0, 10, (batch,), device="cuda")
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)

    def turn() -> None:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(net(images), labels).backward()
        optimizer.step()

    return turn


def _say(line: dict[str, Any]) -> None:
    print(json.dumps(line), flush=True)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3])))
