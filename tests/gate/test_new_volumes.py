"""New volumes of a confined caller's: the caller's to write to, whatever the image brings to them."""

from __future__ import annotations

import io
import os
import stat
import subprocess
import tarfile
import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from gpushared.gate.api.site import SitePolicy
from gpushared.gate.docker_gate import Gate
from gpushared.gate.mounts import volume_owners
from tests.bed import parts
from tests.gate.docker import DockerClients, docker_clients
from tests.gate.lease_services import FakeLeaseService
from tests.gate.mounting import mounted
from tests.gate.serving import ALICE

TAG = "gate-new-volumes:latest"
BAKED = "/baked"
"""A directory of the image with what images can bring into a volume. It is postgres' own, as it were."""
POSTGRES = 70
DEVICE = tarfile.CHRTYPE, 1, 3  # the kernel's null device


def image() -> bytes:
    """Busybox, and a directory with a directory, a file, a link out and a device in it."""
    archive = io.BytesIO(parts.BUSYBOX_TAR.read_bytes())
    with tarfile.open(fileobj=archive, mode="a") as tar:
        for name, kind in (("", tarfile.DIRTYPE), ("/in", tarfile.DIRTYPE), ("/in/file", tarfile.REGTYPE)):
            tar.addfile(entry(f"baked{name}", kind))
        link = entry("baked/link", tarfile.SYMTYPE)
        link.linkname = "/etc/shadow"
        tar.addfile(link)
        device = entry("baked/device", DEVICE[0])
        device.devmajor, device.devminor = DEVICE[1:]
        tar.addfile(device)
    return archive.getvalue()


def entry(name: str, kind: bytes) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.uid, info.gid = kind, POSTGRES, POSTGRES
    info.mode = 0o700 if kind == tarfile.DIRTYPE else 0o644
    return info


async def owner_of(clients: DockerClients, volume: str, path: str = "") -> str:
    """Return who has a file of the volume, as root sees it, and its kind."""
    look = ("stat", "-c", "%u:%g %F", f"/v{path}")
    done = await clients.engine.run("-v", f"{volume}:/v:nocopy", clients.engine.image, *look)
    assert done.code == 0, done.err
    return done.out.decode().strip()


@pytest.fixture
async def clients(
    each_engine: str, lease_service: FakeLeaseService, docker_environment: dict[str, str], tmp_path: Path
) -> AsyncIterator[DockerClients]:
    socket = each_engine
    file = tmp_path / "image.tar"
    file.write_bytes(image())
    assert parts.docker(socket, "import", str(file), TAG).returncode == 0
    gate = Gate(socket, lease_service, SitePolicy(root_inside=True))
    async with docker_clients(gate, socket, docker_environment, TAG) as clients:
        yield clients
    parts.docker(socket, "rmi", "--force", TAG)


@pytest.fixture
async def volume(clients: DockerClients) -> AsyncIterator[str]:
    name = f"gate-{uuid.uuid4().hex[:10]}"
    yield name
    await clients.engine("volume", "rm", "--force", name)


WRITE = ("sh", "-c", "echo x >/w/f && cat /w/f")


@pytest.mark.docker
async def test_a_volume_that_docker_run_makes_is_its_makers_to_write_to(
    clients: DockerClients, volume: str
) -> None:
    for _ in range(2):
        done = await clients.alice.run("-v", f"{volume}:/w", clients.alice.image, *WRITE)
        assert (done.code, done.out) == (0, b"x\n"), done.err
    assert await owner_of(clients, volume) == "1000:1000 directory"


@pytest.mark.docker
async def test_a_volume_that_was_made_before_is_its_makers_to_write_to(
    clients: DockerClients, volume: str
) -> None:
    """As compose makes them."""
    assert (await clients.alice("volume", "create", volume)).code == 0
    done = await clients.alice.run("--mount", f"type=volume,src={volume},dst=/w", clients.alice.image, *WRITE)
    assert (done.code, done.out) == (0, b"x\n"), done.err


@pytest.mark.docker
@pytest.mark.parametrize("options", [("-v", "/w"), ("--mount", "type=volume,dst=/w")])
async def test_a_volume_without_a_name_is_its_makers_to_write_to(
    clients: DockerClients, options: tuple[str, ...]
) -> None:
    done = await clients.alice.run(*options, clients.alice.image, *WRITE)
    assert (done.code, done.out) == (0, b"x\n"), done.err


@pytest.mark.docker
async def test_what_the_image_brings_into_a_volume_is_its_makers_but_for_devices(
    clients: DockerClients, volume: str
) -> None:
    done = await clients.alice.run(
        "-v", f"{volume}:{BAKED}", clients.alice.image, "sh", "-c", "echo x >/baked/in/file"
    )
    assert done.code == 0, done.err
    assert await owner_of(clients, volume, "/in") == "1000:1000 directory"
    assert await owner_of(clients, volume, "/in/file") == "1000:1000 regular file"
    assert await owner_of(clients, volume, "/device") == "70:70 character special file"
    assert await owner_of(clients, volume, "/link") == "70:70 symbolic link"


@pytest.mark.docker
async def test_a_volume_with_files_stays_as_it_is(clients: DockerClients, volume: str) -> None:
    """Who is root inside, as installers of databases are, may have given them to somebody."""
    install = "mkdir /w/db && chown 70 /w /w/db"
    made = await clients.alice.run(
        "--user=root", "-v", f"{volume}:/w", clients.alice.image, "sh", "-c", install
    )
    assert made.code == 0, made.err
    await clients.alice.run("-v", f"{volume}:/w", clients.alice.image, "true")
    assert [await owner_of(clients, volume, path) for path in ("", "/db")] == ["70:0 directory"] * 2


@pytest.mark.docker
async def test_what_the_image_brings_stays_its_own_where_the_program_is_root_inside(
    clients: DockerClients, volume: str
) -> None:
    done = await clients.alice.run("--user=root", "-v", f"{volume}:{BAKED}", clients.alice.image, "true")
    assert done.code == 0, done.err
    assert await owner_of(clients, volume, "/in") == "70:70 directory"


@pytest.mark.docker
async def test_nobody_gets_a_volume_that_another_made(clients: DockerClients, volume: str) -> None:
    for maker in (clients.engine, clients.bob):
        await maker("volume", "create", volume)
        before = await owner_of(clients, volume)
        done = await clients.alice.run("-v", f"{volume}:/w", clients.alice.image, *WRITE)
        assert (done.code, f"No such volume: {volume}".encode() in done.err) == (125, True)
        assert await owner_of(clients, volume) == before
        await maker("volume", "rm", volume)


@pytest.mark.docker
async def test_a_volume_that_leads_elsewhere_is_given_to_nobody(
    clients: DockerClients, volume: str, tmp_path: Path
) -> None:
    """Root can make one with a user's label, by hand or from a copied configuration."""
    place = tmp_path / "elsewhere"
    place.mkdir()
    options = ("type=none", "o=bind", f"device={place}")
    words = [word for option in options for word in ("-o", option)]
    label = f"gpushare.owner={ALICE.uid}"
    assert (await clients.engine("volume", "create", "--label", label, *words, volume)).code == 0
    await clients.alice.run("-v", f"{volume}:/w", clients.alice.image, "true")
    assert place.stat().st_uid == 0


@pytest.mark.docker
async def test_a_trusted_users_volume_is_as_the_engine_makes_it(clients: DockerClients, volume: str) -> None:
    await clients.root.run("-v", f"{volume}:{BAKED}", clients.root.image, "true")
    assert await owner_of(clients, volume, "/in") == "70:70 directory"


# --- the helper's part ---------------------------------------------------------------------------------

needs_root = pytest.mark.skipif(os.getuid() != 0, reason="only root gives files away")


@pytest.fixture
def files(tmp_path: Path) -> Iterator[Path]:
    """The directory of a volume's files."""
    place = tmp_path / "data" / volume_owners.FILES
    place.mkdir(parents=True)
    yield place
    subprocess.run(["rm", "-rf", str(tmp_path / "data")], check=True)  # deeper than Python removes


def order(files: Path, name: str = "data") -> volume_owners.Order:
    return {"volumes": [{"name": name, "path": str(files)}], "uid": 1000, "gid": 1000}


@needs_root
def test_nothing_is_given_through_a_link(files: Path, tmp_path: Path) -> None:
    (tmp_path / "others").mkdir()
    (tmp_path / "others" / "file").touch()
    (files / "link").symlink_to(tmp_path / "others")
    (files / "to-file").symlink_to(tmp_path / "others" / "file")
    volume_owners.give(order(files), None)
    assert [(tmp_path / path).stat().st_uid for path in ("others", "others/file")] == [0, 0]
    assert files.stat().st_uid == 1000


@needs_root
def test_nothing_is_given_that_is_mounted_in_a_volume(files: Path, tmp_path: Path) -> None:
    (tmp_path / "others").mkdir()
    (tmp_path / "others" / "file").touch()
    (files / "in").mkdir()
    with mounted(files / "in", "--bind", str(tmp_path / "others")):
        volume_owners.give(order(files), None)
    assert [(tmp_path / path).stat().st_uid for path in ("others", "others/file")] == [0, 0]


@needs_root
def test_a_volume_on_which_something_is_mounted_is_not_given(files: Path, tmp_path: Path) -> None:
    (tmp_path / "others").mkdir()
    with mounted(files, "--bind", str(tmp_path / "others")), pytest.raises(OSError, match="ross-device"):
        volume_owners.give(order(files), None)
    assert (tmp_path / "others").stat().st_uid == 0


@needs_root
@pytest.mark.parametrize(
    ("name", "path"), [("data", "/etc"), ("other", "data/_data"), ("data", "data/../data")]
)
def test_only_the_place_of_a_volume_of_that_name_is_given(
    files: Path, tmp_path: Path, name: str, path: str
) -> None:
    with pytest.raises(OSError, match="not where volumes are"):
        volume_owners.give(order(tmp_path / path, name), None)
    assert files.stat().st_uid == 0


@needs_root
def test_a_file_that_gains_rights_loses_them_when_it_is_given(files: Path) -> None:
    (files / "tool").touch()
    (files / "tool").chmod(0o4755)
    volume_owners.give(order(files), None)
    found = (files / "tool").stat()
    assert (found.st_uid, stat.S_IMODE(found.st_mode)) == (1000, 0o755)


@needs_root
def test_directories_may_be_nested_deeper_than_calls(files: Path) -> None:
    depth = 1500
    folder = os.open(files, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir("d", dir_fd=folder)
        inner = os.open("d", os.O_RDONLY, dir_fd=folder)
        os.close(folder)
        folder = inner
    volume_owners.give(order(files), None)
    assert os.fstat(folder).st_uid == 1000
    os.close(folder)
