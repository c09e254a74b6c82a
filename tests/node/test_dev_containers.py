"""Dev containers that can do with or without a GPU, as the tool of their specification starts them."""

from __future__ import annotations

import json
import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.bed import parts
from tests.bed.fixtures import CdiEngine
from tests.node.conftest import NewDaemon
from tests.node.daemon import DaemonProcess, Json

pytestmark = pytest.mark.docker
CONFINED = pwd.getpwnam("daemon").pw_uid
"""The tool asks the machine for its user's name, so that a number alone does not do."""
UP_SECONDS = 120


@pytest.fixture
def folder() -> Iterator[Path]:
    """A home for whoever runs the tool; the CDI engine sees nothing of the machine but /tmp."""
    path = Path(tempfile.mkdtemp(prefix="gpushared-dev-", dir="/tmp"))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture(params=["plain", "cdi"])
def engine(request: pytest.FixtureRequest) -> str:
    if request.param == "plain":
        socket: str = request.getfixturevalue("docker_engine")
        return socket
    cdi: CdiEngine = request.getfixturevalue("cdi_engine")
    return cdi.socket


def started(new_daemon: NewDaemon, engine: str, folder: Path, config: str) -> DaemonProcess:
    gate = f'[gate]\nmount_prefixes = ["{folder}"]\n'
    daemon = new_daemon(engine=engine, config=gate + config)
    daemon.start()
    return daemon


def up(daemon: DaemonProcess, folder: Path, uid: int, **needs: object) -> Json:
    """``devcontainer up`` of a workspace; what the tool says of it."""
    tool = parts.need_file("devcontainers", parts.DEVCONTAINER).resolve()
    workspace = folder / "workspace"
    (workspace / ".devcontainer").mkdir(parents=True)
    (workspace / ".devcontainer" / "devcontainer.json").write_text(
        json.dumps(
            {
                "image": parts.BUSYBOX_IMAGE,
                "runArgs": daemon.container_options()[:-1],
                **needs,
            }
        )
    )
    for path in (folder, *folder.rglob("*")):
        os.chown(path, uid, uid)
    docker = str(parts.DOCKER.resolve())
    done = subprocess.run(
        [str(tool), "up", "--workspace-folder", str(workspace), "--docker-path", docker],
        capture_output=True,
        text=True,
        timeout=UP_SECONDS,
        check=False,
        env={
            "PATH": os.environ["PATH"],
            "HOME": str(folder),
            "DOCKER_HOST": f"unix://{daemon.socket}",
            "DOCKER_CONFIG": "/nonexistent",
        },
        user=uid,
        group=uid,
        extra_groups=[],
    )
    assert done.returncode == 0, done.stderr + done.stdout
    output: Json = json.loads(done.stdout.splitlines()[-1])
    assert output["outcome"] == "success", done.stderr
    return output


OPTIONAL = {"hostRequirements": {"gpu": "optional"}}


@pytest.mark.parametrize("uid", [0, CONFINED], ids=["trusted", "confined"])
def test_a_dev_container_that_may_have_a_gpu_gets_the_preset_for_it(
    new_daemon: NewDaemon, engine: str, folder: Path, uid: int
) -> None:
    daemon = started(new_daemon, engine, folder, '[presets.dev]\ngpu = "0.5"\n')
    said = up(daemon, folder, uid, **OPTIONAL)
    (lease,) = daemon.leases().values()
    assert (lease["asks"], lease["preset"], lease["state"]) == ("0.5", "dev", "active")
    assert lease["container_id"] == said["containerId"]
    assert "GPUSHARE_LEASE=" in daemon.check("exec", said["containerId"], "env", uid=uid)


@pytest.mark.parametrize(
    ("config", "asks"),
    [("", "0.25"), ('dev_containers = "all"\n', "2"), ('dev_containers = "2x0.1"\n', "2x0.1")],
)
def test_the_site_says_how_much_that_is(
    new_daemon: NewDaemon, docker_engine: str, folder: Path, config: str, asks: str
) -> None:
    daemon = started(new_daemon, docker_engine, folder, config)
    up(daemon, folder, CONFINED, **OPTIONAL)
    (lease,) = daemon.leases().values()
    assert lease["asks"] == asks


def test_a_dev_container_that_asks_for_no_gpu_has_none(
    new_daemon: NewDaemon, docker_engine: str, folder: Path
) -> None:
    daemon = started(new_daemon, docker_engine, folder, "")
    up(daemon, folder, 0)
    assert daemon.leases() == {}
