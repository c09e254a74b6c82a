"""File systems that users serve themselves (FUSE), and stop to serve: nobody else waits for them."""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import docker
import pytest

from gpushared.domain.model.errors import PermissionRefused, TimedOut
from gpushared.domain.model.request import Caller
from gpushared.engine import reality
from gpushared.gate.api.site import HOME, SitePolicy
from gpushared.gate.mounts import kernel
from gpushared.gate.mounts.held_mounts import AT_ONCE, HeldMounts
from gpushared.net.http_client import EngineSocket
from tests.gate.fuse import DEVICE, Fuse, fuse
from tests.gate.mounting import Holding, account, give, lose, names, wish, words
from tests.gate.serving import ALICE, BOB

pytestmark = [
    pytest.mark.docker,
    pytest.mark.skipif(not DEVICE.exists(), reason="this kernel has no FUSE"),
]


@pytest.fixture
def impatient(docker_engine: str, home: Path, tmp_path: Path) -> HeldMounts:
    """Of a site where a home may be mounted, and what is below the test's directory."""
    policy = SitePolicy(bind_prefixes=(HOME, str(home)))
    owner = secrets.token_hex(8)
    engine = EngineSocket(docker_engine)
    return HeldMounts(engine, lambda: policy, owner=owner, ledger=tmp_path / "ledger", patience_seconds=2.0)


@pytest.fixture
def bobs(home: Path) -> Path:
    path = home / "bobs"
    path.mkdir()
    return give(path, BOB.uid)


@pytest.fixture
def inner(home: Path) -> Iterator[Fuse]:
    """In a directory of alice's."""
    place = home / "own" / "d" / "inner"
    place.mkdir()
    with fuse(give(place)) as served:
        yield served


async def look(pins: HeldMounts, path: Path, *, home: Path | str = "", caller: Caller = ALICE) -> None:
    async with pins.hold(account(caller, home), [wish(path)]):
        pass


async def trouble(pins: HeldMounts, path: Path) -> str:
    with pytest.raises(TimedOut) as refused:
        await look(pins, path)
    return str(refused.value)


@pytest.mark.parametrize("allow_other", [False, True])
async def test_what_is_on_a_file_system_of_a_users_own_is_refused_as_a_source(
    impatient: HeldMounts, home: Path, *, allow_other: bool
) -> None:
    place = home / "own" / "d"
    with fuse(place, allow_other=allow_other):
        for path in (place, place / "file"):
            with pytest.raises(PermissionRefused, match=r"of a user's own \(FUSE\)"):
                await look(impatient, path)


@pytest.mark.parametrize("allow_other", [False, True])
async def test_one_that_never_answers_holds_up_its_users_looks_and_nobody_elses(
    impatient: HeldMounts, home: Path, bobs: Path, *, allow_other: bool
) -> None:
    """The processes that wait in it cannot be killed: no more of them are made than a user has turns."""
    place, elsewhere = home / "own" / "d", home / "alices"
    elsewhere.mkdir()
    give(elsewhere)
    with fuse(place, allow_other=allow_other) as served:
        served.fall_silent()
        said = [await trouble(impatient, place / "file")]
        while "took too long" in said[-1]:
            assert len(said) < 20, said
            said.append(await trouble(impatient, place / "file"))
        assert len(said) > AT_ONCE
        assert "4 looks at paths of yours have not come to an end" in said[-1]
        assert await trouble(impatient, elsewhere) == said[-1]
        await look(impatient, bobs, caller=BOB)
        served.end()
        await look(impatient, elsewhere)
    await impatient.sweep()


async def test_a_home_that_never_answers_holds_up_nobody_but_its_user(
    impatient: HeldMounts, home: Path, bobs: Path
) -> None:
    """The site's rules name homes, which are therefore looked at in each look, and never as root."""
    with fuse(home / "own", allow_other=True) as served:
        served.fall_silent()
        with pytest.raises(TimedOut):
            await look(impatient, bobs, home=home / "own")
        await look(impatient, bobs, home=bobs, caller=BOB)
    await impatient.sweep()


async def test_after_a_reboot_one_users_silent_file_system_keeps_no_others_mounts_from_being_held(
    docker_engine: str, impatient: HeldMounts, home: Path, bobs: Path
) -> None:
    async with AsyncExitStack() as stack:
        alices = await stack.enter_async_context(impatient.hold(account(), [wish(home / "own" / "d")]))
        others = await stack.enter_async_context(impatient.hold(account(BOB), [wish(bobs)]))
    engine = EngineSocket(docker_engine)
    await lose(engine, alices.name, others.name)
    with fuse(home / "own" / "d") as served:
        served.fall_silent()
        assert "took too long" in await impatient.restore()
        assert await names(engine, impatient) == [others.name]
    await impatient.sweep()


async def test_ones_own_below_a_source_is_said_to_be_missed_when_the_container_is_created(
    holding: Holding, inner: Fuse
) -> None:
    done = await holding.alice("create", *words(holding, holding.own / "d", "true"))
    assert done.code == 1
    assert f"{inner.place} in it is a file system of your own (FUSE)".encode() in done.err


async def test_one_that_is_mounted_later_keeps_no_container_from_its_start(holding: Holding) -> None:
    container = await holding.create(
        *words(holding, holding.own / "d", "sh", "-c", "cat /x/file; ls /x/later")
    )
    place = holding.own / "d" / "later"
    place.mkdir()
    with fuse(give(place)) as served:
        served.fall_silent()
        done = await holding.alice("start", "--attach", container)
    assert (done.code, done.out) == (0, b"mine"), done.err


async def test_anothers_below_a_source_is_left_out_so_that_no_start_waits_for_it(holding: Holding) -> None:
    """A program in it keeps the engine waiting, and whoever asks the engine of the container."""
    place = holding.own / "d" / "bobs"
    place.mkdir()
    (place / "below").write_text("")
    with fuse(give(place, BOB.uid), uid=BOB.uid) as lower, fuse(place, uid=BOB.uid) as upper:
        container = await holding.create(*words(holding, holding.own / "d", "ls", "/x/bobs"))
        for each in (lower, upper):
            each.fall_silent()
        assert await holding.output(container) == b"below\n"


async def test_a_link_is_not_followed_to_what_is_to_be_left_out(home: Path) -> None:
    """Whoever owns a directory on the way could have any mount of the machine taken away."""
    (home / "own" / "link").symlink_to("/run")
    folder = os.open(home / "own", os.O_PATH)
    try:
        for path in ("link/user", "link", "../secret", "/etc"):
            with pytest.raises(OSError, match=r"links|cross-device"):
                os.close(kernel.open_below(folder, path))
        os.close(kernel.open_below(folder, "d/file"))
    finally:
        os.close(folder)


async def test_a_look_at_a_containers_devices_does_not_wait_for_what_users_mounted_there(
    docker_engine: str, home: Path, busybox_image: str
) -> None:
    """Nodes work in none of these mounts. A look is a thread, and of these there are not many."""
    (home / "own" / "inner").mkdir()
    with (
        docker.APIClient(f"unix://{docker_engine}") as client,
        fuse(home / "own" / "inner", allow_other=True) as served,
    ):
        host = client.create_host_config(binds=[f"{home}/own:/dev/x"], network_mode="none")
        made = client.create_container(busybox_image, ["sleep", "600"], host_config=host)
        try:
            client.start(made)
            served.fall_silent()
            found = await asyncio.to_thread(reality.read, client.inspect_container(made), [])
            assert found is not None
            assert "/dev/null" in {node.path for node in found.nodes}
        finally:
            served.end()
            client.remove_container(made, force=True)
