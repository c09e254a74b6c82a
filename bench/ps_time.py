"""(c) ``gpushare ps`` against ``docker ps``, whole processes, in turns."""

from __future__ import annotations

import argparse

from common import compare, daemon, installed, need, pairs, print_conditions


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=40)
    words = parser.parse_args()
    with daemon() as bench, installed() as gpushare:
        environ = bench.environ | {"DOCKER_HOST": ""}
        print_conditions()
        left, right = pairs([gpushare, "ps"], [need("docker"), "ps"], environ, words.pairs)
    compare("ps", left, right, ("gpushare ps", "docker ps"))


if __name__ == "__main__":
    main()
