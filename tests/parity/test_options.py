"""Every option of `docker create` and `docker run` on both ways, compared field by field."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.bed.fixtures import CdiEngine
from tests.bed.parts import BUSYBOX_IMAGE
from tests.parity.creates import assert_same, compare
from tests.parity.differences import ALWAYS, LEASE
from tests.parity.options import CREATE, LEASED, NETWORK, NOT_APPLICABLE, PEER, RUN
from tests.parity.pairs import Pair, pair_on

OPTION = re.compile(r"^ +(?:-\w, )?--([a-z0-9-]+)\b", re.MULTILINE)
SECCOMP = {"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [{"names": ["mkdir"], "action": "SCMP_ACT_ERRNO"}]}
OLDEST = 41
WORDS = (
    ("-v", "{shared}:/x:ro", "--mount", "type=tmpfs,target=/y", "-e", "A=b", "--label", "c=d"),
    ("--network", "bridge", "--mac-address", "92:d0:c6:0a:29:33", "-p", "127.0.0.1::80"),
    ("--memory", "64m", "--cpus", "0.5", "--ulimit", "nofile=100", "--cap-drop", "ALL", "--init"),
    ("--mount", "type=bind,source={shared},target=/x,readonly"),
    ("--health-cmd", "true", "--health-interval", "3s", "--platform", "linux/amd64"),
    ("--annotation", "example.org/a=b"),
    ("--memory", "1"),
)


async def test_every_option_of_create_and_run_has_words_to_try_or_a_reason(each_pair: Pair) -> None:
    """As the client itself lists them, which leaves out what its engine does not know."""
    create = await options_of(each_pair, "create")
    run = await options_of(each_pair, "run")
    assert len(create) > 80
    assert create - CREATE.keys() - LEASED.keys() - NOT_APPLICABLE.keys() == set()
    assert run - create - RUN.keys() - NOT_APPLICABLE.keys() == set()


async def test_create_makes_the_same_container_of_every_option(each_pair: Pair) -> None:
    known = await options_of(each_pair, "create")
    await prepare(each_pair)
    cases = [words for option, tried in CREATE.items() if option in known for words in tried]
    assert_same(await compare(each_pair, "create", [(), *cases]))


async def test_run_makes_the_same_container_of_the_options_that_create_lacks(each_pair: Pair) -> None:
    cases = [words for tried in RUN.values() for words in tried]
    assert_same(await compare(each_pair, "run", [("--network", "none", *words) for words in cases]))


async def test_asking_for_gpus_changes_what_the_lease_brings_and_nothing_else(each_pair: Pair) -> None:
    cases = [words for tried in LEASED.values() for words in tried]
    assert_same(await compare(each_pair, "create", cases, (*ALWAYS, *LEASE)))


@pytest.mark.cdi
async def test_detach_keys_that_are_none_end_the_run_instead_of_starting_it_with_garbage(
    cdi_engine: CdiEngine, docker_environment: dict[str, str], tmp_path: Path
) -> None:
    """The one difference that is meant: the engine leaves HTTP with an error status, the gate does not.

    Directly, this client takes the unframed error for the container's output and starts the container.
    """
    async with pair_on(cdi_engine.socket, docker_environment, BUSYBOX_IMAGE, tmp_path) as pair:
        words = ("--name", f"{pair.mark}-keys", "--detach-keys", "nonsense-x")
        done = await pair.gate.run(*words, pair.gate.image, "true")
    assert (done.code, done.out) == (1, b"")
    assert b"unable to upgrade to tcp, received 400" in done.err


async def options_of(pair: Pair, verb: str) -> set[str]:
    done = await pair.gate(verb, "--help")
    return set(OPTION.findall(done.out.decode()))


async def prepare(pair: Pair) -> None:
    """What the words name: files, a network, and another container."""
    shared = pair.directory / "shared"
    (shared / "env").write_text("FROM_FILE=one\n# a comment\nPARITY_FROM_OUTSIDE\n")
    (shared / "labels").write_text("from-file=one\nbare\n")
    (shared / "seccomp.json").write_text(json.dumps(SECCOMP))
    network = ("network", "create", "--subnet", "10.213.7.0/24", pair.words([NETWORK], "", "")[0])
    peer = pair.words(
        ["--name", PEER, "-v", "/anonymous", "-v", "{shared}:/shared:ro", "--ipc", "shareable"], "shared", ""
    )
    for words in (network, ("create", *peer, pair.direct.image, "true")):
        await pair.direct(*words)


async def test_each_version_of_the_api_makes_the_same_containers(each_pair: Pair) -> None:
    minors = range(OLDEST, await newest(each_pair) + 1)
    assert minors
    for minor in minors:
        each_pair.set_environment(DOCKER_API_VERSION=f"1.{minor}")
        assert_same(await compare(each_pair, "create", WORDS, mark=f"v{minor}-"))


async def newest(pair: Pair) -> int:
    done = await pair.direct("version", "--format", "{{json .}}")
    told = json.loads(done.out)
    spoken = [told["Client"]["ApiVersion"], told["Server"]["ApiVersion"]]
    return min(int(version.split(".")[1]) for version in spoken)
