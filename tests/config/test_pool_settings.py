"""The coordinator's configuration: its own file, its own environment, the same rules."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gpushared.config import load, reference
from gpushared.config.pool_settings import POOL, CoordinatorConfig, is_listen_address, load_pool
from gpushared.domain.model.errors import ConfigError

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "pool-configuration.md"


def write(folder: Path, text: str) -> Path:
    file = folder / "pool.toml"
    file.write_text(text)
    return file


def test_without_a_file_everything_is_as_documented(tmp_path: Path) -> None:
    config = load_pool(tmp_path / "none.toml")
    assert config == CoordinatorConfig()
    assert (config.coordinator.listen, config.coordinator.listen_nodes) == ("[::]:7440", "[::]:7441")


def test_files_environment_and_flags_are_read_in_this_order(tmp_path: Path) -> None:
    file = write(tmp_path, '[queue]\nmax_queued = 1\n[nodes]\nbeat_seconds = 1\n[log]\nlevel = "error"\n')
    (tmp_path / "pool.d").mkdir()
    (tmp_path / "pool.d" / "more.toml").write_text("[nodes]\nbeat_seconds = 2\n")
    environ = {"GPUSHARED_POOL_QUEUE__MAX_QUEUED": "7", "GPUSHARED_POOL_LOG__LEVEL": "warning"}
    config = load_pool(file, environ=environ, flags={"log.level": "debug", "coordinator.listen": None})
    assert (config.queue.max_queued, config.nodes.beat_seconds, config.log.level) == (7, 2.0, "debug")


def test_people_and_projects_are_as_many_as_one_names(tmp_path: Path) -> None:
    text = """
    [users.ada]
    principals = ["ada@lab", "adal@ws3"]
    admin = true
    [users."*"]
    principals = ["*@lab"]
    [projects.vision]
    users = ["ada"]
    guaranteed = 2
    [projects.vision.models."NVIDIA H100 80GB HBM3"]
    guaranteed = 1
    [presets.small]
    gpu = "0.25"
    """
    config = load_pool(write(tmp_path, text))
    assert config.users["ada"].principals == ("ada@lab", "adal@ws3")
    assert config.users["ada"].admin
    assert config.users["*"].principals == ("*@lab",)
    assert config.presets["small"].spec.gpu == "0.25"
    assert config.projects["vision"].guaranteed == 2000
    assert config.projects["vision"].models["NVIDIA H100 80GB HBM3"].guaranteed == 1000


@pytest.mark.parametrize(
    ("text", "told"),
    [
        pytest.param("[node]\nname = 'a'", "node.name is not a setting", id="a node's setting"),
        pytest.param("[coordinator]\nlisten = '7443'", "must be `HOST:PORT`", id="no host"),
        pytest.param("[coordinator]\nport = 1", "coordinator.port is not a setting", id="no such key"),
        pytest.param("[coordinator]\nname = 'The Lab'", "small letters", id="a pool's name"),
        pytest.param("[users.ada]\nprincipals = ['ada']", "a principal such as", id="no realm"),
        pytest.param("[users]\nada = 1", "users.ada is not a person with settings", id="no table"),
        pytest.param("[users.'a b']\nadmin = true", "cannot be a person's name", id="a person's name"),
        pytest.param("[presets.small]\ngpu = 'much'", "presets.small: ", id="a preset nobody can ask for"),
        pytest.param("[presets.Small]\ngpu = '1'", "small letters", id="a preset's name"),
        pytest.param("[projects.v.idle]\nwarn_seconds = 1", "is not a setting here", id="idle times"),
        pytest.param("[quotas]\nwhen_cut_off = 'serve'", "take [quotas] out", id="a former section"),
        pytest.param("[projects.v]\nguaranteed = 2\nlimit = 1", "limit", id="a project that cannot be"),
        pytest.param("[store]\nurl = 'sqlite:'", "etcd://HOST:PORT", id="a store that is not etcd"),
        pytest.param("[store]\nprefix = 'lab'", "a path such as", id="a prefix without slashes"),
    ],
)
def test_what_is_wrong_is_said_with_where_it_stands(tmp_path: Path, text: str, told: str) -> None:
    file = write(tmp_path, text)
    with pytest.raises(ConfigError) as error:
        load_pool(file)
    assert told in str(error.value)
    assert str(file) in str(error.value)


def test_a_file_that_was_named_must_exist(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no such file"):
        load_pool(tmp_path / "none.toml", must_exist=True)


def test_the_environments_of_node_and_coordinator_do_not_meet(tmp_path: Path) -> None:
    """Both daemons may run on one machine, with one environment."""
    environ = {
        "GPUSHARED_POOL_QUEUE__MAX_QUEUED": "7",
        "GPUSHARED_POOL__REALM": "lab",
        "GPUSHARED_QUEUE__MAX_QUEUED": "8",
    }
    node = load(tmp_path / "none.toml", environ=environ).config
    pool = load_pool(tmp_path / "none.toml", environ=environ)
    assert (node.queue.max_queued, node.pool.realm, pool.queue.max_queued) == (8, "lab", 7)


@pytest.mark.parametrize("text", ["[::]:7443", "0.0.0.0:0", "pool.lab:7443", "[fd00::1]:65535"])
def test_addresses_to_listen_at(text: str) -> None:
    assert is_listen_address(text)


@pytest.mark.parametrize("text", ["", "7443", ":7443", "::1:7443", "host:", "host:x", "host:65536", "a b:1"])
def test_what_is_no_address_to_listen_at(text: str) -> None:
    assert not is_listen_address(text)


def test_the_page_has_every_setting_with_its_default_and_bounds() -> None:
    """After a change, put the output of ``reference(POOL)`` below the page's introduction."""
    text = PAGE.read_text()
    assert text[text.index("## `[") :] == reference(POOL)


def test_the_page_s_example_is_a_configuration(tmp_path: Path) -> None:
    (example,) = re.findall(r"```toml\n(.*?)```", PAGE.read_text(), re.DOTALL)
    config = load_pool(write(tmp_path, example))
    assert config.coordinator.name == "lab"
    assert config.users["ada"].admin
