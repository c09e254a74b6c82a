"""(f) What the command line itself costs: CPU time of whole processes in turns, and modules imported.

CPU time says more than the clock on a machine that does something else besides. ``run`` stops where it would
become docker: ``true`` stands in docker's place. ``--before`` names a checkout of an older version, which is
measured in the same turns.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from common import BIN, cpu_seconds, daemon, installed, ms, print_conditions

RUN = ("run", "--gpu", "0.01", "--rm")
COMPLETION = {"COMP_WORDS": "gpushare stop l-", "COMP_CWORD": "2", "_GPUSHARE_COMPLETE": "bash_complete"}
ENTRY = "import re, sys; sys.path.insert(0, {!r}); from gpushared.cli.main import main; sys.exit(main())"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--image", default="gpushared-test/busybox")
    parser.add_argument("--times", type=int, default=20)
    parser.add_argument("--before", type=Path, help="a checkout of an older version")
    words = parser.parse_args()
    cases: dict[str, tuple[Sequence[str], dict[str, str]]] = {
        "--help": (["--help"], {}),
        "completion of a lease": ([], COMPLETION),
        "ps": (["ps"], {}),
        "run, until docker": ([*RUN, words.image, "true"], {}),
    }
    with daemon() as bench, installed() as launcher, tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "docker").symlink_to("/bin/true")
        environ = bench.environ | {"PATH": f"{folder}:{os.environ['PATH']}"}
        environ.pop("PYTHONDONTWRITEBYTECODE", None)
        commands: dict[str, list[str | Path]] = {"installed": [launcher], "by pip": [BIN / "gpushare"]}
        if words.before:
            commands["before"] = [sys.executable, "-c", ENTRY.format(str(words.before))]
        print_conditions()
        for name, (arguments, more) in cases.items():
            lines = {kind: [*command, *arguments] for kind, command in commands.items()}
            measure(name, lines, environ | more, words.times)
        print_conditions()


def measure(name: str, commands: dict[str, list[str | Path]], environ: dict[str, str], times: int) -> None:
    spent: dict[str, list[float]] = {kind: [] for kind in commands}
    for command in commands.values():
        cpu_seconds(command, environ)
    for _ in range(times):
        for kind, command in commands.items():
            spent[kind].append(cpu_seconds(command, environ))
    print(name)
    for kind, command in commands.items():
        least, median = ms(min(spent[kind])), ms(statistics.median(spent[kind]))
        print(
            f"  {kind:10} CPU min {least}  median {median}   {modules(command, environ):4} modules",
            flush=True,
        )


def modules(command: list[str | Path], environ: dict[str, str]) -> int:
    """Return the number of modules that the command imports; -X importtime says each in a line."""
    words = [sys.executable, *command] if command[0] != sys.executable else command
    if str(command[0]).endswith("local/bin/gpushare"):
        words.insert(1, "-IS")
    words = [words[0], "-X", "importtime", *words[1:]]
    done = subprocess.run(words, env=environ, capture_output=True, text=True, check=True)
    return done.stderr.count("import time:") - 1


if __name__ == "__main__":
    main()
