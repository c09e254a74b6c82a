"""Check the machine, the daemon's own files, and the node's place in its pool. Pure."""

from __future__ import annotations

from gpushared.doctor.machine_facts import (
    ConfigState,
    DaemonView,
    Directory,
    DoctorFacts,
    HostFacts,
    SocketFile,
    Unread,
)
from gpushared.domain.leases.memory_watchdog import UNSEEN
from gpushared.domain.model.checkup import CheckFinding, failed, ok, warning
from gpushared.domain.model.gpu import MIB
from gpushared.domain.model.units import first_few, format_duration, format_memory

NEARLY_FULL_BYTES = 500 * MIB
FULL_BYTES = 20 * MIB
FEW_INODES = 1000
EVERYBODY_CONNECTS = 0o002
NETWORK_FILE_SYSTEMS = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "9p", "ceph", "glusterfs", "fuse.sshfs", "lustre"}
)
MEMORY_FILE_SYSTEMS = frozenset({"tmpfs", "ramfs"})
LATE_RATIO = 0.1
"""A certificate with less of its time left should have been renewed long ago."""
TOLERATED_CLOCK_SECONDS = 120.0
NOTED_CLOCK_SECONDS = 30.0
SETTINGS_SHOWN = 5
CHECKED_PARTS = frozenset({"journal", "pool", "pool-clock", "membership"})
"""Checks of this module report the troubles of these parts of the daemon."""

_NO_POOL = ok("this node is in no pool")


def host(facts: DoctorFacts) -> CheckFinding:
    if isinstance(facts.host, Unread):
        return warning(f"the machine could not be looked at: {facts.host.why}", facts.host.hint, final=True)
    return ok(f"Linux {facts.host.kernel}")


def cgroup_version(host: HostFacts) -> CheckFinding:
    if host.cgroup_version < 2:  # noqa: PLR2004 - cgroup v2
        return warning(
            "the machine uses cgroup v1: no driver can limit a container's GPU memory as a whole",
            "boot with systemd.unified_cgroup_hierarchy=1",
            final=True,
        )
    return ok("cgroup v2")


def selinux(host: HostFacts) -> CheckFinding:
    if host.selinux_enforces:
        return warning(
            "SELinux enforces: containers cannot reach MPS unless the directory has a label for them",
            "`semanage fcontext -a -t container_file_t '/run/gpushared/leases(/.*)?'`, then "
            "`restorecon -R /run/gpushared/leases`",
        )
    return ok("SELinux does not stand between containers and MPS")


def service_unit(facts: DoctorFacts) -> CheckFinding:
    unit = facts.unit
    if isinstance(unit, Unread):
        return warning(f"systemd could not be asked for the daemon's unit: {unit.why}", unit.hint)
    if unit is None:
        return ok("the daemon is no service of systemd")
    if unit.kill_mode != "process":
        return failed(
            f"{unit.name} has KillMode={unit.kill_mode}: a restart kills the MPS daemons that containers use",
            f"`systemctl edit {unit.name}`: KillMode=process",
        )
    if unit.runtime_preserve not in {"yes", "restart"}:
        return failed(
            f"{unit.name} has RuntimeDirectoryPreserve={unit.runtime_preserve}: "
            "a restart removes what containers have mounted",
            f"`systemctl edit {unit.name}`: RuntimeDirectoryPreserve=yes",
        )
    return ok(f"{unit.name} leaves containers alone when it restarts")


def socket(file: SocketFile) -> CheckFinding:
    if not file.is_socket:
        return failed(
            f"the socket {file.path} is gone: who connects by that path does not reach the daemon",
            "`systemctl restart gpushared.socket gpushared`",
        )
    if file.closed_directory:
        return warning(
            f"other users cannot reach {file.path}: {file.closed_directory} is closed to them",
            f"`chmod o+x {file.closed_directory}`",
        )
    if not file.mode & EVERYBODY_CONNECTS:
        return ok(f"{file.path}, not for everybody (mode {file.mode:04o})")
    return ok(f"{file.path}, for everybody (mode {file.mode:04o})")


def runtime_directory(directory: Directory) -> CheckFinding:
    if not directory.writable:
        return failed(
            f"the daemon cannot write to {directory.path}: leases get no settings",
            "is it mounted read-only, or missing in the unit's ReadWritePaths?",
        )
    if directory.file_system not in MEMORY_FILE_SYSTEMS:
        return warning(
            f"{directory.path} is on {directory.file_system or 'a disk'} and not on a tmpfs: "
            "what a crash leaves there outlives a boot",
            "mount a tmpfs there, or set `runtime_dir` in [node] to a directory on one, such as /run on most "
            "machines; then restart gpushared",
        )
    return ok(f"{directory.path} on {directory.file_system}")


def journal_disk(disk: Directory) -> CheckFinding:
    if not disk.writable:
        return failed(
            f"the daemon cannot write to {disk.path}: no lease can be granted",
            "is it mounted read-only, or missing in the unit's ReadWritePaths?",
        )
    free = format_memory(disk.free_bytes)
    if disk.free_bytes < FULL_BYTES or disk.free_inodes == 0:
        return failed(
            f"the disk of {disk.path} is full ({free} free): no lease can be granted while the journal "
            "cannot be written",
            "make room",
        )
    if disk.free_bytes < NEARLY_FULL_BYTES or (
        disk.free_inodes is not None and disk.free_inodes < FEW_INODES
    ):
        return warning(f"the disk of {disk.path} is nearly full ({free} free)", "make room")
    if disk.file_system in NETWORK_FILE_SYSTEMS:
        return warning(
            f"{disk.path} is on {disk.file_system}: the journal needs the locks of a local disk",
            "set `state_dir` in [node] to a local directory and restart gpushared",
        )
    return ok(f"{disk.path}, {free} free")


def daemon_parts(facts: DoctorFacts) -> CheckFinding:
    """Report the daemon's troubles that no other check reports."""
    reported = {*CHECKED_PARTS}
    reported |= {"gpus"} if isinstance(facts.driver, Unread) and not facts.simulated else set()
    reported |= {"engine"} if isinstance(facts.engine, Unread) else set()
    reported |= {part for part in facts.daemon.troubles if part.startswith(UNSEEN)}
    if troubles := {part: text for part, text in facts.daemon.troubles.items() if part not in reported}:
        return failed("; ".join(troubles[part] for part in sorted(troubles)), "see `journalctl -u gpushared`")
    return ok("the daemon's parts work")


def journal(view: DaemonView) -> CheckFinding:
    if trouble := view.troubles.get("journal"):
        return failed(f"the journal cannot be written: {trouble}", "see `journalctl -u gpushared`")
    return ok("the journal is written")


def config(state: ConfigState) -> CheckFinding:
    if state.problem:
        return failed(
            f"the configuration is wrong, and the next start would fail: {state.problem}",
            "`gpushare config check` tells all that is wrong",
        )
    if state.to_restart:
        return warning(
            f"settings were changed that only a restart puts into use: {first_few(state.to_restart, SETTINGS_SHOWN)}",
            "`systemctl restart gpushared`; containers do not notice",
        )
    if state.to_reload:
        return warning(
            f"the configuration was changed since the daemon read it: {first_few(state.to_reload, SETTINGS_SHOWN)}",
            "`systemctl reload gpushared`",
        )
    return ok("the configuration is right, and in use")


def certificate(view: DaemonView) -> CheckFinding:
    if trouble := view.troubles.get("membership"):
        return failed(f"the node's place in its pool: {trouble}", "see `journalctl -u gpushared`")
    pool = view.pool
    if pool is None:
        return _NO_POOL
    remaining_seconds = pool.expires_at - pool.now
    if remaining_seconds <= 0:
        return failed(
            f"the node's certificate in pool {pool.name} ended {format_duration(int(-remaining_seconds))} ago, "
            "so that the node is shut out",
            f"`gpushare node leave`, and join again with what `gpushare pool token --node {pool.node}` says",
        )
    text = f"the node's certificate in pool {pool.name} is good for {format_duration(int(remaining_seconds))}"
    if remaining_seconds < LATE_RATIO * (pool.expires_at - pool.issued_at):
        return warning(
            f"{text} only, and was not renewed", "the link to the coordinator renews it; see there"
        )
    return ok(text)


def link(view: DaemonView) -> CheckFinding:
    pool = view.pool
    if pool is None:
        return _NO_POOL
    if pool.away:
        return failed(
            f"pool {pool.name}: {pool.away}",
            pool.hint
            or "does the coordinator run, and is its port for nodes open? jobs and leases here go on meanwhile",
        )
    if pool.coordinators > 1:
        return ok(f"pool {pool.name} has {pool.coordinators} coordinators, linked by {pool.address}")
    return ok(f"linked to the coordinator of pool {pool.name}, {pool.address}")


def clock(view: DaemonView) -> CheckFinding:
    pool = view.pool
    if pool is None:
        return _NO_POOL
    ahead = pool.clock_ahead_seconds
    if ahead is None:
        return ok("the clocks were not compared yet")
    relation = "ahead of" if ahead > 0 else "behind"
    text = f"the coordinator's clock is {abs(ahead):.0f} s {relation} this node's"
    fix = "synchronise both clocks, as with chrony or systemd-timesyncd"
    if abs(ahead) > TOLERATED_CLOCK_SECONDS:
        return failed(f"{text}: certificates and users' jobs are refused", fix)
    if abs(ahead) > NOTED_CLOCK_SECONDS:
        return warning(f"{text}: from {TOLERATED_CLOCK_SECONDS:.0f} s on jobs are refused", fix)
    return ok(text)


def realm(view: DaemonView) -> CheckFinding:
    pool = view.pool
    if pool is None:
        return _NO_POOL
    if not pool.may_assert:
        return failed(
            f"users of this node are USER@{pool.realm}, for whom its certificate does not let it speak: "
            "their jobs are refused in the pool",
            f'`realm = "{pool.node}"` in [pool], or join again with a token of '
            f"`gpushare pool token --node {pool.node} --realm {pool.realm}`",
        )
    return ok(f"users of this node are USER@{pool.realm} in the pool")
