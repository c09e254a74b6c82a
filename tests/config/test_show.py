"""A configuration shown is a configuration that can be used again."""

import re
import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushared.config import load, reference, settings, to_toml
from gpushared.config.kinds import keys_of
from gpushared.config.model import Preset
from gpushared.config.schema import NODE

FULL = """
[node]
name = "a \\"quoted\\" back\\\\slash \\u007f 🎈"
socket_mode = "0600"
[gpus]
mps_reserve = "1537MiB"
sample_seconds = 0.5
[gate]
mount_prefixes = ["~", "/data,with comma"]
[gate.max_wait]
jupyterhub = "0s"
vision = "10m"
[jobs]
keep_containers = "2h"
[pool]
coordinator = "pool.lab:7443"
trusted_realms = ["lab"]
[pool.accounts]
"ada@ws3" = "adal"
bob = "bob"
[presets."v1.5"]
gpu_memory = "8g"
class = "infer"
description = "dots in its name"
[presets.small]
gpu = "0.25"
"""
PAGE = Path(__file__).parents[2] / "docs" / "reference" / "configuration.md"


@pytest.mark.parametrize("origins", [False, True])
@pytest.mark.parametrize("text", ["", FULL], ids=["defaults", "everything set"])
def test_what_is_shown_reads_back_as_the_same(tmp_path: Path, text: str, origins: bool) -> None:
    first, second = tmp_path / "first.toml", tmp_path / "second.toml"
    first.write_text(text)
    loaded = load(first)
    second.write_text(to_toml(loaded, origins=origins))
    assert load(second).config == loaded.config


@given(name=st.text(st.characters(exclude_categories=["Cs"])))
def test_any_text_reads_back_as_the_same(tmp_path_factory: pytest.TempPathFactory, name: str) -> None:
    file = tmp_path_factory.mktemp("config") / "config.toml"
    loaded = load(file, environ={"GPUSHARED_NODE__NAME": name})
    file.write_text(to_toml(loaded, origins=True), newline="")
    assert load(file).config.node.name == name


def test_every_setting_is_shown_with_its_origin(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text(FULL)
    loaded = load(file, environ={"GPUSHARED_LOG__LEVEL": "debug"})
    shown = {one.path: (one.value, one.origin) for one in settings(loaded)}
    assert shown["node.state_dir"] == ('"/var/lib/gpushared"', "default")
    assert shown["gpus.mps_reserve"] == ('"1537MiB"', str(file))
    assert shown["log.level"] == ('"debug"', "environment GPUSHARED_LOG__LEVEL")
    assert shown["presets.v1.5.class"] == ('"infer"', str(file))
    assert 'level = "debug"  # environment GPUSHARED_LOG__LEVEL' in to_toml(loaded, origins=True)
    expected = {f"{section}.{name}" for section, cls in NODE.sections.items() for name in keys_of(cls)}
    assert {path for path in shown if path.partition(".")[0] not in {"projects", "presets"}} == expected


def test_every_default_lies_within_its_own_bounds() -> None:
    for cls in (*NODE.sections.values(), Preset):
        for key in keys_of(cls).values():
            written = key.kind.write(key.default)
            word = written.strip('"[]{}').replace('"', "")
            assert key.kind.read(key.kind.from_text(word)) == key.default, key.name


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
