"""A daemon that tells waiting clients every half second that their answer is still to come."""

from __future__ import annotations

from functools import partial

from gpushared.net import http_server
from gpushared.node.main import main

if __name__ == "__main__":
    http_server.Limits = partial(http_server.Limits, interim_seconds=0.5)  # type: ignore[assignment,misc]
    main()
