"""The reference page says what the program does."""

import re
import tomllib
from pathlib import Path

from gpushared.config import load, reference

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "configuration.md"


def test_the_page_has_every_setting_with_its_default_and_bounds() -> None:
    """After a change, put the output of ``gpushared.config.reference()`` below the page's introduction."""
    text = PAGE.read_text()
    assert text[text.index("## `[") :] == reference()


def test_the_page_s_example_is_a_configuration(tmp_path: Path) -> None:
    (example,) = re.findall(r"```toml\n(.*?)```", PAGE.read_text(), re.DOTALL)
    tomllib.loads(example)
    file = tmp_path / "config.toml"
    file.write_text(example)
    config = load(file).config
    assert (config.queue.claim_seconds, config.presets["small"].gpu) == (120, "0.25")
