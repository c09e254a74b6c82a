"""The command line as a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

GPUSHARE = [sys.executable, "-c", "import sys; from gpushared.cli.main import main; sys.exit(main())"]
ASK_ONCE = {"GPUSHARE_RETRY_SECONDS": "0"}
"""For tests of an error's words: a daemon that is away is not waited for."""
PLAIN_ENVIRONMENT = (
    "NO_COLOR",
    "FORCE_COLOR",
    "GPUSHARE_HOST",
    "GPUSHARE_DEBUG",
    "GPUSHARE_RETRY_SECONDS",
    "DOCKER_HOST",
    "DOCKER_CONTEXT",
)


class Gpushare:
    """Starts the command line as a process of its own, pointed at the stand-in."""

    def __init__(self, host: str, folder: Path) -> None:
        kept = {name: value for name, value in os.environ.items() if name not in PLAIN_ENVIRONMENT}
        self.environ = {**kept, "GPUSHARE_HOST": host, "TZ": "UTC", "TERM": "xterm", "COLUMNS": "100"}
        self.folder = folder

    def __call__(self, *words: str, **environ: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*GPUSHARE, *words],
            env={**self.environ, **environ},
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
        )

    def start(self, *words: str, before: list[str] | None = None, **options: Any) -> subprocess.Popen[str]:
        options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
        return subprocess.Popen(
            [*(before or []), *GPUSHARE, *words], env=self.environ, text=True, cwd=self.folder, **options
        )
