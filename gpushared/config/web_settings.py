"""Define the settings of the web page."""

from __future__ import annotations

import re
from dataclasses import dataclass

from gpushared.config.kinds import Number, Text, setting

_BASE_PATH = re.compile(r"/([A-Za-z0-9._~-]+/)*")
_PATH = Text("a path that begins and ends with `/`", lambda text: _BASE_PATH.fullmatch(text) is not None)


@dataclass(frozen=True, slots=True)
class WebConfig:
    """[The web page](../how-to/web-page.md)."""

    base_path: str = setting(
        "/", _PATH, "The path of the page, such as `/gpus/` behind a proxy that serves other pages too."
    )
    session_hours: float = setting(
        24.0, Number(0.1, 8760.0), "A browser must log in again if it has not used the page for so long."
    )
