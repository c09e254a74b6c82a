"""(a) ``gpushare run`` against ``docker run``: same engine, same image, whole processes, in turns."""

from __future__ import annotations

import argparse

from common import BIN, compare, daemon, need, pairs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--image", default="gpushared-test/busybox")
    parser.add_argument("--network", default="bridge", help="docker's network mode for both")
    parser.add_argument("--pairs", type=int, default=30)
    words = parser.parse_args()
    container = ["--rm", "--network", words.network]
    with daemon() as bench:
        ours = [BIN / "gpushare", "run", "--gpu", "0.25", *container, words.image, "true"]
        theirs = [need("docker"), "run", *container, words.image, "true"]
        environ = bench.environ | {"DOCKER_HOST": ""}
        left, right = pairs(ours, theirs, environ, words.pairs)
    compare(f"run, network {words.network}", left, right, ("gpushare run", "docker run"))


if __name__ == "__main__":
    main()
