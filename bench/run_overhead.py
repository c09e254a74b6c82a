"""(a) ``gpushare run`` against ``docker run``: same engine, same image, whole processes, in turns.

Beside it what parts of it cost: docker through the gate, and docker with a lease by label.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from common import compare, daemon, installed, need, pairs, print_conditions

NAMES = {"gate": "through the gate", "label": "lease by label", "run": "gpushare run"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", choices=[*NAMES, []], help="all of them by default")
    parser.add_argument("--image", default="gpushared-test/busybox")
    parser.add_argument("--network", default="bridge", help="docker's network mode for all")
    parser.add_argument("--pairs", type=int, default=40)
    words = parser.parse_args()
    with daemon() as bench, installed() as gpushare:
        environ = bench.environ | {"DOCKER_HOST": ""}
        docker, container = need("docker"), ["--rm", "--network", words.network, words.image, "true"]
        through = [docker, "-H", f"unix://{bench.socket}", "run"]
        commands: dict[str, list[str | Path]] = {
            "gate": [*through, *container],
            "label": [*through, "--label", "gpushare.gpu=0.25", *container],
            "run": [gpushare, "run", "--gpu", "0.25", *container],
        }
        print_conditions()
        for name in words.parts or commands:
            left, right = pairs(commands[name], [docker, "run", *container], environ, words.pairs)
            compare(f"{name}, network {words.network}", left, right, (NAMES[name], "docker run"))
        print_conditions()


if __name__ == "__main__":
    main()
