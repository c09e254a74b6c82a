"""The real parts as fixtures; `tests/conftest.py` makes them known to every test."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.bed import engine, parts
from tests.bed.engine import PrivateEngine, UnifiedEngine
from tests.bed.etcd import EtcdCluster
from tests.bed.machine import Machine

OLD_SECONDS = 300


@dataclass(frozen=True)
class CdiEngine:
    """The shared engine that knows CDI: its socket, and the directory it reads specs from."""

    socket: str
    spec_dir: Path


@pytest.fixture(scope="session")
def docker_engine() -> str:
    """The socket of the shared plain engine, which has the busybox image. Never stop it."""
    parts.need_engine("engine", parts.PLAIN_SOCKET)
    parts.need_image("image", parts.PLAIN_SOCKET, parts.BUSYBOX_IMAGE)
    return str(parts.PLAIN_SOCKET)


@pytest.fixture(scope="session")
def cdi_engine() -> CdiEngine:
    """The shared engine with CDI, which has the busybox image but no bridge. Never stop it."""
    parts.need_engine("cdi-engine", parts.CDI_SOCKET)
    parts.need_image("cdi-engine", parts.CDI_SOCKET, parts.BUSYBOX_IMAGE)
    _remove_old_specs()
    return CdiEngine(str(parts.CDI_SOCKET), parts.CDI_SPECS)


def _remove_old_specs() -> None:
    """Daemons that tests killed leave specs; the engine reads all of them again at each change of one.

    With hundreds it lags behind, and a start may meet what was there before. Young ones may be in use by
    another run.
    """
    for spec in parts.CDI_SPECS.glob("gpushare.io-lease-*.json"):
        with contextlib.suppress(FileNotFoundError):
            if time.time() - spec.stat().st_mtime > OLD_SECONDS:
                spec.unlink()


@pytest.fixture(scope="session")
def docker_cli() -> Path:
    """A current docker CLI."""
    return parts.need_file("cli", parts.DOCKER)


@pytest.fixture(scope="session")
def compose() -> Path:
    """Compose v2, to be called by itself; with `docker_environment`, `docker compose` finds it too."""
    return parts.need_file("cli", parts.COMPOSE)


@pytest.fixture(scope="session")
def docker_environment(docker_cli: Path, compose: Path) -> dict[str, str]:
    """An environment in which `docker` and `docker compose` are the bed's, and no engine is chosen yet."""
    inherited = {
        name: value for name, value in os.environ.items() if not name.startswith(("DOCKER_", "GPUSHARE"))
    }
    path = f"{docker_cli.parent}:{os.environ['PATH']}"
    return {**inherited, "PATH": path, "DOCKER_CONFIG": str(compose.parents[1])}


@pytest.fixture(scope="session")
def programs() -> Path:
    """Where programs lie that stand on Docker's API: Python's in ``venv``, Node's in ``node_modules``."""
    parts.need_file("programs", parts.PROGRAMS / "installed")
    return parts.PROGRAMS


@pytest.fixture(scope="session")
def prometheus() -> Path:
    """Where ``prometheus`` and ``promtool`` of Debian lie."""
    parts.need_file("prometheus", parts.PROMETHEUS / "promtool")
    return parts.PROMETHEUS


@pytest.fixture(scope="session")
def etcd_member(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdCluster]:
    """One member of etcd that all tests of a run share: give each store a prefix of its own. Never stop it."""
    parts.need_file("etcd", parts.ETCD / "etcdctl")
    cluster = EtcdCluster(tmp_path_factory.mktemp("etcd"))
    try:
        yield cluster.start()
    finally:
        cluster.dispose()


@pytest.fixture
def etcd_cluster(tmp_path: Path) -> Iterator[Callable[..., EtcdCluster]]:
    """Starts members of etcd that the test may kill: call it as ``EtcdCluster``, without the folder."""
    parts.need_file("etcd", parts.ETCD / "etcdctl")
    clusters: list[EtcdCluster] = []

    def start(count: int = 3, **options: Any) -> EtcdCluster:
        clusters.append(EtcdCluster(tmp_path, count, **options))
        return clusters[-1].start()

    yield start
    for cluster in clusters:
        cluster.dispose()


@pytest.fixture(scope="session")
def chromium() -> Path:
    """Debian's browser."""
    parts.need_file("browser", parts.BROWSER.parent / "installed")
    return parts.need_file("browser", parts.CHROMIUM)


@pytest.fixture(scope="session")
def axe() -> Path:
    """The script of axe-core, which a test runs within a page to find what some people could not use."""
    return parts.need_file("browser", parts.BROWSER / "axe-core/axe.min.js")


@pytest.fixture(scope="session")
def tsc() -> Path:
    """TypeScript's compiler."""
    return parts.need_file("browser", parts.BROWSER / ".bin/tsc")


@pytest.fixture(scope="session")
def mps_control_binary() -> Path:
    """NVIDIA's own MPS control daemon; without a GPU it answers, but can start no server."""
    return parts.need_file("mps", parts.MPS_CONTROL)


@pytest.fixture
def nvidia_library() -> Iterator[Path]:
    """NVIDIA's own NVML library, of 550, on a machine without a driver.

    As root it makes ``/dev/nvidiactl`` when it is initialised, which is removed afterwards.
    """
    library = parts.need_file("nvml", parts.NVML_LIBRARY)
    if parts.has_driver():
        pytest.skip("an NVIDIA driver is loaded here")
    before = set(Path("/dev").glob("nvidia*"))
    yield library
    for node in set(Path("/dev").glob("nvidia*")) - before:
        node.unlink(missing_ok=True)


@pytest.fixture(scope="session")
def busybox_image(docker_engine: str) -> str:
    """The name of the small image in the plain engine; the CDI engine has it under the same name."""
    return parts.BUSYBOX_IMAGE


@pytest.fixture(scope="session")
def systemd_image(docker_engine: str) -> str:
    """The name of an image that boots systemd, in the plain engine."""
    return parts.need_image("systemd", docker_engine, parts.SYSTEMD_IMAGE)


@pytest.fixture
def systemd_machine(docker_engine: str, systemd_image: str) -> Iterator[Callable[..., Machine]]:
    """Boots machines: call it with further flags for `docker run`; they are gone after the test."""
    machines: list[Machine] = []

    def boot(*docker_flags: str) -> Machine:
        machine = Machine(docker_engine, *docker_flags)
        machines.append(machine)
        machine.wait_until_booted()
        return machine

    yield boot
    for machine in machines:
        machine.remove()


@pytest.fixture(scope="session")
def _swept() -> None:
    engine.sweep()


@pytest.fixture
def private_engine(docker_cli: Path, _swept: None) -> Iterator[Callable[..., PrivateEngine]]:
    """Starts engines that the test may stop and kill: call it with further flags for `dockerd`."""
    parts.need_file("image", parts.BUSYBOX_TAR)
    engines: list[PrivateEngine] = []

    def start(*flags: str) -> PrivateEngine:
        own = PrivateEngine(*flags)
        engines.append(own)
        own.start()
        own.load_busybox()
        return own

    yield start
    for own in engines:
        own.dispose()


@pytest.fixture(scope="session")
def unified_engine(docker_cli: Path, _swept: None) -> Iterator[UnifiedEngine]:
    """An engine with CDI and cgroup v2, which has the busybox image but no bridge. Never stop it."""
    parts.need_file("cdi-engine", parts.CDI_ROOT)
    parts.need_file("image", parts.BUSYBOX_TAR)
    own = UnifiedEngine()
    try:
        own.start()
        own.load_busybox()
        yield own
    finally:
        own.dispose()
