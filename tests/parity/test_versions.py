"""The same containers in every version of the Engine API that both the client and the engine speak."""

from __future__ import annotations

import json

from tests.parity.creates import assert_same, compare
from tests.parity.pairs import Pair

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
