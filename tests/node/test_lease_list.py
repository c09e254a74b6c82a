"""Lists of leases, and their ends as the command line waits for them: the real daemon, engine and command."""

from __future__ import annotations

import json

import pytest

from tests.node.daemon import DaemonProcess, Refused, name

OVER = 10


def over(daemon: DaemonProcess, count: int = OVER) -> list[str]:
    """The ids of leases that are over, newest first; the first of them was an administrator's."""
    ids = []
    for number in range(count):
        uid = 1234 if number else 0
        ids.append(daemon.request("0.25", uid=uid)["id"])
        daemon.call("Leases/Stop", {"lease_id": ids[-1]}, uid=uid)
    return ids[::-1]


def test_ps_says_how_many_leases_it_does_not_show_and_shows_them_when_asked(
    lone_daemon: DaemonProcess,
) -> None:
    many_over = over(lone_daemon, 60)
    held = lone_daemon.request("0.25")["id"]
    shown = lone_daemon.gpushare_says("ps", "--all").splitlines()
    assert [line.split()[0] for line in shown[2:-1]] == [held, *many_over[:50]]
    assert shown[-1] == (
        "10 leases that are over are not shown: --limit 60 shows all, --since 1d those of a day"
    )
    assert lone_daemon.gpushare_says("ps", "--limit", "60", "-q").split() == [held, *many_over]
    assert "not shown" not in lone_daemon.gpushare_says("ps", "--limit", "60")
    assert "not shown" not in lone_daemon.gpushare_says("ps")
    by_program = json.loads(lone_daemon.gpushare_says("ps", "--limit", "3", "-o", "json"))
    assert (len(by_program["items"]), by_program["not_shown"]) == (4, 57)


def test_ps_finds_leases_by_user_state_and_time(lone_daemon: DaemonProcess) -> None:
    """A state in which only leases are that are over needs no ``--all``."""

    def found(*words: str) -> list[str]:
        return lone_daemon.gpushare_says("ps", "-q", *words).split()

    many_over = over(lone_daemon)
    held = lone_daemon.request("0.25")["id"]
    assert found("--all", "--user", "root") == [held, many_over[-1]]
    assert found("--user", "root") == [held]
    assert found("--state", "reserved") == found() == [held]
    assert found("--state", "stopped", "--limit", "2") == many_over[:2]
    assert found("--state", "failed,reserved") == [held]
    assert found("--since", "1h", "--user", "root") == [held, many_over[-1]]
    assert found("--since", "2099-01-01") == [held]
    refused = lone_daemon.gpushare("ps", "--state", "halted")
    assert refused.stderr.splitlines()[0] == "gpushare: 'halted' is no state of a lease"
    assert lone_daemon.gpushare("ps", "--limit", "0").returncode == 2


def test_pages_of_leases_lead_to_all_of_them_once(lone_daemon: DaemonProcess) -> None:
    many_over = over(lone_daemon)
    found, token = [], ""
    while True:
        page = lone_daemon.call("Leases/List", {"ended": True, "limit": 3, "page_token": token})
        found += [lease["id"] for lease in page["leases"]]
        assert int(page["more"]) == OVER - len(found)
        token = page["next_page_token"]
        if not token:
            break
    assert found == many_over
    with pytest.raises(Refused, match="page token"):
        lone_daemon.call("Leases/List", {"ended": True, "page_token": "nan:1"})


@pytest.mark.parametrize("words", [("stop",), ("stop", "--wait")])
def test_a_container_can_be_removed_as_soon_as_its_lease_was_stopped(
    daemon: DaemonProcess, words: tuple[str, ...]
) -> None:
    """Its program takes a second to end, as one does that saves its work."""
    trainer = name()
    save = "trap 'sleep 1; exit 0' TERM; echo ready; while :; do sleep 0.1; done"
    lease = daemon.hold("0.5", "--name", trainer, command=("sh", "-c", save))
    assert daemon.gpushare_says(*words, trainer) == lease["id"]
    assert daemon.check("rm", trainer) == trainer
    if "--wait" in words:
        assert daemon.lease(lease["id"])["state"] == "ended"


def test_stopping_one_lease_of_several_that_fails_stops_the_others(daemon: DaemonProcess) -> None:
    first, second = daemon.hold("0.5"), daemon.request("0.25")
    done = daemon.gpushare("stop", "--wait", first["id"], "l-none", second["id"])
    assert done.stdout.split() == [first["id"], second["id"]]
    assert "there is no lease 'l-none'" in done.stderr
    assert done.returncode == 125
    assert daemon.leases() == {}
