"""The same words for `docker create` or `docker run` on both ways, and what became of them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from tests.parity.differences import ALWAYS, Allowance, differences
from tests.parity.pairs import Pair, SideResult

AT_ONCE = 4
Words = tuple[str, ...]


def assert_same(differing: list[str]) -> None:
    assert not differing, "\n".join(differing)


async def compare(
    pair: Pair,
    verb: str,
    cases: Iterable[Words],
    allowances: tuple[Allowance, ...] = ALWAYS,
    mark: str = "",
) -> list[str]:
    """What differs, each line beginning with the words that were tried; ``mark`` goes into their names."""
    turns = asyncio.Semaphore(AT_ONCE)

    async def both(number: int, words: Words) -> tuple[SideResult, SideResult]:
        async with turns:
            direct = await make(pair, verb, f"{mark}{number}", words, "direct")
            return direct, await make(pair, verb, f"{mark}{number}", words, "gate")

    tried = list(cases)
    made = await asyncio.gather(*(both(number, words) for number, words in enumerate(tried)))
    found = await pair.inspect(one.name for two in made for one in two)
    return [
        f"{' '.join(words) or 'no option'}: {line}"
        for words, (direct, gate) in zip(tried, made, strict=True)
        for line in [
            *differences(told(pair, direct), told(pair, gate), ()),
            *differences(described(pair, direct, found), described(pair, gate, found), allowances),
        ]
    ]


async def make(pair: Pair, verb: str, number: str, words: Words, side: str) -> SideResult:
    docker = pair.direct if side == "direct" else pair.gate
    name = f"{pair.mark}-{number}-{side}"
    own_name = () if "--name" in words else ("--name", name)
    command = ("sh", "-c", "echo out; echo err >&2; exit 3") if verb == "run" else ("echo", "out")
    given = pair.words([*own_name, *words], side, name)
    return SideResult(name, await docker(verb, *given, docker.image, *command))


def told(pair: Pair, made: SideResult) -> dict[str, object]:
    """How the command ended and what it said and wrote."""
    done = made.done
    said = {"code": done.code, "out": done.out.decode(), "err": done.err.decode()}
    own = pair.directory / made.name.rsplit("-", 1)[1]
    files = {path.name: path.read_text() for path in own.iterdir() if path.is_file()}
    return {"told": pair.plain(said, made.name), "files": pair.plain(files, made.name)}


def described(pair: Pair, made: SideResult, found: dict[str, dict[str, object]]) -> object:
    container = found.get(made.name, {})
    return pair.plain(container, made.name, str(container.get("Id", "")))
