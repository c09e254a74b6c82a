"""Count nodes' reported holdings to quotas, if the node may speak for the holder."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from gpushared.domain.jobs.coordinator_rules import PoolRules
from gpushared.domain.jobs.job import HERE, Job
from gpushared.domain.jobs.member import Holding, Member
from gpushared.domain.scheduling.projects import Policy

NOBODYS = ""
"""The project of holdings that count to no quota. No real project has this name."""


class QuotaOwners:
    """Map holdings to the projects that their owners may use, by the coordinator's own table."""

    def __init__(self, policy: Policy, rules: PoolRules) -> None:
        self._common_realms = rules.common_realms
        self._persons = {name: person for person, names in rules.principals.items() for name in names}
        self._projects: dict[str, set[str]] = defaultdict(set)
        for project in policy.projects.values():
            for person in project.users:
                self._projects[person].add(project.name)

    def project_of(self, holding: Holding, member: Member) -> str:
        """Return the holding's project if its owner may use that project, else ``NOBODYS``."""
        may = any(
            self._may_use(person, holding.project) for person in self._persons_of(holding.owner, member)
        )
        return holding.project if may else NOBODYS

    def _persons_of(self, user: str, member: Member) -> Iterable[str]:
        """Yield the persons that a local user may be.

        The node's own configuration decides between them, and is unknown here.
        """
        for realm in {member.name, *member.realms}:
            principal = f"{user}@{realm}"
            common = user if realm in self._common_realms else principal
            yield self._persons.get(principal, common)

    def _may_use(self, person: str, project: str) -> bool:
        own_projects = self._projects.get(person, ())
        return project in own_projects or (project == person and not own_projects)


def payer_of(job: Job) -> str:
    """Return the project that a job counts to.

    A job counts to no project until its owner, or a node that may speak for the owner, vouches for it.
    """
    return job.project if job.told_by == HERE else NOBODYS
