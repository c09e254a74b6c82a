"""The cgroups of users: with this machine's kernel where it counts by v1, and by trees that pass for v2."""

from __future__ import annotations

import json
import os
import pwd
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpushared.domain.model.errors import LimitReached, SharingUnavailable
from gpushared.node.runtime.container_reconciler import UserLimitKeeper
from gpushared.notify import user_command
from gpushared.notify.attempt import Delivered
from gpushared.ports import CgroupDriver, DeviceMechanism, EngineFacts, UserBounds, UserUse
from gpushared.sharing.cgroups import CgroupPlace, LeaseCgroups
from gpushared.sharing.limit_files import Trees
from gpushared.sharing.user_cgroups import UserCgroups
from tests.bed.cgroups import remove_users

MIB = 1 << 20
BOUNDS = UserBounds(memory_bytes=64 * MIB, cpus=1.5, pids=40)
V1 = EngineFacts("20.10.24", "1.41", False, DeviceMechanism.PLAIN, 1)
V2 = EngineFacts("29.1.3", "1.52", True, DeviceMechanism.PLAIN, 2)
SLICES = EngineFacts("29.1.3", "1.52", True, DeviceMechanism.PLAIN, 2, CgroupDriver.SYSTEMD)
FILES = {
    "memory.max": "max",
    "memory.swap.max": "max",
    "cpu.max": "max 100000",
    "pids.max": "max",
    "cgroup.controllers": "cpu memory pids",
    "cgroup.subtree_control": "",
}


class Tree:
    """Files as those of cgroup v2, in directories that a kernel would make them in; none looks at them."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.fill(path)

    def fill(self, directory: Path) -> Path:
        directory.mkdir(parents=True, exist_ok=True)
        for place in (directory, *directory.parents):
            if place.is_relative_to(self.path):
                for name, text in FILES.items():
                    if not (place / name).exists():
                        (place / name).write_text(text)
        return directory


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path / "cgroup")


def read(directory: Path) -> dict[str, str]:
    return {name: (directory / name).read_text() for name in FILES if "max" in name}


async def test_limits_are_written_with_cgroup_v2_and_taken_back(tree: Tree) -> None:
    """No swap beside a limit on memory, for v2 counts it apart."""
    walls = UserCgroups("here", root=tree.path)
    own = tree.fill(tree.path / "gpushare_users/here/1000")
    await walls.hold(1000, BOUNDS, V2)
    said = {"memory.max": str(64 * MIB), "memory.swap.max": "0", "cpu.max": "150000 100000", "pids.max": "40"}
    assert read(own) == said
    assert walls.parent_of(1000, V2) == "/gpushare_users/here/1000"
    assert "+memory" in (own.parent / "cgroup.subtree_control").read_text()
    await walls.apply(UserBounds())
    assert read(own) == {name: FILES[name] for name in said}


async def test_a_kernel_that_counts_no_swap_has_no_file_for_it(tree: Tree) -> None:
    walls = UserCgroups("here", root=tree.path)
    own = tree.fill(tree.path / "gpushare_users/here/1000")
    (own / "memory.swap.max").unlink()
    await walls.hold(1000, BOUNDS, V2)
    assert not (own / "memory.swap.max").exists()
    assert walls.trouble == ""


async def test_where_there_is_no_cgroup_v2_that_is_said(tmp_path: Path) -> None:
    walls = UserCgroups("here", root=tmp_path)
    with pytest.raises(SharingUnavailable, match="cgroup v2 is not mounted there"):
        await walls.hold(1000, BOUNDS, V2)
    assert str(tmp_path) in walls.trouble
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("engine", [V2, SLICES], ids=["cgroupfs", "systemd"])
async def test_a_process_of_ours_joins_beside_the_containers_of_a_user(
    tree: Tree, engine: EngineFacts
) -> None:
    """With v2 no process may be in the cgroup itself, in which there are others."""
    walls = UserCgroups("n1", root=tree.path)
    place = tree.fill(tree.path / walls.place_of(1000).path(engine.cgroup_driver).lstrip("/"))
    assert await walls.join_files(1000, engine) == [place / "beside-containers" / "cgroup.procs"]
    assert (place / "beside-containers").is_dir()
    assert await walls.join_files(1001, engine) == []


async def test_after_a_reboot_the_limits_are_there_before_the_engine_has_answered(
    tree: Tree, tmp_path: Path
) -> None:
    users_file = tmp_path / "users.json"
    own = tree.fill(tree.path / "gpushare_users/here/1000")
    await UserCgroups("here", users_file, root=tree.path).hold(1000, BOUNDS, V2)
    shutil.rmtree(own)
    tree.fill(own)
    await UserCgroups("here", users_file, root=tree.path).restore(BOUNDS)
    assert (own / "pids.max").read_text() == "40"


@pytest.mark.parametrize("text", ["", "[]", '{"uids": [1]}', '{"cgroup_driver": "x"}'])
async def test_a_broken_file_of_users_keeps_nobody_from_starting(
    tree: Tree, tmp_path: Path, text: str
) -> None:
    users_file = tmp_path / "users.json"
    users_file.write_text(text)
    await UserCgroups("here", users_file, root=tree.path).restore(BOUNDS)
    walls = UserCgroups("here", users_file, root=tree.path)
    tree.fill(tree.path / "gpushare_users/here/7")
    await walls.hold(7, BOUNDS, V2)
    assert json.loads(users_file.read_text())["uids"] == [7]


async def test_with_slices_only_systemd_writes_limits(tree: Tree, tmp_path: Path) -> None:
    """What it was told is compared with what the kernel has; a systemd that does nothing is found out."""
    place = "gpushare_users.slice/gpushare_users-here.slice/gpushare_users-here-1000.slice"
    own = tree.fill(tree.path / place)
    systemctl, said = tmp_path / "systemctl", tmp_path / "said"
    systemctl.write_text(f'#!/bin/sh\necho "$@" >>{said}\n')
    systemctl.chmod(0o755)
    walls = UserCgroups("here", root=tree.path, systemctl=str(systemctl))
    with pytest.raises(SharingUnavailable, match=r"systemd did not set .*memory\.max"):
        await walls.hold(1000, BOUNDS, SLICES)
    words = said.read_text().splitlines()[0].split()
    assert words[:4] == ["--quiet", "--runtime", "set-property", "gpushare_users-here-1000.slice"]
    assert {f"MemoryMax={64 * MIB}", "MemorySwapMax=0", "CPUQuota=150%", "TasksMax=40"} <= set(words)
    written = {"memory.max": str(64 * MIB), "memory.swap.max": "0", "cpu.max": "150000 100000"}
    for name, text in {**written, "pids.max": "40"}.items():
        (own / name).write_text(text)
    await walls.hold(1000, BOUNDS, SLICES)
    assert walls.parent_of(1000, SLICES) == "gpushare_users-here-1000.slice"
    assert walls.trouble == ""


async def test_a_lease_is_in_the_place_of_its_user_and_stays_where_it_was_made(tree: Tree) -> None:
    """The limits of the lease and those of its user hold for its container both."""
    cgroups = LeaseCgroups(tree.path, systemctl="true")
    before = await cgroups.make("l-old", V2, 1000)
    users = UserCgroups("here").home
    cgroups.users = users
    inside = await cgroups.make("l-new", V2, 1000)
    (Path(inside.path).parent / ("a" * 64)).mkdir()
    assert (before.docker_name, inside.docker_name) == ("/gpushare/l-old", "/gpushare_users/here/1000/l-new")
    assert await cgroups.make("l-old", V2, 1000) == before
    sliced = await cgroups.make("l-7f3k", SLICES, 1000)
    assert sliced.docker_name == r"gpushare_users-here-1000-l\x2d7f3k.slice"
    assert await cgroups.names() == ["l-7f3k", "l-new", "l-old"]
    await cgroups.remove("l-new")
    assert await cgroups.names() == ["l-7f3k", "l-old"]


@pytest.mark.parametrize(
    ("names", "path", "name"),
    [
        (("a",), "/a.slice", "a.slice"),
        (("a", "b-c"), r"/a.slice/a-b\x2dc.slice", r"a-b\x2dc.slice"),
        (("a", "b", "1"), "/a.slice/a-b.slice/a-b-1.slice", "a-b-1.slice"),
    ],
)
def test_slices_are_named_after_all_those_around_them(names: tuple[str, ...], path: str, name: str) -> None:
    place = CgroupPlace(names)
    assert (place.path(CgroupDriver.SYSTEMD), place.docker_name(CgroupDriver.SYSTEMD)) == (path, name)
    assert place.docker_name(CgroupDriver.CGROUPFS) == f"/{'/'.join(names)}"


# --- this machine's kernel -----------------------------------------------------------------------------


@pytest.fixture
def walls() -> Iterator[UserCgroups]:
    trees = Trees.find(1)
    if os.getuid() != 0 or set(trees.tops) != {"memory", "cpu", "pids"}:
        pytest.skip("this machine does not count with cgroup v1, or not for us")
    made = UserCgroups(f"test-{uuid.uuid4().hex[:8]}")
    yield made
    remove_users(made.home)


def kernels(walls: UserCgroups, name: str, uid: int = 1000) -> str:
    top = Trees.find(1).tops[name.partition(".")[0]]
    return (top / walls.place_of(uid).path(CgroupDriver.CGROUPFS).lstrip("/") / name).read_text().strip()


async def test_the_kernel_takes_limits_up_down_and_away(walls: UserCgroups) -> None:
    """Memory with swap may at no moment be less than memory alone."""
    for megabytes in (64, 512, 32, 0, 128):
        await walls.hold(1000, UserBounds(memory_bytes=megabytes * MIB, cpus=0.5, pids=20), V1)
        limit = int(kernels(walls, "memory.limit_in_bytes"))
        assert limit == megabytes * MIB if megabytes else limit > 1 << 60
    assert (kernels(walls, "cpu.cfs_quota_us"), kernels(walls, "pids.max")) == ("50000", "20")
    await walls.hold(1000, UserBounds(), V1)
    assert (kernels(walls, "cpu.cfs_quota_us"), kernels(walls, "pids.max")) == ("-1", "max")


async def test_a_limit_below_what_a_container_has_is_told_in_a_sentence_and_the_others_hold(
    walls: UserCgroups,
) -> None:
    await walls.hold(1000, UserBounds(cpus=1.0), V1)
    cpu = Trees.find(1).tops["cpu"] / walls.place_of(1000).path(CgroupDriver.CGROUPFS).lstrip("/")
    (cpu / "container").mkdir()
    (cpu / "container/cpu.cfs_quota_us").write_text("100000")
    with pytest.raises(LimitReached, match="have more than a user may have here"):
        await walls.hold(1000, UserBounds(cpus=0.5, pids=20), V1)
    assert kernels(walls, "pids.max") == "20"
    assert "1000" in walls.trouble
    (cpu / "container/cpu.cfs_quota_us").write_text("-1")
    await walls.hold(1000, UserBounds(cpus=0.5), V1)
    assert walls.trouble == ""


async def test_a_trial_leaves_nothing_and_a_user_unknown_holds_nothing(walls: UserCgroups) -> None:
    await walls.on_engine_answer(BOUNDS, V1)
    assert walls.trouble == ""
    assert not (Trees.find(1).tops["pids"] / "gpushare_users" / walls.home.names[-1]).exists()
    assert await walls.use(1234, V1) == UserUse()


async def test_what_went_away_is_there_again_at_the_next_hold(walls: UserCgroups) -> None:
    await walls.hold(1000, BOUNDS, V1)
    remove_users(walls.home)
    await walls.hold(1000, BOUNDS, V1)
    assert kernels(walls, "pids.max") == "40"


async def test_what_a_users_command_leaves_behind_is_in_the_users_cgroups(
    walls: UserCgroups, tmp_path: Path
) -> None:
    user, told = pwd.getpwnam("nobody"), tmp_path / "told"
    keeper = UserLimitKeeper(walls.home.names[-1], tmp_path, lambda: BOUNDS, lambda: V1)
    told.touch()
    os.chown(told, user.pw_uid, user.pw_gid)
    for folder in (tmp_path, *tmp_path.parents[:2]):
        folder.chmod(0o755)
    words = ("/bin/sh", "-c", f"setsid --fork --wait cat /proc/self/cgroup /proc/self/oom_score_adj >{told}")
    cgroups = await keeper.joining(user.pw_uid)
    assert await user_command.run(words, user.pw_uid, "{}", seconds=10, cgroups=cgroups) == Delivered()
    place = walls.place_of(user.pw_uid).path(CgroupDriver.CGROUPFS)
    *lines, score = told.read_text().splitlines()
    found = {line.split(":")[1]: line.split(":")[2] for line in lines}
    assert score == "0"
    assert all(place in found[name] for name in ("memory", "pids"))


async def test_before_the_engine_has_answered_no_cgroups_are_known(tmp_path: Path) -> None:
    assert await UserLimitKeeper("n1", tmp_path, lambda: BOUNDS, lambda: None).joining(1000) == []
