"""(c) ``gpushare ps`` against ``docker ps``, whole processes, in turns."""

from __future__ import annotations

import argparse

from common import BIN, compare, daemon, need, pairs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=40)
    words = parser.parse_args()
    with daemon() as bench:
        environ = bench.environ | {"DOCKER_HOST": ""}
        left, right = pairs([BIN / "gpushare", "ps"], [need("docker"), "ps"], environ, words.pairs)
    compare("ps", left, right, ("gpushare ps", "docker ps"))


if __name__ == "__main__":
    main()
