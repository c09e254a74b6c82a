"""What a daemon asks of the kernel for its own process."""

from __future__ import annotations

import resource

OPEN_FILES = 65536
"""As the service units have it."""


def allow_many_files() -> None:
    """Each connection is a file or three, and shells allow a thousand of them unless asked for more."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = OPEN_FILES if hard == resource.RLIM_INFINITY else min(OPEN_FILES, hard)
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
