"""Check this node's place in its pool. Pure."""

from __future__ import annotations

from gpushared.doctor.machine_facts import DaemonView
from gpushared.domain.model.checkup import CheckFinding, failed, ok, warning
from gpushared.domain.model.units import format_duration

LATE = 0.1
"""Certificates are renewed long before so little of their time is left."""
TOLERATED_CLOCK_SECONDS = 120.0
NOTED_CLOCK_SECONDS = 30.0
TOLD_HERE = frozenset({"pool", "pool-clock", "membership"})
"""These checks tell the troubles of these parts of the daemon."""

_NONE = ok("this node is in no pool")


def certificate(view: DaemonView) -> CheckFinding:
    if trouble := view.troubles.get("membership"):
        return failed(f"the node's place in its pool: {trouble}", "see `journalctl -u gpushared`")
    pool = view.pool
    if pool is None:
        return _NONE
    left = pool.expires_at - pool.now
    if left <= 0:
        return failed(
            f"the node's certificate in pool {pool.name} ended {format_duration(int(-left))} ago, "
            "so that the node is shut out",
            f"`gpushare node leave`, and join again with what `gpushare pool token --node {pool.node}` says",
        )
    text = f"the node's certificate in pool {pool.name} is good for {format_duration(int(left))}"
    if left < LATE * (pool.expires_at - pool.issued_at):
        return warning(
            f"{text} only, and was not renewed", "the link to the coordinator renews it; see there"
        )
    return ok(text)


def link(view: DaemonView) -> CheckFinding:
    pool = view.pool
    if pool is None:
        return _NONE
    if pool.away:
        return failed(
            f"pool {pool.name}: {pool.away}",
            "does the coordinator run, and is its port for nodes open? jobs and leases here go on meanwhile",
        )
    return ok(f"linked to the coordinator of pool {pool.name}, {pool.address}")


def clock(view: DaemonView) -> CheckFinding:
    pool = view.pool
    if pool is None:
        return _NONE
    ahead = pool.clock_ahead_seconds
    if ahead is None:
        return ok("the clocks were not compared yet")
    which = "ahead of" if ahead > 0 else "behind"
    text = f"the coordinator's clock is {abs(ahead):.0f} s {which} this node's"
    fix = "synchronise both clocks, as with chrony or systemd-timesyncd"
    if abs(ahead) > TOLERATED_CLOCK_SECONDS:
        return failed(f"{text}: certificates and users' jobs are refused", fix)
    if abs(ahead) > NOTED_CLOCK_SECONDS:
        return warning(f"{text}: from {TOLERATED_CLOCK_SECONDS:.0f} s on jobs are refused", fix)
    return ok(text)


def realm(view: DaemonView) -> CheckFinding:
    pool = view.pool
    if pool is None:
        return _NONE
    if not pool.may_assert:
        return failed(
            f"users of this node are USER@{pool.realm}, for whom its certificate does not let it speak: "
            "their jobs are refused in the pool",
            f'`realm = "{pool.node}"` in [pool], or join again with a token of '
            f"`gpushare pool token --node {pool.node} --realm {pool.realm}`",
        )
    return ok(f"users of this node are USER@{pool.realm} in the pool")
