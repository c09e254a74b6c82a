"""The two readers of a listing's options come to the same result."""

from __future__ import annotations

import click
import pytest

from gpushared.cli import gpus, listing_command, ps
from gpushared.cli.listing import Listing, Options, read_plain

WORDS = [
    "",
    "-q",
    "--quiet",
    "-o json",
    "-o wide",
    "--output jsonl",
    "-o columns=lease,user",
    "--no-headers",
    "-q --no-headers",
    "-q -o json",
    "-o json -q",
    "-o json -o ids",
    "-o bad",
    "-a",
    "--all -o wide --no-headers",
    "-o -q",
    "-o",
    "--output",
    "-ojson",
    "--output=json",
    "-aq",
    "--quie",
    "-h",
    "--help",
    "extra",
    "-- extra",
]


def read_by_click(listing: Listing, words: list[str], monkeypatch: pytest.MonkeyPatch) -> Options | None:
    """What click makes of the words; None where it shows help or complains."""
    seen: list[Options] = []

    def keep(_: Listing, options: Options) -> int:
        seen.append(options)
        return 0

    monkeypatch.setattr(listing_command, "show", keep)
    command = listing_command.listing_command(listing, "Show.")
    try:
        command.main(list(words), standalone_mode=False, prog_name=listing.name)
    except click.ClickException:
        return None
    return seen[0] if seen else None


@pytest.mark.parametrize("words", WORDS)
@pytest.mark.parametrize("listing", [ps.LISTING, gpus.LISTING], ids=lambda listing: listing.name)
def test_the_fast_reader_agrees_with_click_or_leaves_it_to_click(
    listing: Listing, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The short cut around click's import must not become a second dialect."""
    fast = read_plain(words.split(), has_ended=listing.has_ended)
    if fast is not None:
        assert fast == read_by_click(listing, words.split(), monkeypatch)


@pytest.mark.parametrize("words", ["", "-q", "-o json", "-o wide --no-headers", "--all"])
def test_the_common_spellings_take_the_short_cut(words: str) -> None:
    assert read_plain(words.split(), has_ended=True) is not None


@pytest.mark.parametrize("words", ["-h", "--help", "extra", "-o", "--unknown"])
def test_help_and_mistakes_are_left_to_click(words: str) -> None:
    assert read_plain(words.split(), has_ended=True) is None
