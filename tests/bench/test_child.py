"""Children of the benches: what they print is kept, and none of them outlives its time."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path

from bench.gpu.child import Child, run


def python(text: str) -> list[str | Path]:
    return [sys.executable, "-c", text]


def lives(pid: int) -> bool:
    """Whether it is more than a process that nobody has collected yet."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


async def test_lines_of_json_are_kept_by_their_action_and_other_text_apart():
    done = await run(["printf", r'{"action": "a", "x": 1}\nplain\n{"action": "a", "x": 2}\n'], seconds=10)
    assert done.rc == 0
    assert done.values() == {"a": {"x": 1}, "a_2": {"x": 2}}
    assert done.stdout == "plain\n"


async def test_a_child_that_hangs_is_killed_when_its_time_is_over():
    done = await run(["sleep", "600"], seconds=0.1)
    assert done.timed_out
    assert done.rc is None
    assert done.values() == {"child_timed_out": True}


async def test_a_child_that_ignores_sigterm_is_killed_with_all_that_it_started(tmp_path: Path):
    pids = tmp_path / "pids"
    script = (
        f'trap "" TERM; sleep 600 & echo $$ $! > {pids}.part; mv {pids}.part {pids}; while :; do wait; done'
    )
    child = await Child.start(["sh", "-c", script])
    while not pids.exists():  # noqa: ASYNC110 - what another process does cannot be awaited
        await asyncio.sleep(0.005)
    done = await child.finish(0.05)
    assert done.timed_out
    async with asyncio.timeout(20):
        # Only its parent hears of a process's end, and that is gone.
        while any(lives(int(pid)) for pid in pids.read_text().split()):  # noqa: ASYNC110 - see above
            await asyncio.sleep(0.005)


async def test_what_a_killed_child_had_said_is_kept():
    text = 'import sys, time; print(\'{"action": "said"}\', flush=True); time.sleep(600)'
    child = await Child.start(python(text))
    assert await child.next("said", 20) == {"action": "said"}
    assert (await child.finish(0.05)).lines == ({"action": "said"},)


async def test_waiting_for_a_line_that_never_comes_ends_with_the_child():
    child = await Child.start(["true"])
    assert await child.next("never", 30) == {}
    assert (await child.finish(5)).rc == 0


async def test_waiting_for_a_line_ends_with_its_time():
    child = await Child.start(["sleep", "600"])
    assert await child.next("never", 0.05) == {}
    await child.kill()
    assert not child.running


async def test_a_child_waits_for_its_turn():
    text = "import json; print(json.dumps({'action': 'got', 'line': input()}))"
    child = await Child.start(python(text))
    await child.say("your turn\n")
    assert (await child.next("got", 20))["line"] == "your turn"
    assert (await child.finish(5)).rc == 0


async def test_the_end_of_a_childs_words_of_trouble_is_kept():
    done = await run(python("import sys; sys.exit('x' * 5000 + 'the cause')"), seconds=20)
    assert done.rc == 1
    assert done.values()["stderr"].endswith("the cause")
    assert len(done.values()["stderr"]) < 1000


async def test_a_child_has_the_given_environment_only():
    text = "import json, os; print(json.dumps({'action': 'env', **os.environ}))"
    done = await run(python(text), seconds=20, env={"ONLY": "this"})
    assert "HOME" not in done.values()["env"]
    assert done.values()["env"]["ONLY"] == "this"
    assert json.dumps(done.values())


async def test_a_child_is_in_a_session_of_its_own():
    done = await run(["sh", "-c", 'echo "{\\"action\\": \\"sid\\", \\"pid\\": $$}"'], seconds=10)
    assert done.values()["sid"]["pid"] != os.getsid(0)
