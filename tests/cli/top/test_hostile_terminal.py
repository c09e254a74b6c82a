"""Names that attack the terminal, shown by the real program in a real one: they change nothing in it."""

from __future__ import annotations

import json
from pathlib import Path

from tests.cli.process import GPUSHARE, Gpushare
from tests.cli.standin import StandIn, ok
from tests.cli.top import machines
from tests.cli.top.tmux import tmux


def test_no_name_changes_the_terminal(gpushare: Gpushare, standin: StandIn, tmp_path: Path) -> None:
    answers = machines.hostile()
    assert answers.recent is not None
    explained = {"lease": machines.lease(1, owner=machines.HOSTILE), "story": [{"text": machines.HOSTILE}]}
    for call, answer in (
        ("Gpus/List", answers.gpus.to_json()),
        ("Leases/List", answers.leases.to_json()),
        ("History/Recent", answers.recent.to_json()),
        ("Leases/Explain", explained),
    ):
        standin.answers[call] = ok(json.loads(json.dumps(answer)))
    with tmux(tmp_path) as window:
        environ = {"TERM": "screen", "LANG": "C.UTF-8"}
        kept = {name: gpushare.environ.get(name, "") for name in ("PATH", "GPUSHARE_HOST", "PYTHONPATH")}
        window.start([*GPUSHARE, "top"], {**kept, **environ}, 160, 40)
        window.wait_for("LEASES 2", "owned")
        before = window.told("pane_title")
        for keys, words in (
            ("/", "show only"),
            ("Escape", "LEASES 2"),
            ("g", "THE LAST HOUR"),
            ("q", "LEASES 2"),
            ("Enter", "gpushare why"),
        ):
            window.press(keys)
            shown = window.wait_for(words, "owned")
            assert "\\x1b" in shown, "the sequence is written out"
            assert window.told("pane_title") == before
        assert "evil" in shown
