"""Measure what it costs to hold a container's mounts: creates and runs with them, in turns with the bare engine.

    .venv/bin/python bench/gate/mounts.py [--pairs 10] [--mounts 0 1 10 64] [--docker CLI] [--image IMAGE]

Needs root, for the caller is a user of its own whom nobody trusts, a Docker engine and an image in it.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))
from common import compare, daemon, ms, need, pairs

CALLER = 64003
LABEL = "gpushared-bench=mounts"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--image", default="gpushared-test/busybox")
    parser.add_argument("--docker", default=need("docker"), help="the client to measure with")
    parser.add_argument("--engine", default="unix:///var/run/docker.sock")
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--mounts", type=int, nargs="+", default=[0, 1, 10, 64])
    words = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bench-mounts-") as folder:
        sources = [_source(Path(folder), number) for number in range(max(words.mounts))]
        engine = words.engine.removeprefix("unix://")
        print(f"load before: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
        with daemon(engine__socket=engine, gate__mount_prefixes=folder) as served:
            Path(served.socket).parents[1].chmod(0o755)  # the caller has to reach it
            gate = [*_as(CALLER), words.docker, "-H", f"unix://{served.socket}"]
            bare = [*_as(0), words.docker, "-H", words.engine]
            try:
                measure(gate, bare, sources, words)
            finally:
                _tidy(bare)
        print(f"load after: {os.getloadavg()[0]:.1f}")


def measure(gate: list[str], bare: list[str], sources: list[str], words: argparse.Namespace) -> None:
    environ = {**os.environ, "DOCKER_CONFIG": "/nonexistent"}
    names, none = ("through the gate", "directly"), 0.0
    for count in words.mounts:
        binds = [word for number in range(count) for word in ("-v", f"{sources[number]}:/m/{number}")]
        plain = ["--label", LABEL, "--network", "none", *binds, words.image, "true"]
        left, right = pairs([*gate, "create", *plain], [*bare, "create", *plain], environ, words.pairs)
        compare(f"docker create, {count} mounts", left, right, names)
        more = statistics.median(a - b for a, b in zip(left, right, strict=True))
        if count:
            print(f"  held for                 {ms(more - none)}, a mount {ms((more - none) / count)}")
        else:
            none = more
        _tidy(bare)
        left, right = pairs(
            [*gate, "run", "--rm", *plain], [*bare, "run", "--rm", *plain], environ, words.pairs
        )
        compare(f"docker run, {count} mounts", left, right, names)


def _as(uid: int) -> list[str]:
    return ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups"]


def _source(folder: Path, number: int) -> str:
    folder.chmod(0o755)
    source = folder / str(number)
    source.mkdir()
    os.chown(source, CALLER, CALLER)
    return str(source)


def _tidy(bare: list[str]) -> None:
    listed = subprocess.run(
        [*bare, "ps", "--all", "--quiet", "--filter", f"label={LABEL}"],
        capture_output=True,
        text=True,
        check=True,
    )
    if containers := listed.stdout.split():
        subprocess.run([*bare, "rm", "--force", *containers], stdout=subprocess.DEVNULL, check=True)


if __name__ == "__main__":
    main()
