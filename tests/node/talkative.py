"""A daemon that tells waiting clients every half second that their answer is still to come."""

from __future__ import annotations

from functools import partial

from gpushared.gate import http
from gpushared.node.main import main

if __name__ == "__main__":
    http.Limits = partial(http.Limits, interim_seconds=0.5)  # type: ignore[assignment,misc]
    main()
