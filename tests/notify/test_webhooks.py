"""Webhooks: delivered once over outages and restarts, signed, refused or given up, and never in each other's way."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import hmac
import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest

from gpushared.config.notify import NotifyConfig, ProjectNotifyConfig
from gpushared.domain.model.notification import NotificationKind
from gpushared.notify import webhook
from gpushared.notify.attempt import Delivered, GivenUp, TryAgain
from gpushared.notify.webhook import attempt_of_status, post
from tests.notify.receivers import NOW, OutboxWorld, ReceivedRequest, Receiver, event


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "notifications.db"


def waiting(path: Path) -> int:
    with sqlite3.connect(path) as db:
        (count,) = db.execute("SELECT count(*) FROM delivery").fetchone()
    db.close()
    return int(count)


def ids(got: list[ReceivedRequest]) -> list[str]:
    return [one.headers["webhook-id"] for one in got]


async def test_a_receiver_gets_the_json_of_an_event_without_the_names_of_its_container(path: Path) -> None:
    async with Receiver().serving() as receiver:
        world = OutboxWorld(path, NotifyConfig(webhooks=(receiver.url("/hook?x=1"),)))
        async with world.running() as outbox:
            outbox.add([event()])
            (got,) = await receiver.has(1)
    assert got.path == "/hook?x=1"
    assert got.headers["content-type"] == "application/json"
    assert got.headers["host"] == f"127.0.0.1:{receiver.port}"
    fields = got.fields
    assert len(fields.pop("id")) == 32
    assert fields == {
        "version": 1,
        "kind": "ended",
        "at": NOW + 5,
        "text": "l-1 of ada ended: exit code 0",
        "lines": [],
        "from": "gpu1",
        "simulated": True,
        "node": None,
        "lease": "l-1",
        "job": None,
        "owner": "ada",
        "project": "vision",
        "class": "train",
        "gpus": [{"gpu": "0", "memory_bytes": 1 << 30, "compute_permille": 250}],
        "ends_at": None,
        "outcome": "finished",
        "exit_code": 0,
        "container": None,
        "image": None,
    }


async def test_the_owners_own_webhook_has_the_names_and_no_signature(path: Path, tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text("secret")
    key.chmod(0o600)
    async with Receiver().serving() as receiver:
        world = OutboxWorld(path, NotifyConfig(secret_file=str(key), allow=(receiver.url("/"),)))
        async with world.running() as outbox:
            outbox.add([event(targets=(receiver.url("/ada"),))])
            (got,) = await receiver.has(1)
    assert (got.fields["container"], got.fields["image"]) == ("my-box", "secret/image")
    assert "webhook-signature" not in got.headers


@pytest.mark.parametrize("encoded", [False, True])
async def test_a_receiver_can_check_the_signature(path: Path, tmp_path: Path, encoded: bool) -> None:
    secret, key = b"a key of some length", tmp_path / "key"
    key.write_bytes(b"whsec_" + base64.b64encode(secret) if encoded else secret + b"\n")
    key.chmod(0o600)
    async with Receiver().serving() as receiver:
        world = OutboxWorld(path, NotifyConfig(webhooks=(receiver.url(),), secret_file=str(key)))
        async with world.running() as outbox:
            outbox.add([event()])
            (got,) = await receiver.has(1)
    identity, at = got.headers["webhook-id"], got.headers["webhook-timestamp"]
    signed = hmac.new(secret, f"{identity}.{at}.".encode() + got.body, hashlib.sha256).digest()
    assert got.headers["webhook-signature"] == f"v1,{base64.b64encode(signed).decode()}"
    assert at == str(int(NOW + 5))
    assert identity == got.fields["id"]


async def test_a_key_that_others_may_read_is_a_trouble(path: Path, tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text("secret")
    key.chmod(0o644)
    async with Receiver().serving() as receiver:
        world = OutboxWorld(path, NotifyConfig(webhooks=(receiver.url(),), secret_file=str(key)))
        async with world.running() as outbox:
            outbox.add([event()])
            await world.until(lambda: "may be read by others" in world.trouble)
            key.chmod(0o600)
            await receiver.has(1)
            await world.until(lambda: world.trouble == "")


async def test_a_receiver_that_is_down_for_a_while_gets_everything_once_and_in_order(path: Path) -> None:
    receiver = Receiver()
    async with receiver.serving():
        pass  # only to learn a port that is free
    world = OutboxWorld(path, NotifyConfig(webhooks=(receiver.url(),)))
    async with world.running() as outbox:
        outbox.add(event(number) for number in range(5))
        await world.until(lambda: "cannot be reached" in world.trouble)
        assert "/hook" not in world.trouble, "the path of a URL may be a secret"
        async with receiver.serving():
            got = await receiver.has(5)
            await world.until(lambda: waiting(path) == 0)
    assert sorted(one.fields["lease"] for one in got) == [f"l-{number}" for number in range(5)]
    assert len(set(ids(got))) == 5
    assert world.trouble == ""


async def test_what_waits_survives_a_restart_and_an_event_is_not_written_twice(path: Path) -> None:
    receiver = Receiver()
    async with receiver.serving():
        pass
    world = OutboxWorld(path, NotifyConfig(webhooks=(receiver.url(),)))
    async with world.running() as outbox:
        outbox.add([event(1), event(2)])
        await world.until(lambda: "cannot be reached" in world.trouble)
    async with receiver.serving(), world.running() as outbox:
        outbox.add([event(2), event(3)])
        got = await receiver.has(3)
        await world.until(lambda: waiting(path) == 0)
    assert sorted(one.fields["lease"] for one in got) == ["l-1", "l-2", "l-3"]


async def test_events_that_come_one_by_one_are_told_once_each(path: Path) -> None:
    async with Receiver().serving() as receiver:
        world = OutboxWorld(path, NotifyConfig(webhooks=(receiver.url(),)))
        async with world.running() as outbox:
            for number in range(100):
                outbox.add([event(number)])
                await asyncio.sleep(0.001 * (number % 7))
            await receiver.has(100)
            await world.until(lambda: waiting(path) == 0)
    assert len(receiver.got) == len(set(ids(receiver.got))) == 100


async def test_a_receiver_that_hangs_delays_nobody(path: Path) -> None:
    mute = Receiver(answer=lambda _: None)
    async with mute.serving(), Receiver().serving() as receiver:
        site = NotifyConfig(webhooks=(mute.url(), receiver.url()), allow=(mute.url("/"), receiver.url("/")))
        world = OutboxWorld(path, site)
        async with world.running() as outbox:
            hanging = [event(number, owner="eve", targets=(mute.url(f"/{number}"),)) for number in range(40)]
            outbox.add(hanging)
            outbox.add([event(99, targets=(receiver.url("/ada"),))])
            got = await receiver.has(42)
    assert {one.path for one in got} == {"/hook", "/ada"}


async def test_a_receiver_that_fails_for_one_event_still_gets_the_others(path: Path) -> None:
    def fails_once(got: ReceivedRequest) -> int:
        return 500 if got.fields["lease"] == "l-0" and fails else 200

    fails = True
    async with Receiver(answer=fails_once).serving() as receiver:
        world = OutboxWorld(path, NotifyConfig(webhooks=(receiver.url(),)))
        async with world.running() as outbox:
            outbox.add(event(number) for number in range(3))
            await world.until(lambda: waiting(path) == 1)
            fails = False
            await world.until(lambda: waiting(path) == 0)
    received = [one.fields["lease"] for one in receiver.got]
    assert received.count("l-1") == received.count("l-2") == 1
    assert len(set(ids(receiver.got))) == 3, "the same event keeps its id"


@pytest.mark.parametrize("status", [301, 400, 403, 404, 410])
async def test_a_refusal_is_final_and_said(path: Path, status: int) -> None:
    async with Receiver(answer=lambda _: status).serving() as receiver:
        world = OutboxWorld(path, NotifyConfig(webhooks=(receiver.url(),)))
        async with world.running() as outbox:
            outbox.add([event()])
            await world.until(lambda: f"{status}" in world.trouble and waiting(path) == 0)
    assert len(receiver.got) == 1
    assert "the notification is dropped" in world.trouble


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (200, Delivered),
        (204, Delivered),
        (302, GivenUp),
        (401, GivenUp),
        (408, TryAgain),
        (429, TryAgain),
        (500, TryAgain),
        (503, TryAgain),
    ],
)
def test_an_answer_means(status: int, kind: type) -> None:
    assert isinstance(attempt_of_status(status), kind)


async def test_an_answer_that_is_not_http_is_tried_again(path: Path) -> None:
    async with Receiver(answer=lambda _: 99999).serving() as receiver:
        assert isinstance(await post(receiver.url(), "{}", "x", 0, ""), TryAgain)


async def test_a_name_without_an_address_is_tried_again() -> None:
    assert isinstance(await post("http://nowhere.invalid/", "{}", "x", 0, ""), TryAgain)


async def test_a_receiver_without_a_valid_certificate_gets_nothing() -> None:
    async with Receiver().serving() as receiver:
        url = receiver.url().replace("http:", "https:")
        assert isinstance(await post(url, "{}", "x", 0, ""), TryAgain)
    assert receiver.got == []


async def test_what_the_configuration_promises_and_the_machine_lacks_is_said_before_any_event(
    path: Path, tmp_path: Path
) -> None:
    key = str(tmp_path / "key")
    world = OutboxWorld(path, NotifyConfig(webhooks=("https://a.example/",), secret_file=key))
    world.projects = {"vision": ProjectNotifyConfig(mail=("ada",))}
    world.site = replace(world.site, sendmail="/nonexistent")
    async with world.running() as outbox:
        await world.until(
            lambda: "cannot be signed" in world.trouble and "no program sendmail" in world.trouble
        )
        world.site, world.projects = NotifyConfig(), {}
        outbox.reload()
        await world.until(lambda: world.trouble == "")


# --- who is told -------------------------------------------------------------------------------------------


async def test_a_project_is_told_of_its_own_leases_only(path: Path) -> None:
    async with Receiver().serving() as receiver:
        world = OutboxWorld(
            path, projects={"vision": ProjectNotifyConfig(webhooks=(receiver.url(),)), "other": None}
        )
        async with world.running() as outbox:
            outbox.add([event(1, project="speech"), event(2), event(3, project="other")])
            (got,) = await receiver.has(1)
    assert (got.fields["lease"], got.fields["image"]) == ("l-2", None)


async def test_a_target_is_told_of_the_events_that_it_was_configured_for(path: Path) -> None:
    async with Receiver().serving() as receiver:
        world = OutboxWorld(path, NotifyConfig(webhooks=(receiver.url(),), events=("idle",)))
        async with world.running() as outbox:
            outbox.add([event(1), event(2, NotificationKind.IDLE)])
            (got,) = await receiver.has(1)
    assert got.fields["kind"] == "idle"


async def test_a_run_is_not_told_to_a_target_that_the_site_does_not_allow_any_more(path: Path) -> None:
    async with Receiver().serving() as receiver:
        world = OutboxWorld(path, NotifyConfig(allow=("mail",)))
        async with world.running() as outbox:
            outbox.add([event(targets=(receiver.url(),))])
            await world.until(lambda: waiting(path) == 0)
    assert receiver.got == []


async def test_a_new_target_is_not_told_what_happened_before_it_was_configured(path: Path) -> None:
    async with Receiver().serving() as old, Receiver().serving() as new:
        world = OutboxWorld(path, NotifyConfig(webhooks=(old.url(),)))
        async with world.running():
            pass
        world.clock.advance(100)
        world.site = NotifyConfig(webhooks=(old.url(), new.url()))
        async with world.running() as outbox:
            outbox.add([event(1)], late=True)
            outbox.add([event(2)])
            await new.has(1)
            await old.has(2)
    assert [one.fields["lease"] for one in new.got] == ["l-2"]


async def test_what_waits_for_a_target_that_is_taken_out_is_forgotten(path: Path) -> None:
    receiver = Receiver()
    async with receiver.serving():
        pass
    world = OutboxWorld(path, NotifyConfig(webhooks=(receiver.url(),)))
    async with world.running() as outbox:
        outbox.add([event(1)])
        await world.until(lambda: waiting(path) == 1)
        world.site = NotifyConfig()
        outbox.reload()
        await world.until(lambda: waiting(path) == 0)


# --- bounds ------------------------------------------------------------------------------------------------


async def test_what_cannot_be_delivered_in_time_is_dropped_and_counted(path: Path) -> None:
    receiver = Receiver()
    async with receiver.serving():
        pass
    world = OutboxWorld(path, NotifyConfig(webhooks=(receiver.url(),), keep_seconds=60))
    async with world.running() as outbox:
        outbox.add([event(1), event(2)])
        await world.until(lambda: "cannot be reached" in world.trouble)
    world.clock.advance(61)
    async with world.running():
        await world.until(lambda: "2 notifications were dropped" in world.trouble)
    assert waiting(path) == 0


async def test_of_too_many_the_oldest_of_the_user_with_the_most_are_dropped(path: Path) -> None:
    receiver = Receiver()
    async with receiver.serving():
        pass
    world = OutboxWorld(path, NotifyConfig(webhooks=(receiver.url(),), max_waiting=10))
    async with world.running() as outbox:
        outbox.add(event(number, owner="bob") for number in range(3))
        outbox.add(event(number, owner="eve") for number in range(10, 40))
        await world.until(lambda: "23 notifications were dropped" in world.trouble)
    assert waiting(path) == 10
    async with receiver.serving(), world.running():
        got = await receiver.has(10)
    assert {f"l-{number}" for number in range(3)} <= {one.fields["lease"] for one in got}


# --- the file ----------------------------------------------------------------------------------------------


async def test_a_damaged_file_is_said_in_a_sentence_and_a_new_one_is_begun(path: Path) -> None:
    path.write_bytes(b"no database" * 1000)
    async with Receiver().serving() as receiver:
        world = OutboxWorld(path, NotifyConfig(webhooks=(receiver.url(),)))
        outbox = world.outbox()
        outbox.add([event()])

        async def begins() -> None:
            await outbox.open()

        opening = asyncio.create_task(begins())
        await world.until(lambda: "file of notifications" in world.trouble)
        assert "move it away" in world.trouble
        path.rename(path.with_suffix(".old"))
        async with asyncio.timeout(20):
            await opening
        running = asyncio.create_task(outbox.run())
        await receiver.has(1)
        await world.until(lambda: world.trouble == "")
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await outbox.close()


async def test_a_full_disk_loses_nothing_that_fits_in_memory_and_sends_nothing_twice(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from gpushared.domain.model.errors import OutboxUnavailable
    from gpushared.storage.notification_file import NotificationFile

    full = True
    for name in ("add", "remove"):
        written = getattr(NotificationFile, name)

        def write(self: NotificationFile, *words: object, written=written) -> object:
            if full:
                raise OutboxUnavailable("the file of notifications: the disk is full", hint="free some space")
            return written(self, *words)

        monkeypatch.setattr(NotificationFile, name, write)
    async with Receiver().serving() as receiver:
        world = OutboxWorld(path, NotifyConfig(webhooks=(receiver.url(),)))
        async with world.running() as outbox:
            outbox.add([event(1), event(2)])
            await world.until(
                lambda: "the disk is full" in world.trouble and "2 notifications wait" in world.trouble
            )
            full = False
            await receiver.has(1)
            full = True
            await receiver.has(1)
            full = False
            await receiver.has(2)
            await world.until(lambda: waiting(path) == 0 and world.trouble == "")
    assert len(receiver.got) == len(set(ids(receiver.got))) == 2


@pytest.mark.parametrize("piece", [b"H", b"HTTP/1.1 200 OK\r\nx: " + b"y" * 100_000])
async def test_a_receiver_that_answers_byte_by_byte_or_without_end_is_left(
    monkeypatch: pytest.MonkeyPatch, piece: bytes
) -> None:
    monkeypatch.setattr(webhook, "SECONDS", 0.3)
    left = asyncio.Event()

    async def drip(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while True:
                writer.write(piece)
                await writer.drain()
                await asyncio.sleep(0.05)
        writer.close()
        left.set()

    server = await asyncio.start_server(drip, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    assert isinstance(await post(f"http://127.0.0.1:{port}/", "{}", "x", 0, ""), TryAgain)
    server.close()
    async with asyncio.timeout(20):
        await left.wait()
