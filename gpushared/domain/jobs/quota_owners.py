"""Count nodes' reported holdings to quotas: only to those of people for whom the node may speak."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from gpushared.domain.jobs.coordinator_rules import PoolRules
from gpushared.domain.jobs.job import HERE, Job
from gpushared.domain.jobs.member import Holding, Member
from gpushared.domain.scheduling.projects import Policy

NOBODYS = ""
"""The project of what counts to no quota. No project is called so."""


class QuotaOwners:
    """The coordinator's own table of who may use which project."""

    def __init__(self, policy: Policy, rules: PoolRules) -> None:
        self._common_realms = rules.common_realms
        self._persons = {one: person for person, several in rules.principals.items() for one in several}
        self._projects: dict[str, set[str]] = defaultdict(set)
        for project in policy.projects.values():
            for person in project.users:
                self._projects[person].add(project.name)

    def project_of(self, holding: Holding, member: Member) -> str:
        """The project that a holding counts to, where its owner may use that."""
        may = any(
            self._may_use(person, holding.project) for person in self._persons_of(holding.owner, member)
        )
        return holding.project if may else NOBODYS

    def _persons_of(self, user: str, member: Member) -> Iterable[str]:
        """Yield the persons that a local user may be.

        The node's own configuration decides, and is unknown here.
        """
        for realm in {member.name, *member.realms}:
            principal = f"{user}@{realm}"
            common = user if realm in self._common_realms else principal
            yield self._persons.get(principal, common)

    def _may_use(self, person: str, project: str) -> bool:
        mine = self._projects.get(person, ())
        return project in mine or (project == person and not mine)


def payer_of(job: Job) -> str:
    """The project that a job counts to: none before it has its owner's word, or that of who may give it."""
    return job.project if job.told_by == HERE else NOBODYS
