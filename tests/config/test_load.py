"""Where values come from, and what is said of wrong ones."""

import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from gpushared.config import Config, Loaded, load
from gpushared.config.model import LogLevel
from gpushared.domain.leases.node_rules import MpsMode
from gpushared.domain.model.errors import ConfigError
from gpushared.domain.model.gpu import MIB
from gpushared.domain.model.request_spec import RequestSpec

Files = Callable[..., Path]


@pytest.fixture
def files(tmp_path: Path) -> Files:
    """Writes ``config.toml`` (and more, by name) and gives its path."""

    def write(main: str | None = None, **others: str) -> Path:
        path = tmp_path / "config.toml"
        if main is not None:
            path.write_text(main)
        for name, text in others.items():
            path.with_suffix(".d").mkdir(exist_ok=True)
            (path.with_suffix(".d") / f"{name}.toml").write_text(text)
        return path

    return write


def complaint(path: Path, environ: Mapping[str, str] | None = None, **flags: str) -> ConfigError:
    dotted = {name.replace("__", "."): word for name, word in flags.items()}
    with pytest.raises(ConfigError) as refusal:
        load(path, environ=environ, flags=dotted)
    return refusal.value


def test_without_any_source_everything_has_its_default(files: Files) -> None:
    loaded = load(files())
    assert loaded == Loaded(Config(), {})
    assert loaded.config.queue.claim_seconds == 60


def test_a_named_file_that_is_missing_is_an_error(files: Files) -> None:
    with pytest.raises(ConfigError, match=r"config\.toml: there is no such file"):
        load(files(), must_exist=True)


def test_later_sources_win_and_each_value_knows_its_own(files: Files) -> None:
    path = files(
        "[queue]\nclaim_seconds = 11\norphan_seconds = 12\nmax_queued = 13\nmax_queued_per_user = 14\n",
        a="[queue]\norphan_seconds = 21\nmax_queued = 22\nmax_queued_per_user = 23\n",
        b="[queue]\nmax_queued = 31\nmax_queued_per_user = 32\n",
    )
    loaded = load(
        path,
        environ={"GPUSHARED_QUEUE__MAX_QUEUED_PER_USER": "41"},
        flags={"log.level": "debug", "log.format": None},
    )
    queue = loaded.config.queue
    assert (queue.claim_seconds, queue.orphan_seconds, queue.max_queued, queue.max_queued_per_user) == (
        11,
        21,
        31,
        41,
    )
    assert loaded.config.log.level is LogLevel.DEBUG
    folder = path.with_suffix(".d")
    assert loaded.origins == {
        "queue.claim_seconds": str(path),
        "queue.orphan_seconds": str(folder / "a.toml"),
        "queue.max_queued": str(folder / "b.toml"),
        "queue.max_queued_per_user": "environment GPUSHARED_QUEUE__MAX_QUEUED_PER_USER",
        "log.level": "flag for log.level",
    }
    assert loaded.origin("log.format") == "default"


def test_only_toml_files_of_the_folder_are_read(files: Files) -> None:
    path = files(None, a="")
    (path.with_suffix(".d") / "a.toml.bak").write_text("nonsense")
    assert load(path).config == Config()


VALUES: list[tuple[str, str, str, object]] = [
    ("gpus", "mps_reserve", '"1GiB"', 1024 * MIB),
    ("queue", "claim_seconds", '"5m"', 300),
    ("queue", "claim_seconds", "300", 300),
    ("engine", "stop_grace_seconds", "0", 0),
    ("gpus", "sample_seconds", "2", 2.0),
    ("gpus", "sample_seconds", "0.25", 0.25),
    ("node", "socket_mode", '"0660"', 0o660),
    ("node", "name", '"Größe 7"', "Größe 7"),
    ("sharing", "mps", '"required"', MpsMode.REQUIRED),
    ("gpus", "exclusive_process", '"all"', ("all",)),
    ("gpus", "exclusive_process", '[0, "1", "GPU-1-2"]', ("0", "1", "GPU-1-2")),
    ("gate", "trusted_groups", "[]", ()),
    ("gate", "mount_prefixes", '["~/data", "/scratch"]', ("~/data", "/scratch")),
]


@pytest.mark.parametrize(("section", "key", "written", "meant"), VALUES)
def test_values_are_read_by_their_kind(
    files: Files, section: str, key: str, written: str, meant: object
) -> None:
    config = load(files(f"[{section}]\n{key} = {written}\n")).config
    attribute = "mps_reserve_bytes" if key == "mps_reserve" else key
    found = getattr(getattr(config, section), attribute)
    assert (found, type(found)) == (meant, type(meant))


WORDS: list[tuple[str, str, object]] = [
    ("GPUSHARED_QUEUE__CLAIM_SECONDS", "90", 90),
    ("GPUSHARED_GPUS__EXCLUSIVE_PROCESS", "0, GPU-1-2", ("0", "GPU-1-2")),
    ("GPUSHARED_QUEUE__CLAIM_SECONDS", "90s", 90),
    ("GPUSHARED_GPUS__SAMPLE_SECONDS", "0.5", 0.5),
    ("GPUSHARED_GPUS__MPS_RESERVE", "300m", 300 * MIB),
    ("GPUSHARED_GATE__TRUSTED_GROUPS", "docker, wheel", ("docker", "wheel")),
    ("GPUSHARED_GATE__TRUSTED_GROUPS", "", ()),
    ("GPUSHARED_LOG__LEVEL", "error", LogLevel.ERROR),
]


@pytest.mark.parametrize(("name", "word", "meant"), WORDS)
def test_words_of_the_environment_are_read_by_their_kind(
    files: Files, name: str, word: str, meant: object
) -> None:
    loaded = load(files(), environ={name: word})
    section, key = name.removeprefix("GPUSHARED_").lower().split("__")
    attribute = "mps_reserve_bytes" if key == "mps_reserve" else key
    assert getattr(getattr(loaded.config, section), attribute) == meant


def test_other_names_in_the_environment_do_not_matter(files: Files) -> None:
    environ = {"PATH": "/bin", "GPUSHARED_CACHE": "/x", "GPUSHARE_HOST": "/y", "MY_GPUSHARED_LOG__LEVEL": "z"}
    assert load(files(), environ=environ) == Loaded(Config(), {})


NEAREST: list[tuple[str, str, str]] = [
    (
        "[queue]\nclaim_secnds = 60",
        "queue.claim_secnds is not a setting",
        "did you mean queue.claim_seconds?",
    ),
    ("[quue]\nmax_queued = 1", "quue.max_queued is not a setting", "did you mean queue.max_queued?"),
    ("claim_seconds = 60", "claim_seconds is not a setting", "did you mean queue.claim_seconds?"),
    ("[engine]\nmps_binary = ''", "engine.mps_binary is not a setting", "did you mean sharing.mps_binary?"),
    (
        "[zzz]",
        "zzz is not a setting",
        "sections: node, engine, gpus, sharing, watchdog, idle, idle.quiet, queue, classes.build",
    ),
    ("queue = 3", "queue is a section, not a value", "write [queue]"),
    ("[presets.small]\ngpus = '1'", "presets.small.gpus is not a setting", "did you mean presets.small.gpu?"),
    ("[presets]\nsmall = 1", "presets.small is not a preset with settings", "write [presets.small]"),
    ("[presets.small]", "presets.small is not a preset with settings", "write [presets.small]"),
    ("[presets.Small]\ngpu = '1'", "'Small' cannot be a preset's name", "small letters"),
    ('["\\u0000\\n"]\nx = 1', "'??'.x is not a setting", "sections:"),
]


@pytest.mark.parametrize(("text", "message", "hint"), NEAREST)
def test_an_unknown_setting_is_refused_with_its_path_its_file_and_the_nearest(
    files: Files, text: str, message: str, hint: str
) -> None:
    path = files(text)
    error = complaint(path)
    assert error.message == f"{path}: {message}"
    assert hint in error.hint
    assert error.exit_code == 2


WRONG: list[tuple[str, str]] = [
    ("[queue]\nclaim_seconds = 4", "queue.claim_seconds must be 5 to 3600, not 4"),
    ("[queue]\nclaim_seconds = true", "queue.claim_seconds must be a whole number, not true"),
    ("[queue]\nclaim_seconds = 60.0", "queue.claim_seconds must be a whole number, not '60.0'"),
    ("[queue]\nclaim_seconds = 'soon'", "queue.claim_seconds is wrong: 'soon' is not a duration; write 90s"),
    ("[queue]\nmax_queued = -1", "queue.max_queued must be 0 to 100000, not -1"),
    ("[queue]\nmax_queued = '9'", "queue.max_queued must be a whole number, not the text '9'"),
    ("[queue]\nmax_queued = {}", "queue.max_queued must be a whole number, not a section"),
    ("[gpus]\nsample_seconds = nan", "gpus.sample_seconds must be 0.1 to 60, not nan"),
    ("[gpus]\nsample_seconds = '1'", "gpus.sample_seconds must be a number, not the text '1'"),
    ("[gpus]\nmps_reserve = 300", "gpus.mps_reserve must be a size like \"300MiB\", not '300'"),
    ("[gpus]\nmps_reserve = '300'", "gpus.mps_reserve is wrong: '300' is not a memory size"),
    ("[gpus]\nmps_reserve = '1t'", "gpus.mps_reserve must be at most 64 GiB, not 1 TiB"),
    ("[node]\nsocket_mode = 438", "node.socket_mode must be permissions like \"0660\", not '438'"),
    ("[node]\nsocket_mode = '0999'", "node.socket_mode must be permissions like \"0660\", not '0999'"),
    ("[node]\nstate_dir = 'here'", "node.state_dir must be an absolute path, not 'here'"),
    ("[node]\nname = 1979-05-27", "node.name must be text, not '1979-05-27'"),
    ("[sharing]\nmps = 'yes'", "sharing.mps must be one of auto, required, off, not 'yes'"),
    ("[gpus]\nexclusive_process = true", "gpus.exclusive_process must be a list of GPU indexes"),
    ("[gpus]\nexclusive_process = [-1]", "gpus.exclusive_process must be a list of GPU indexes"),
    ("[gpus]\nexclusive_process = ['first']", "gpus.exclusive_process must be a list of GPU indexes"),
    ("[gate]\ntrusted_groups = 'docker'", "gate.trusted_groups must be a list, not the text 'docker'"),
    ("[gate]\ntrusted_groups = [1]", "gate.trusted_groups must be text, not '1'"),
    ("[gate]\nmount_prefixes = ['data']", "gate.mount_prefixes must be an absolute path, or one below `~`"),
    ("[presets.big]\ngpu = '1.5'", "presets.big: '1.5' is more than one GPU but not a whole number of them"),
    ("[presets.big]\ndescription = 'x'", "presets.big: no GPU was asked for"),
    ("[presets.big]\ngpu = '1'\nclass = 'fun'", "presets.big: 'fun' is not a known class"),
    (
        "[gate]\ndev_containers = 'smal'",
        "gate.dev_containers: 'smal' is neither a size nor one of the presets",
    ),
    ("[gate]\ndev_containers = '25%'", "gate.dev_containers: '25%' is neither a size nor one of the presets"),
    ("[queue", "is not TOML: "),
    ("[a]\nx = " + "[" * 5000, "is nested too deeply"),
]


@pytest.mark.parametrize(("text", "message"), WRONG)
def test_a_wrong_value_is_refused_with_what_would_be_right(files: Files, text: str, message: str) -> None:
    path = files(text)
    assert complaint(path).message.startswith(f"{path}: {message}")


@pytest.mark.parametrize("word", ["1e3", "", " ", "٣", "9" * 30, "--5", "\udcff"])
def test_a_word_that_is_no_number_is_refused(files: Files, word: str) -> None:
    error = complaint(files(), environ={"GPUSHARED_QUEUE__MAX_QUEUED": word})
    assert "environment GPUSHARED_QUEUE__MAX_QUEUED: queue.max_queued must be" in error.message


def test_bytes_that_are_not_utf_8_are_refused_in_files_and_words(files: Files) -> None:
    path = files("")
    assert "must be UTF-8" in complaint(path, environ={"GPUSHARED_NODE__NAME": "\udcff"}).message
    path.write_bytes(b"\xff")
    assert complaint(path).message == f"{path}: is not UTF-8"


def test_unknown_names_in_the_environment_and_flags_are_refused_too(files: Files) -> None:
    error = complaint(files(), environ={"GPUSHARED_QUEUE__CLAIMS_SECONDS": "1"})
    assert error.hint == "did you mean queue.claim_seconds?"
    assert "flag for log.levex: log.levex is not a setting" in complaint(files(), log__levex="debug").message


def test_everything_that_is_wrong_is_told_at_once(files: Files) -> None:
    path = files("[queue]\nclaim_secnds = 1\nmax_queued = -1\n", a="[log]\nlevel = 'loud'\n", b="[")
    text = str(complaint(path, environ={"GPUSHARED_NODE__RUNTIME_DIR": "run"}))
    assert "5 things are wrong" in text
    for part in (
        "did you mean queue.claim_seconds?",
        "not -1",
        "'loud'",
        "is not TOML",
        "GPUSHARED_NODE__RUNTIME_DIR",
    ):
        assert part in text


def test_a_thousand_wrong_things_do_not_fill_the_screen(files: Files) -> None:
    text = str(complaint(files("[queue]\n" + "\n".join(f"wrong{n} = 1" for n in range(1000)))))
    assert "1000 things are wrong" in text
    assert "and 980 more" in text
    assert len(text.splitlines()) < 30


def test_all_mistakes_of_a_preset_are_told_at_once(files: Files) -> None:
    words = "gpu = '9x'\nclass = 'fun'\ntime = 'long'\nisolation = 'alone'\npriority = '1'\n"
    with pytest.raises(ConfigError) as raised:
        load(files(f"[presets.big]\n{words}"))
    assert raised.value.message.startswith("4 things are wrong")
    for word in ("'9x'", "'fun'", "'long'", "'alone'"):
        assert f"presets.big: {word}" in raised.value.message


def test_a_single_mistake_without_a_hint_is_answered_with_the_page_of_all_settings(files: Files) -> None:
    with pytest.raises(ConfigError) as raised:
        load(files("[queue]\nmax_queued = 'many'\n"))
    assert raised.value.hint == "see docs/reference/configuration.md for all settings"


def test_a_preset_is_put_together_from_several_files(files: Files) -> None:
    path = files("[presets.small]\ngpu = '0.25'\n", a="[presets.small]\nclass = 'build'\ntime = '8h'\n")
    assert load(path).config.presets["small"].spec == RequestSpec(gpu="0.25", lease_class="build", time="8h")


UNREADABLE = """
import os, sys
from pathlib import Path
from gpushared.config import load
from gpushared.domain.model.errors import ConfigError
os.setuid(65534)
try:
    load(Path(sys.argv[1]))
except ConfigError as error:
    print(error)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody who may not read")
@pytest.mark.parametrize("hidden", ["config.toml", "config.d", "config.d/a.toml"])
def test_a_file_that_may_not_be_read_is_not_taken_for_a_missing_one(files: Files, hidden: str) -> None:
    path = files("", a="")
    for folder in list(path.parents)[:-2]:
        folder.chmod(0o755)
    (path.parent / hidden).chmod(0)
    done = subprocess.run(
        [sys.executable, "-c", UNREADABLE, path], check=True, capture_output=True, text=True
    )
    assert f"{path.parent / hidden}: cannot be read: Permission denied" in done.stdout
