"""What a coordinator tells of jobs and nodes, each once, and again nothing after a restart."""

from __future__ import annotations

from dataclasses import replace

from gpushared.domain.jobs import coordinator_events as m
from gpushared.domain.jobs.job import AttemptState, NodeName
from gpushared.domain.jobs.job_notifications import _of_node, of_job, of_nodes
from gpushared.domain.model.notification import Notification, NotificationKind
from tests.domain.jobs.pool_world import ADA, HALF, J, Pool, exited

MAILED = replace(HALF, notify=("mail",))
SILENT_SECONDS = 60.0


class SentNotifications:
    """Remembers what was told of a pool."""

    def __init__(self, pool: Pool) -> None:
        self.pool = pool
        self.told: dict[str, set[tuple[NotificationKind, str]]] = {}

    def news(self) -> list[Notification]:
        state = self.pool.state
        found = list(of_nodes(state, self.pool.now, self.told))
        for job in (*state.jobs.values(), *state.ended.values()):
            found += of_job(job, self.told.get(f"job {job.id}", ()))
        for event in found:
            self.told.setdefault(event.subject, set()).add((event.kind, event.occasion))
        return found

    def kinds(self) -> list[str]:
        return [event.kind.value for event in self.news()]


def test_a_job_is_told_of_when_it_begins_and_when_it_ends() -> None:
    pool = Pool("a")
    notifications = SentNotifications(pool)
    pool.submit(request=MAILED)
    assert notifications.kinds() == []
    pool.says("a", AttemptState.RUNNING)
    (begun,) = notifications.news()
    assert (begun.kind, begun.node, begun.owner, begun.targets) == ("granted", "a", "ada", ("mail",))
    assert begun.text == f"job {J} of ada runs on a"
    assert notifications.kinds() == []
    pool.says("a", AttemptState.ENDED, ending=exited(0))
    (ended,) = notifications.news()
    assert (ended.kind, ended.outcome, ended.exit_code) == ("ended", "succeeded", 0)
    assert notifications.kinds() == []


def test_a_job_that_is_over_before_it_was_seen_to_run_is_told_of_twice_too() -> None:
    pool = Pool("a")
    notifications = SentNotifications(pool)
    pool.submit(request=MAILED)
    pool.says("a", AttemptState.ENDED, ending=exited(3))
    begun, ended = notifications.news()
    assert (begun.kind, begun.occasion, begun.outcome, begun.exit_code) == ("granted", "1", "", None)
    assert (ended.kind, ended.outcome, ended.exit_code) == ("ended", "failed", 3)
    assert notifications.kinds() == []


def test_each_attempt_of_a_job_is_told() -> None:
    pool = Pool("a")
    notifications = SentNotifications(pool)
    pool.submit(request=MAILED, retries=1)
    pool.says("a", AttemptState.RUNNING)
    pool.says("a", AttemptState.ENDED, ending=exited(3))
    pool.wait(3600.0)
    pool.heartbeat("a")
    pool.wait(1.0)
    pool.says("a", AttemptState.RUNNING)
    assert [event.occasion for event in notifications.news() if event.kind == "granted"] == ["2"]
    pool.says("a", AttemptState.ENDED, ending=exited(3))
    (ended,) = [event for event in notifications.news() if event.kind == "ended"]
    assert (ended.outcome, ended.exit_code, ended.text) == (
        "failed",
        3,
        f"job {J} of ada failed with exit code 3",
    )


def test_a_cancelled_job_is_told() -> None:
    pool = Pool("a")
    notifications = SentNotifications(pool)
    pool.submit(request=replace(MAILED, gpu_count=8))
    pool.do(m.CancelAsked(J, ADA, 0))
    (ended,) = notifications.news()
    assert (ended.outcome, ended.exit_code, ended.lease) == ("cancelled", None, "")


def test_a_silent_node_is_told_once_and_its_return_too() -> None:
    pool = Pool("a", "b")
    notifications = SentNotifications(pool)
    pool.heartbeat("a")
    assert notifications.kinds() == []
    pool.wait(SILENT_SECONDS)
    pool.heartbeat("b")
    (silent,) = notifications.news()
    assert (silent.kind, silent.node) == ("node-silent", "a")
    pool.wait(SILENT_SECONDS)
    pool.heartbeat("b")
    assert notifications.kinds() == []
    pool.begin_anew()
    pool.wait(SILENT_SECONDS)
    pool.register("b")
    assert notifications.kinds() == [], "it was silent before the restart already"
    pool.register("a")
    (back,) = notifications.news()
    assert (back.kind, back.node, back.occasion) == ("node-back", "a", silent.occasion)
    assert notifications.kinds() == []


def test_a_node_that_never_comes_after_a_restart_is_told() -> None:
    pool = Pool("a")
    notifications = SentNotifications(pool)
    pool.begin_anew()
    assert notifications.kinds() == []
    pool.wait(SILENT_SECONDS)
    assert notifications.kinds() == ["node-silent"]


def test_a_node_that_an_administrator_forgot_is_not_missed() -> None:
    pool = Pool("a", "b")
    notifications = SentNotifications(pool)
    pool.wait(SILENT_SECONDS)
    pool.heartbeat("b")
    member = replace(pool.state.members[NodeName("a")], forgotten_at=pool.now)
    assert list(_of_node(member, pool.state, pool.now, ())) == []
    assert notifications.kinds() == ["node-silent"]
