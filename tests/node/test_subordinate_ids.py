"""A whole daemon, and a process whose id is another user's in a user namespace."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.node.conftest import NewDaemon
from tests.node.daemon import DaemonProcess, Refused, wait_until
from tests.node.grpc_client import ask

pytestmark = pytest.mark.skipif(os.getuid() != 0, reason="only root can become somebody else")
FIRST = 3_000_000_000
ADA = 61041
TOLD = f"uid {FIRST + 5} is a subordinate id of uid {ADA}"


@pytest.fixture
def daemon(new_daemon: NewDaemon, tmp_path: Path) -> DaemonProcess:
    ranges = tmp_path / "subuid"
    ranges.write_text(f"{ADA}:{FIRST}:65536\n")
    made = new_daemon(config=f'[gate]\nsubordinate_ids = "{ranges}"\n')
    made.start()
    return made


def test_such_an_id_is_told_whose_it_is_by_json_and_by_grpc(daemon: DaemonProcess) -> None:
    with pytest.raises(Refused) as refused:
        daemon.request("1", uid=FIRST + 5)
    assert (refused.value.code, refused.value.message) == ("permission_denied", TOLD)
    [answer] = ask(daemon.socket, [("Leases/Request", {"gpu": "1"})], uid=FIRST + 5)
    assert (answer["code"], answer["message"]) == ("permission_denied", TOLD)
    assert answer["hint"] == f"connect as uid {ADA}, outside of user namespaces"
    assert daemon.leases() == {}


def test_its_owner_and_the_ids_around_are_users_as_ever(daemon: DaemonProcess) -> None:
    for uid in (ADA, FIRST - 1, FIRST + 65_536):
        assert daemon.request("0.1", uid=uid)["owner_uid"] == str(uid)


def test_without_a_file_every_id_is_a_user(new_daemon: NewDaemon) -> None:
    """As a site may want that lets containers without root connect by their own ids."""
    daemon = new_daemon(config='[gate]\nsubordinate_ids = ""\n')
    daemon.start()
    assert daemon.request("0.1", uid=FIRST + 5)["owner_uid"] == str(FIRST + 5)


def test_another_file_holds_after_a_reload(daemon: DaemonProcess, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_text(f"{ADA}:{FIRST + 100_000}:65536\n")
    (daemon.directory / "config.toml").write_text(f'[gate]\nsubordinate_ids = "{other}"\n')
    daemon.signal(signal.SIGHUP)
    wait_until(lambda: not refuses(daemon, FIRST + 5), "the old range is no more")
    assert refuses(daemon, FIRST + 100_000)


def refuses(daemon: DaemonProcess, uid: int) -> bool:
    try:
        daemon.call("Node/Status", uid=uid)
    except Refused:
        return True
    return False
