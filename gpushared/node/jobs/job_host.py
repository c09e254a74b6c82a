"""Build the parts by which this node runs jobs, and find the account of a job's owner on this node."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Collection, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path

from gpushared.config.model import Config
from gpushared.daemon.troubles import Troubles
from gpushared.domain.jobs.job import Owner
from gpushared.domain.model.errors import GpushareError, PermissionRefused, TimedOut
from gpushared.domain.model.lease import ContainerId
from gpushared.domain.model.request import Caller
from gpushared.domain.model.units import shown
from gpushared.guard.fences import GuardProcess
from gpushared.net.http_server import Routes
from gpushared.net.identity import ask_names, look_up_account
from gpushared.net.loopback import LoopbackGate
from gpushared.node.jobs.job_containers import ContainerRetention, KeptContainers
from gpushared.node.jobs.job_images import JobImages
from gpushared.node.jobs.launcher import Launcher
from gpushared.node.jobs.order_handler import OrderHandler
from gpushared.node.runtime.configured import policy_of
from gpushared.node.runtime.container_reconciler import ContainerReconciler
from gpushared.node.runtime.executor import Executor
from gpushared.node.runtime.guard_keeper import GuardKeeper
from gpushared.node.runtime.loop import Loop
from gpushared.ports import Engine

INSPECT_SECONDS = 3.0
NAME_SERVICE_SECONDS = 5.0
LOGIN_DEFS = Path("/etc/login.defs")
FIRST_USER_ID = 1000
"""Ordinary users begin at this number if login.defs(5) does not name another: the default of UID_MIN."""
NOBODY_ID = 65534
"""The kernel uses this user if it has no better one (``/proc/sys/kernel/overflowuid``)."""


def account_rules_of(config: Config, node_name: str) -> AccountRules:
    """Return the rules that map owners of jobs to local accounts."""
    pool = config.pool
    return AccountRules(
        pool.realm or node_name, pool.trusted_realms, dict(pool.accounts), config.gate.trusted_groups
    )


def retention_of(config: Config) -> ContainerRetention:
    """Return how long containers stay after their jobs are over, and how many.

    Half of a user's containers stay free for new ones.
    """
    most, limit = config.jobs.max_kept_containers, policy_of(config).containers_per_user
    if limit:
        most = min(most, limit // 2)
    return ContainerRetention(config.jobs.keep_containers_seconds, most, limit)


class JobHost:
    """Hold the parts that run jobs here.

    ``loopback_gate`` calls the gate from inside, ``order_handler`` takes orders, ``accounts`` maps owners.
    """

    def __init__(
        self,
        config: Config,
        node_name: str,
        loop: Loop,
        engine: Engine,
        executor: Executor,
        reconciler: ContainerReconciler,
        guard: GuardProcess,
        troubles: Troubles,
    ) -> None:
        self._node_name = node_name
        self.loopback_gate = LoopbackGate()
        self.accounts = LocalAccounts(account_rules_of(config, node_name))
        self.order_handler = OrderHandler(loop, self.accounts.caller, loop.state.boot_id)
        self.order_handler.policy = policy_of(config)
        images = JobImages(
            self.loopback_gate, max_pulls=config.jobs.max_pulls, pull_seconds=config.jobs.pull_seconds
        )
        self._reconciler = reconciler
        self._guard_keeper = GuardKeeper(loop, guard, troubles)
        self._kept_containers = KeptContainers(loop, engine, self.loopback_gate, retention_of(config))
        self.launcher = Launcher(
            loop,
            self.order_handler,
            self.loopback_gate,
            reconciler,
            images,
            self._guard_keeper,
            self._kept_containers,
        )
        self.order_handler.inspect_first = self._inspect_first
        reconciler.before_job_ends = self._guard_keeper.take_ends
        self.order_handler.on_change = self._kept_containers.attempt_changed
        executor.on_attempt = self.launcher.perform

    async def serve(self, routes: Routes, stack: AsyncExitStack) -> None:
        """Allow containers to be made from now on, and resume the work that the daemon's end cut off."""
        self.loopback_gate.serve(routes)
        stack.push_async_callback(self.loopback_gate.close)
        stack.push_async_callback(self.launcher.close)
        with contextlib.suppress(GpushareError):  # the fences are checked again every second
            await self.order_handler.check_fences()
        self.launcher.take_up()

    async def run(self) -> None:
        """Watch fences, their guard and old containers, for ever."""
        await asyncio.gather(
            self.order_handler.watch_fences(), self._guard_keeper.run(), self._kept_containers.run()
        )

    async def _inspect_first(self, containers: tuple[ContainerId, ...]) -> None:
        """Look at containers before they are ended; an engine that does not answer prevents no end."""
        with contextlib.suppress(GpushareError, TimeoutError):
            async with asyncio.timeout(INSPECT_SECONDS):
                for container in containers:
                    await self._reconciler.inspect(container)

    def reload(self, config: Config) -> None:
        """Apply the settings that can change at run time: accounts, and how long containers stay."""
        self.accounts.rules = account_rules_of(config, self._node_name)
        self.order_handler.policy = policy_of(config)
        self._kept_containers.retention = retention_of(config)


@dataclass(frozen=True, slots=True)
class AccountRules:
    """Map owners to accounts.

    ``realm`` is this node's own; ``accounts`` has principals or persons as keys.
    """

    realm: str
    trusted_realms: Collection[str] = ()
    accounts: Mapping[str, str] = field(default_factory=dict)
    trusted_groups: Collection[str] = ()

    def named(self, owner: Owner) -> str | None:
        """Return the account that an admin named: an entry for the principal wins over one for the person."""
        return self.accounts.get(owner.principal) or self.accounts.get(owner.person)

    def account_name(self, owner: Owner) -> str:
        """Return the local account of an owner. Raises PermissionRefused if there is none.

        Without an entry of an admin, users of this node's realm and of the realms that it trusts have the
        accounts of the same names.
        """
        if (named := self.named(owner)) is not None:
            return named
        name, _, realm = owner.principal.partition("@")
        if name and realm in {self.realm, *self.trusted_realms}:
            return name
        principal = shown(owner.principal)
        raise PermissionRefused(
            f"{principal} has no account on this node, which does not trust the realm {shown(realm)}",
            hint=f'the node\'s admin names one below [pool.accounts]: {principal} = "alice"',
        )


class LocalAccounts:
    """Find owners' accounts by the node's own users and settings, never by foreign numbers.

    ``rules`` may be replaced at any time.
    """

    def __init__(self, rules: AccountRules) -> None:
        self.rules = rules

    async def caller(self, owner: Owner, coordinator: str) -> Caller:
        """Return the account under which an owner's containers run here.

        By a pool's order no account is trusted or root, whatever it is here: an attacker of another machine
        of the pool has not taken over this one. Nor is it an account of the system, whose name is the same on
        all machines, unless an admin of this machine named that account. For the node's own jobs
        (``coordinator`` empty) the account has the rights that it has on the socket. Raises
        PermissionRefused, or TimedOut if the name services hang.
        """
        rules = self.rules
        name = rules.account_name(owner)
        try:
            async with asyncio.timeout(NAME_SERVICE_SECONDS):
                caller = await ask_names(look_up_account, name, rules.trusted_groups)
        except TimeoutError:
            raise TimedOut(
                f"the user database does not answer for {shown(name)}", hint="try again later"
            ) from None
        if caller is None:
            raise PermissionRefused(
                f"{shown(owner.principal)} would be {shown(name)} on this node, and there is no such account",
                hint="the node's admin makes one, or names another below [pool.accounts]",
            )
        if caller.uid == 0 and coordinator:
            raise PermissionRefused(
                f"{shown(owner.principal)} would be root on this node, and jobs do not run as root",
                hint="submit it as a user with an account of its own",
            )
        if coordinator and rules.named(owner) is None and await ask_names(_is_of_the_system, caller.uid):
            raise PermissionRefused(
                f"{shown(owner.principal)} would be {shown(name)} on this node, an account of the system "
                f"(uid {caller.uid})",
                hint="submit it as an ordinary user; or, where that account is meant, the node's admin names "
                f'it below [pool.accounts]: "{owner.principal}" = "{name}"',
            )
        return replace(caller, trusted=False) if coordinator else caller


def _is_of_the_system(uid: int) -> bool:
    """Return True if the number is no ordinary user's: daemons own the files of such accounts."""
    return uid < _first_user_id() or uid == NOBODY_ID


def _first_user_id() -> int:
    """Return UID_MIN of login.defs(5), at least 1, because no owner may be root."""
    try:
        lines = LOGIN_DEFS.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return FIRST_USER_ID
    settings = [line.split() for line in lines]
    numbers = [pair[1] for pair in settings if len(pair) > 1 and pair[0] == "UID_MIN" and pair[1].isdecimal()]
    return max(1, int(numbers[-1])) if numbers else FIRST_USER_ID
