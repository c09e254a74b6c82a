"""The audit in a real journald."""

from __future__ import annotations

import json

from tests.systemd.node import Node


def test_journald_has_each_line_with_its_fields(running: Node) -> None:
    drained = running.gpushare("drain", "0", "--reason", "new fan")
    assert drained.returncode == 0, drained.stderr
    written = running.check("journalctl", "--output=json", "GPUSHARE_UID=0", "GPUSHARE_ENDPOINT=Gpus/Drain")
    (line,) = map(json.loads, written.splitlines())
    assert (line["GPUSHARE_METHOD"], line["GPUSHARE_NAME"], line["GPUSHARE_STATUS"]) == ("CALL", "0", "200")
    assert line["_SYSTEMD_UNIT"] == "gpushared.service"
    assert line["MESSAGE"].startswith("audit root (uid 0, pid ")
    assert line["GPUSHARE_EXE"]
    assert running.gpushare("undrain", "0").returncode == 0
