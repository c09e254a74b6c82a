"""`docker compose` brings up the same services on both ways."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from tests.gate.docker import CommandResult, Docker
from tests.parity.creates import assert_same
from tests.parity.differences import ADDRESSES, ALWAYS, Allowance, differences
from tests.parity.pairs import LONG_ID, Pair

AT_ANOTHER_TIME = (
    *ALWAYS,
    *ADDRESSES,
    Allowance(r"NetworkSettings\..*(NetworkID|Gateway)", "each way has a network of its own"),
    Allowance(r"NetworkSettings\.Networks\.[^.]+\.Aliases\.\d+", "the short id is among them"),
    Allowance(r"State\.(Health\..*|Restarting)", "the first check may be over or not"),
)
QUESTIONS = (
    ("ps", "-a", "--format", "{{.Service}} {{.State}} {{.ExitCode}}"),
    ("exec", "-T", "first", "sh", "-c", "id -u; pwd; cat /settings /run/secrets/word; exit 5"),
    ("logs", "--no-log-prefix", "second"),
    ("top", "no-such-service"),
    ("port", "first", "81"),
    ("pause", "first"),
    ("unpause", "first"),
    ("kill", "-s", "KILL", "first"),
    ("config", "--services"),
)


async def test_a_file_with_every_key_gives_the_same_containers_and_answers(pair: Pair) -> None:
    put_files(pair.directory)
    pair.set_environment(IMAGE=pair.image)
    (direct, said_directly), (gate, said_through_gate) = [
        await whole_life(pair, side.docker) for side in pair.sides
    ]
    assert direct.keys() == gate.keys() == {"first", "second"}
    assert_same(
        [line for service in direct for line in differences(direct[service], gate[service], AT_ANOTHER_TIME)]
    )
    assert said_directly == said_through_gate
    assert said_directly[1].out == b"0\n/tmp\nsettings\nword\n"


def put_files(directory: Path) -> None:
    shutil.copy(Path(__file__).with_name("compose.yaml"), directory)
    for name in ("env", "settings", "word"):
        (directory / name).write_text(f"{name}\n" if name != "env" else "FROM_FILE=one\n")


async def whole_life(pair: Pair, docker: Docker) -> tuple[dict[str, object], list[CommandResult]]:
    """Its containers, by service, and what was answered; nothing is left, so that names can come again."""
    compose = ("compose", "-p", pair.mark, "-f", str(pair.directory / "compose.yaml"))
    try:
        up = await docker(*compose, "up", "-d", "--quiet-pull")
        assert up.code == 0, up.err
        await docker("wait", f"{pair.mark}-second-1")
        names = [f"{pair.mark}-{service}-1" for service in ("first", "second")]
        found = [plain(container) for container in (await pair.inspect(names)).values()]
        said = [await docker(*compose, *words) for words in QUESTIONS]
        return {labels(each)["com.docker.compose.service"]: each for each in found}, said
    finally:
        down = await docker(*compose, "down", "-v", "-t", "0")
        assert down.code == 0, down.err


def plain(container: dict[str, object]) -> dict[str, object]:
    text = json.dumps(container)
    ident = str(container["Id"])
    text = text.replace(ident, "<id>").replace(ident[:12], "<short id>")
    found: dict[str, object] = json.loads(LONG_ID.sub("<some id>", text))
    return found


def labels(container: dict[str, object]) -> dict[str, str]:
    config = container["Config"]
    assert isinstance(config, dict)
    return dict(config["Labels"])
