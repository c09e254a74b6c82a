"""Build the parts by which this node runs the jobs that a coordinator, or its own book, places here."""

from __future__ import annotations

import asyncio
import contextlib
from contextlib import AsyncExitStack
from pathlib import Path

from gpushared.config.model import Config
from gpushared.daemon.troubles import Troubles
from gpushared.domain.model.errors import GpushareError
from gpushared.domain.model.lease import ContainerId
from gpushared.guard.fences import GuardProcess
from gpushared.net.http_server import Routes
from gpushared.net.loopback import LoopbackGate
from gpushared.node.jobs.job_images import JobImages
from gpushared.node.jobs.kept_containers import Keeping, KeptContainers
from gpushared.node.jobs.launcher import Launcher
from gpushared.node.jobs.order_handler import OrderHandler
from gpushared.node.runtime.configured import policy_of
from gpushared.node.runtime.container_reconciler import ContainerReconciler
from gpushared.node.runtime.executor import Executor
from gpushared.node.runtime.guard_keeper import Guarding
from gpushared.node.runtime.loop import Loop
from gpushared.pool.member.job_accounts import AccountRules, LocalAccounts
from gpushared.ports import Engine

POOL_DIRECTORY = "pool"
LOOK_FIRST_SECONDS = 3.0


def account_rules_of(config: Config, node_name: str) -> AccountRules:
    """Return the rules that map owners of jobs to local accounts."""
    pool = config.pool
    return AccountRules(
        pool.realm or node_name, pool.trusted_realms, dict(pool.accounts), config.gate.trusted_groups
    )


def pool_directory(config: Config) -> Path:
    """Return the folder of the files that make the node a member of its pool."""
    return Path(config.pool.state_dir or Path(config.node.state_dir) / POOL_DIRECTORY)


def keeping_of(config: Config) -> Keeping:
    """Return how long, and how many, containers stay after their jobs are over."""
    return Keeping(config.jobs.keep_containers_seconds, config.jobs.max_kept_containers)


class JobHost:
    """``insider`` opens the node's doors from inside, ``desk`` takes orders, ``accounts`` maps owners."""

    def __init__(
        self,
        config: Config,
        node_name: str,
        loop: Loop,
        engine: Engine,
        performer: Executor,
        follower: ContainerReconciler,
        guard: GuardProcess,
        troubles: Troubles,
    ) -> None:
        self._node_name = node_name
        self.insider = LoopbackGate()
        self.accounts = LocalAccounts(account_rules_of(config, node_name))
        self.desk = OrderHandler(loop, self.accounts.caller, loop.state.boot_id)
        self.desk.policy = policy_of(config)
        images = JobImages(
            self.insider, max_pulls=config.jobs.max_pulls, pull_seconds=config.jobs.pull_seconds
        )
        self._follower = follower
        self._guarding = Guarding(loop, guard, troubles)
        self.launcher = Launcher(loop, self.desk, self.insider, follower, images, self._guarding)
        self.desk.look_first = self._look_first
        follower.before_job_ends = self._guarding.take_ends
        self._kept = KeptContainers(loop, engine, self.insider, keeping_of(config))
        self.desk.on_change = self._kept.told
        performer.on_attempt = self.launcher.perform

    async def serve(self, routes: Routes, stack: AsyncExitStack) -> None:
        """Allow containers to be made from now on, and resume the work that the daemon's end cut off."""
        self.insider.serve(routes)
        stack.push_async_callback(self.insider.close)
        stack.push_async_callback(self.launcher.close)
        with contextlib.suppress(GpushareError):  # the fences are checked again every second
            await self.desk.check_fences()
        self.launcher.take_up()

    async def run(self) -> None:
        """Look after fences, their guard and old containers, for ever."""
        await asyncio.gather(self.desk.watch_fences(), self._guarding.run(), self._kept.run())

    async def _look_first(self, containers: tuple[ContainerId, ...]) -> None:
        """Look at containers before they are ended; an engine that does not answer prevents no end."""
        with contextlib.suppress(GpushareError, TimeoutError):
            async with asyncio.timeout(LOOK_FIRST_SECONDS):
                for container in containers:
                    await self._follower.inspect(container)

    def reload(self, config: Config) -> None:
        """Take over what can change at run time: accounts, and how long containers stay."""
        self.accounts.rules = account_rules_of(config, self._node_name)
        self.desk.policy = policy_of(config)
        self._kept.keeping = keeping_of(config)
