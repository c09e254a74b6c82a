"""The doctor under a real systemd, with the unit's hardening in force."""

from __future__ import annotations

import json
from typing import Any

from tests.systemd.node import COMMANDS, DROP_IN, Node


def checks(node: Node) -> dict[str, dict[str, Any]]:
    told = node.machine.run(f"{COMMANDS}/gpushare", "doctor", "--json", "--all").stdout
    return {item["name"]: item for item in json.loads(told)["items"]}


def test_a_fresh_installation_is_well(running: Node) -> None:
    """The unit's walls close nothing that the doctor has to see, and what it sees is as the unit says."""
    found = checks(running)
    assert [name for name, item in found.items() if item["status"] == "failed"] == []
    assert found["service-unit"]["detail"].startswith("gpushared.service leaves containers alone")
    assert found["journal-disk"]["detail"].startswith("/var/lib/gpushared, ")
    assert "could not be looked at" not in json.dumps(found)


def test_a_drop_in_that_would_kill_mps_at_a_restart_is_found(running: Node) -> None:
    running.write(DROP_IN, "[Service]\nKillMode=control-group\n")
    running.check("systemctl", "daemon-reload")
    found = checks(running)["service-unit"]
    assert found["status"] == "failed"
    assert "KillMode=process" in found["fix"]
