"""Make the calls of a client, one method each."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence

from gpushared.api.v1.messages import (
    DoctorReport,
    DrainAnswer,
    Explanation,
    Gpu,
    GpuList,
    Lease,
    LeaseList,
    LeftPool,
    NodeStatus,
    OfferAnswer,
    PoolMembership,
    Preset,
    PresetList,
    Project,
    ProjectList,
    ResizeAnswer,
)
from gpushared.client import http
from gpushared.client.retries import READ_ONLY, configured_retries, may_repeat
from gpushared.client.submit_parameters import LeaseArguments, fields_of
from gpushared.domain.model.errors import ConfigError, NeverFits, StateConflict, Unavailable
from gpushared.light import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Any, ClassVar, TypeVar, Unpack

    from gpushared.api.v1.admin_messages import AuditPage, PolicyExplanation, PolicyRules, WebLink
    from gpushared.api.v1.history_messages import (
        ExportPage,
        PastJobs,
        PastLeases,
        RecentUse,
        Report,
        Usage,
        Waits,
    )

    _Answer = TypeVar("_Answer")

DEFAULT_HOST = "unix:///run/gpushared/gpushared.sock"
HOST_VARIABLE = "GPUSHARE_HOST"
MAX_SOCKET_PATH_BYTES = 107
"""The bound is ``sun_path`` of unix(7), less its closing zero."""
OK, UNAVAILABLE = 200, 503
ANSWER_SECONDS = 30.0
"""A call that does not wait for anything may take so long."""
STOP_GRACE_SECONDS = 10
JOIN_SECONDS = 90.0
"""The daemon waits so long for a coordinator that does not answer."""


def socket_path(host: str | None = None) -> str:
    """Return the path in ``host``, else in GPUSHARE_HOST, else the system's; raises ConfigError."""
    host = host or os.environ.get(HOST_VARIABLE) or DEFAULT_HOST
    path = host.removeprefix("unix://")
    if path == host or not path.startswith("/"):
        raise ConfigError(
            f"{HOST_VARIABLE} is {host[:100]!r}, but only a unix socket of this machine can be used",
            hint=f"export {HOST_VARIABLE}={DEFAULT_HOST}",
        )
    if len(os.fsencode(path)) > MAX_SOCKET_PATH_BYTES:
        raise ConfigError(
            f"the socket path in {HOST_VARIABLE} is longer than {MAX_SOCKET_PATH_BYTES} bytes",
            hint="use a shorter path, such as one under /run",
        )
    return path


class Client:
    """Call a node's daemon. Each call is a connection of its own, so one Client may serve many threads.

    Every method raises the errors of ``gpushared.domain.model.errors``: DaemonUnavailable if nobody listens,
    ConnectionLost (a DaemonUnavailable) if the answer did not come, TimedOut, or the daemon's own error.

    With ``retries`` calls are tried again while the daemon, or a part that it needs, is away. Programs that
    wait by themselves need none.
    """

    tell_of_retries: ClassVar[Callable[[str], None] | None] = None
    """The command line has all its clients try again, and tell it so; None: no client does by itself."""

    def __init__(self, host: str | None = None) -> None:
        self.path = socket_path(host)
        tell = type(self).tell_of_retries
        self.retries = None if tell is None else configured_retries(tell)

    # --- leases

    def request(
        self, *, request_id: str, answer_seconds: float = ANSWER_SECONDS, **arguments: Unpack[LeaseArguments]
    ) -> Lease:
        """Return a lease, queued or reserved; asking twice with one ``request_id`` gives the same lease."""
        fields = {"request_id": request_id, **fields_of(arguments)}
        try:
            return Lease(self.call("Leases/Request", fields, answer_seconds))
        except StateConflict as error:  # the only precondition of a request is that the node could grant it
            raise NeverFits(error.message, hint=error.hint) from error

    def wait(self, lease_id: str, token: str, *, timeout_seconds: float = 30.0) -> Lease:
        """Return the lease when it no longer looks as in ``token``, or after the time (at most 60 s)."""
        fields = {"lease_id": lease_id, "token": token, "timeout_seconds": timeout_seconds}
        return Lease(self.call("Leases/Wait", fields, timeout_seconds + ANSWER_SECONDS))

    def release(self, lease_id: str, *, answer_seconds: float = ANSWER_SECONDS) -> Lease:
        """Leave the queue, or return a reservation that has no container."""
        return Lease(self.call("Leases/Release", {"lease_id": lease_id}, answer_seconds))

    def stop(self, lease_id: str, *, grace_seconds: int | None = None) -> Lease:
        """End a lease in any state; its container gets ``grace_seconds`` (10) to end by itself."""
        fields: dict[str, object] = {"lease_id": lease_id}
        if grace_seconds is not None:
            fields["grace_seconds"] = grace_seconds
        grace = STOP_GRACE_SECONDS if grace_seconds is None else grace_seconds
        return Lease(self.call("Leases/Stop", fields, grace + ANSWER_SECONDS))

    def resize(
        self, lease_id: str, *, gpu: str = "", gpu_memory: str = "", gpu_compute: str = ""
    ) -> ResizeAnswer:
        """Set another size on the GPUs that the lease has; an empty figure stays as it is."""
        fields = {"lease_id": lease_id, "gpu": gpu, "gpu_memory": gpu_memory, "gpu_compute": gpu_compute}
        return ResizeAnswer(self.call("Leases/Resize", fields))

    def hold(self, lease_id: str, *, held: bool = True) -> Lease:
        """Keep a waiting lease from starting, or release it."""
        return Lease(self.call("Leases/Hold", {"lease_id": lease_id, "held": held}))

    def extend(self, lease_id: str, time: str) -> Lease:
        """Give a lease so much more time: ``30m``, ``2h``."""
        return Lease(self.call("Leases/Extend", {"lease_id": lease_id, "time": time}))

    def set_priority(self, lease_id: str, priority: int) -> Lease:
        """Move a waiting lease among those of its project."""
        return Lease(self.call("Leases/SetPriority", {"lease_id": lease_id, "priority": priority}))

    def pause(self, lease_id: str) -> Lease:
        """Take a running lease off its GPUs until it is resumed; ``suspending`` until that is done."""
        return Lease(self.call("Leases/Pause", {"lease_id": lease_id}))

    def resume(self, lease_id: str) -> Lease:
        """Bring a paused lease back when there is room.

        The lease is ``resuming`` until it is back, and ``suspended`` while it waits for room, with
        ``waiting``.
        """
        return Lease(self.call("Leases/Resume", {"lease_id": lease_id}))

    def preempt(self, lease_id: str) -> Lease:
        """Make a lease give way."""
        return Lease(self.call("Leases/Preempt", {"lease_id": lease_id}))

    def get(self, lease_id: str) -> Lease:
        """Return a lease by its id, its container's name or the beginning of its container's id."""
        return Lease(self.call("Leases/Get", {"lease_id": lease_id}))

    def leases(
        self,
        *,
        ended: bool = False,
        limit: int = 0,
        since: float = 0.0,
        user: str = "",
        states: Sequence[str] = (),
        page_token: str = "",
        pool: bool = False,
    ) -> LeaseList:
        """Return all leases and the GPU processes without one; ``ended`` adds the newest that are over.

        Of the ended leases the answer has at most ``limit`` (50; 1000 is the most) that ended ``since``
        (epoch seconds); ``more`` says how many there are besides, and ``next_page_token`` leads to them.
        With ``pool`` the answer has the leases of all nodes of the pool that are not over, and its waiting jobs.
        """
        fields: dict[str, object] = {"ended": ended, "limit": limit, "since": since, "user": user}
        fields |= {"states": list(states), "page_token": page_token, "pool": pool}
        return LeaseList(self.call("Leases/List", fields))

    def explain(self, lease_id: str) -> Explanation:
        """Explain why a lease waits, with its story."""
        return Explanation(self.call("Leases/Explain", {"lease_id": lease_id}))

    def offer(self, **arguments: Unpack[LeaseArguments]) -> OfferAnswer:
        """Return the answer that a request would get, without making it; the arguments are those of ``request``."""
        try:
            return OfferAnswer(self.call("Leases/Offer", fields_of(arguments)))
        except StateConflict as error:  # as in ``request``
            raise NeverFits(error.message, hint=error.hint) from error

    # --- projects

    def projects(self) -> ProjectList:
        """Return the projects, and the users without one who hold, wait or used something."""
        return ProjectList(self.call("Projects/List", {}))

    def set_project(
        self,
        name: str,
        *,
        weight: float | None = None,
        users: Sequence[str] | None = None,
        model: str = "",
        guaranteed: str = "",
        limit: str = "",
        fixed: str = "",
        unset: bool = False,
    ) -> Project:
        """Change or make a project; a field that is left out stays. GPUs are written ``2`` or ``1.5``."""
        fields: dict[str, object] = {
            "name": name,
            "model": model,
            "guaranteed": guaranteed,
            "limit": limit,
            "fixed": fixed,
            "unset": unset,
        }
        if weight is not None:
            fields["weight"] = weight
        if users is not None:
            fields["users"] = {"names": list(users)}
        return Project(self.call("Projects/Set", fields))

    # --- the node

    def gpus(self, *, pool: bool = False) -> GpuList:
        """Return the GPUs, and the node's troubles; with ``pool`` those of all nodes."""
        return GpuList(self.call("Gpus/List", {"pool": pool}))

    def drain(self, gpu: str, reason: str) -> tuple[Gpu, ...]:
        """Drain a GPU (index, UUID or ``all``), and return the named GPUs as they are now.

        A drained GPU gets no new leases.
        """
        return DrainAnswer(self.call("Gpus/Drain", {"gpu": gpu, "reason": reason})).gpus

    def undrain(self, gpu: str) -> tuple[Gpu, ...]:
        """Allow leases on a GPU again; raises StateConflict for a GPU that is still lost."""
        return DrainAnswer(self.call("Gpus/Undrain", {"gpu": gpu})).gpus

    def status(self) -> NodeStatus:
        """Return the status of the daemon and the engine behind it."""
        return NodeStatus(self.call("Node/Status", {}))

    def doctor(self) -> DoctorReport:
        """Examine the node as the daemon sees it; this takes seconds if something hangs."""
        return DoctorReport(self.call("Node/Doctor", {}))

    def presets(self) -> tuple[Preset, ...]:
        """Return the requests that the admin gave names."""
        return PresetList(self.call("Node/Presets", {})).presets

    def audit(
        self,
        *,
        user: str = "",
        since: float = 0.0,
        refused: bool = False,
        container: str = "",
        limit: int = 100,
        after: int | None = None,
        before: int | None = None,
    ) -> AuditPage:
        """Return lines of the audit, oldest first, at most 1000.

        They are the newest lines, or the oldest ``after`` a number.
        """
        from gpushared.api.v1.admin_messages import AuditPage

        fields: dict[str, object] = {"user": user, "since": since, "refused": refused, "container": container}
        bounds = {"limit": limit, "after": after, "before": before}
        fields |= {name: bound for name, bound in bounds.items() if bound is not None}
        return AuditPage(self.call("Audit/List", fields))

    def explain_policy(self, create_body: bytes, api_version: str, *, user: str = "") -> PolicyExplanation:
        """Judge a container's create body without creating it; ``user``: as if that user sent it."""
        from base64 import b64encode

        from gpushared.api.v1.admin_messages import PolicyExplanation

        body = b64encode(create_body).decode()
        fields = {"create_body": body, "api_version": api_version, "user": user}
        return PolicyExplanation(self.call("Policy/Explain", fields))

    def policy(self) -> PolicyRules:
        """Return the rules for callers who are not trusted."""
        from gpushared.api.v1.admin_messages import PolicyRules

        return PolicyRules(self.call("Policy/Show", {}))

    def web_link(self, *, network: bool = False) -> WebLink:
        """Return what makes a link that logs one browser in as the caller.

        ``network``: the page is opened at its own address there.
        """
        from gpushared.api.v1.admin_messages import WebLink

        return WebLink(self.call("Web/Link", {"network": network}))

    def join_pool(self, address: str, token: str, name: str = "") -> PoolMembership:
        """Make the node a member of the pool whose coordinator is at ``HOST`` or ``HOST:PORT``."""
        fields = {"address": address, "token": token, "name": name}
        return PoolMembership(self.call("Node/Join", fields, JOIN_SECONDS))

    def leave_pool(self) -> LeftPool:
        """Let the node forget its pool; the answer's ``pool`` is empty if it was in none."""
        return LeftPool(self.call("Node/Leave", {}))

    def simulate(self, change: Mapping[str, object]) -> None:
        """Play the driver of simulated GPUs; ``change`` as SimulationChange of node.proto."""
        self.call("Simulation/Change", change)

    # --- the history; ``window`` as HistoryWindow of history.proto

    def ended(
        self, window: Mapping[str, object], *, outcome: str = "", job: str = "", limit: int = 0
    ) -> PastLeases:
        """Return leases that are over, the newest end first; of a job also those that are not."""
        from gpushared.api.v1.history_messages import PastLeases

        fields = {"window": window, "outcome": outcome, "job": job, "limit": limit}
        return PastLeases(self.call("History/Ended", fields))

    def report(self, name: str, *, node: str = "", points: int = 0, pool: bool = False) -> Report:
        """Report on a lease, or on all attempts of a job, by its id."""
        from gpushared.api.v1.history_messages import Report

        return Report(
            self.call("History/Report", {"name": name, "node": node, "points": points, "pool": pool})
        )

    def past_jobs(self, window: Mapping[str, object], *, outcome: str = "", limit: int = 0) -> PastJobs:
        """Return jobs that are over, the newest end first."""
        from gpushared.api.v1.history_messages import PastJobs

        return PastJobs(self.call("History/Jobs", {"window": window, "outcome": outcome, "limit": limit}))

    def usage(self, window: Mapping[str, object], *, by: str = "") -> Usage:
        """Sum what was held and used by user, project, class, gpu, node, model, day or week."""
        from gpushared.api.v1.history_messages import Usage

        return Usage(self.call("History/Usage", {"window": window, "by": by}))

    def waits(self, window: Mapping[str, object], *, by: str = "") -> Waits:
        """Count how long requests waited by class, size, hour, reason, user, project or node."""
        from gpushared.api.v1.history_messages import Waits

        return Waits(self.call("History/Waits", {"window": window, "by": by}))

    def export(self, window: Mapping[str, object], *, kind: str, page_token: str = "") -> ExportPage:
        """Return a page of rows, each a JSON object: of leases, spans, hours or minutes."""
        from gpushared.api.v1.history_messages import ExportPage

        fields = {"window": window, "kind": kind, "page_token": page_token}
        return ExportPage(self.call("History/Export", fields))

    def recent(self, *, since: float = 0.0, step_seconds: int = 0) -> RecentUse:
        """Return the last hour of each GPU, or the time ``since``: its use in steps, and who held it."""
        from gpushared.api.v1.history_messages import RecentUse

        return RecentUse(self.call("History/Recent", {"since": since, "step_seconds": step_seconds}))

    # --- the Docker API on the same socket

    def docker(
        self, method: str, target: str, *, answer_seconds: float = ANSWER_SECONDS, may_repeat: bool = False
    ) -> http.HttpAnswer:
        """Send one request without a body to the Docker API behind the gate, and return its raw answer.

        ``may_repeat``: a repetition does no harm if an earlier try was carried out, as for every GET.
        """

        def once() -> http.HttpAnswer:
            answer = http.exchange(self.path, method, target, timeout_seconds=answer_seconds)
            if answer.status == UNAVAILABLE and self.retries is not None:
                raise _EngineAway(answer)
            return answer

        try:
            return self._ask(once, may_repeat=may_repeat or method == "GET")
        except _EngineAway as error:
            return error.answer

    def call(
        self, call: str, fields: Mapping[str, object], answer_seconds: float = ANSWER_SECONDS
    ) -> dict[str, Any]:
        """Make any unary call by its name, such as ``Leases/Get``; return the answer's fields as in JSON."""
        harmless = may_repeat(call, fields)
        try:
            return self._ask(lambda: self._call_once(call, fields, answer_seconds), may_repeat=harmless)
        except http.ConnectionLost as error:
            if call in READ_ONLY:
                raise
            raise http.ConnectionLost(
                f"{error.message}; nobody knows whether the daemon did what was asked",
                hint="look with `gpushare ps`, `gpushare jobs` or `gpushare gpus` before you ask again",
            ) from error

    def _ask(self, once: Callable[[], _Answer], *, may_repeat: bool) -> _Answer:
        return once() if self.retries is None else self.retries.ask(once, self.path, may_repeat=may_repeat)

    def _call_once(self, call: str, fields: Mapping[str, object], answer_seconds: float) -> dict[str, Any]:
        answer = http.exchange(
            self.path,
            "POST",
            f"/gpushare.v1.{call}",
            json.dumps(fields).encode(),
            timeout_seconds=answer_seconds,
        )
        if answer.status != OK:
            raise http.from_answer(answer.status, answer.body, self.path)
        try:
            data = json.loads(answer.body)
        except ValueError:
            data = None
        if not isinstance(data, dict):
            raise http.not_our_daemon(self.path, "no JSON object")
        return data


class _EngineAway(Unavailable):
    """The gate answers that the engine, or the way to another node's engine, is away."""

    def __init__(self, answer: http.HttpAnswer) -> None:
        super().__init__(http.docker_message(answer.status, answer.body))
        self.answer = answer
