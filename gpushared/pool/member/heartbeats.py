"""Track the heartbeats of one stream and their acknowledgements."""

from __future__ import annotations

from dataclasses import replace

from gpushared.api.v1 import link_pb2
from gpushared.daemon.clocks import boottime
from gpushared.domain.jobs.member import HeartbeatReport, Inventory
from gpushared.pool.member.node_ports import NodeFacts

FIRST_SECONDS = 5.0


class Heartbeats:
    """Number the heartbeats of a stream, and hold the facts that the newest one reported."""

    def __init__(self) -> None:
        self.seconds = FIRST_SECONDS
        self.sent_facts: tuple[Inventory, HeartbeatReport] | None = None
        self.acknowledged_sent_at = boottime()
        """Hold when the newest acknowledged heartbeat was sent; before the first one, the begin of the
        stream."""
        self.revision = 0
        self._seq = 0
        self._sent: dict[int, float] = {}

    def next(self, at: float) -> int:
        """Return the number of a heartbeat that is sent at ``at`` (``boottime``)."""
        self._seq += 1
        self._sent[self._seq] = at
        return self._seq

    def acknowledge(self, ack: link_pb2.BeatAck) -> bool:
        """Apply the acknowledgement of a heartbeat, and return True if it is new."""
        sent_at = self._sent.get(ack.seq)
        if sent_at is None:
            return False
        self._sent = {seq: at for seq, at in self._sent.items() if seq > ack.seq}
        self.acknowledged_sent_at = sent_at
        self.revision = max(self.revision, ack.revision)
        self.seconds = ack.beat_seconds or self.seconds
        return True

    def silent_seconds(self) -> float:
        """Return for how long no sent heartbeat was acknowledged."""
        return boottime() - self.acknowledged_sent_at if self._sent else 0.0

    def has_news(self, facts: NodeFacts) -> bool:
        """Return True if facts changed that the next heartbeat should not wait with.

        Stray memory changes all the time, and can wait.
        """
        if self.sent_facts is None:
            return True
        inventory, free = self.sent_facts
        now = facts.free()
        return facts.inventory() != inventory or replace(now, stray_bytes=()) != replace(free, stray_bytes=())
