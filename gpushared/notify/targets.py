"""Choose the receivers of an event: the targets of the site, of a project, and of the run itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from urllib.parse import quote, urlsplit

from gpushared.config.notify import (
    NotifyConfig,
    PoolNotifyConfig,
    ProjectNotifyConfig,
    ReceiversConfig,
    is_address,
)
from gpushared.domain.model.notification import MAIL, Notification, NotificationKind, is_allowed
from gpushared.notify.sendmail import find_sendmail

SITE = "site"
PROJECT = "project:"
RUN = "run:"


class Way(StrEnum):
    """Name how a target receives notifications."""

    WEBHOOK = "webhook"
    MAIL = "mail"
    COMMAND = "command"


@dataclass(frozen=True, slots=True)
class Target:
    """Name one receiver. ``scope`` names who chose the receiver: the site, a project, or a run's owner.

    ``address`` is a URL, a mail address, or a uid. The file of notifications stores a target as its text.
    """

    scope: str
    way: Way
    address: str

    def __str__(self) -> str:
        return f"{self.scope} {self.way} {self.address}"

    @property
    def is_of_run(self) -> bool:
        return self.scope.startswith(RUN)

    @property
    def is_owner(self) -> bool:
        """Return True if the receiver is the owner of the lease, who may know its container and image."""
        return self.is_of_run or self.way is Way.COMMAND

    @property
    def configured(self) -> str:
        """Return the name by which the configuration's targets are known; empty for a run's own."""
        if self.is_of_run:
            return ""
        return f"{SITE} {Way.COMMAND}" if self.way is Way.COMMAND else str(self)

    @property
    def shown(self) -> str:
        """Return the target for messages that everybody may read: paths of URLs may hold secrets."""
        match self.way:
            case Way.WEBHOOK:
                parts = urlsplit(self.address)
                return f"{parts.scheme}://{parts.netloc}"
            case Way.MAIL:
                return self.address
            case Way.COMMAND:
                return f"the command for uid {self.address}"


def read_target(text: str) -> Target:
    """Return the target of a text that ``Target`` made."""
    scope, way, address = text.split(" ", 2)
    return Target(scope, Way(way), address)


@dataclass(frozen=True, slots=True)
class Routes:
    """Hold the configured receivers, and those that runs may name."""

    site: PoolNotifyConfig
    projects: Mapping[str, ProjectNotifyConfig] = field(default_factory=dict)

    @property
    def configured(self) -> frozenset[str]:
        """Return the names of all configured targets."""
        names = {target.configured for target in _all_of(SITE, self.site)}
        for name, project in self.projects.items():
            names |= {target.configured for target in _all_of(PROJECT + name, project)}
        if self.command:
            names.add(f"{SITE} {Way.COMMAND}")
        return frozenset(names)

    @property
    def command(self) -> tuple[str, ...]:
        return self.site.command if isinstance(self.site, NotifyConfig) else ()

    @property
    def allowed(self) -> tuple[str, ...]:
        """Return the targets that users may name: mail only where a program takes mails.

        People of a pool have no mailbox on the machine of its coordinator.
        """
        local = isinstance(self.site, NotifyConfig)
        can_mail = find_sendmail(self.site.sendmail) is not None and bool(local or self.site.mail_domain)
        return tuple(target for target in self.site.allow if target != MAIL or can_mail)

    def targets_of(self, event: Notification) -> tuple[Target, ...]:
        """Return all receivers of an event."""
        if event.kind is NotificationKind.DIGEST:
            return self._of_digest(event.project)
        targets = [*_of(SITE, self.site, event.kind)]
        project = self.projects.get(event.project) if event.project else None
        if project is not None:
            targets += _of(PROJECT + event.project, project, event.kind)
        if event.owner_uid is not None and self.command and _concerns(self.site, event.kind):
            targets.append(Target(SITE, Way.COMMAND, str(event.owner_uid)))
        return (*targets, *self._of_run(event))

    @property
    def digests(self) -> tuple[str, ...]:
        """Return the projects that want a digest; the empty name stands for the whole machine."""
        projects = [name for name, project in self.projects.items() if project.digest]
        of_site = isinstance(self.site, NotifyConfig) and self.site.digest
        return ("", *projects) if of_site else tuple(projects)

    def _of_digest(self, project: str) -> tuple[Target, ...]:
        if project not in self.digests:
            return ()
        scope, config = (PROJECT + project, self.projects[project]) if project else (SITE, self.site)
        return tuple(_all_of(scope, config))

    def _of_run(self, event: Notification) -> list[Target]:
        scope, targets = RUN + quote(event.owner, safe=""), []
        for target in event.targets:
            if not is_allowed(target, self.site.allow):
                continue  # the pool or an older configuration allowed it
            if target == MAIL:
                domain = self.site.mail_domain
                address = f"{event.owner}@{domain}" if domain else event.owner
                if is_address(address):
                    targets.append(Target(scope, Way.MAIL, address))
            else:
                targets.append(Target(scope, Way.WEBHOOK, target))
        return targets

    def is_wanted(self, target: Target) -> bool:
        """Return False for a target that the configuration does not have, or does not allow, any more."""
        if not target.is_of_run:
            return target.configured in self.configured
        return is_allowed(MAIL if target.way is Way.MAIL else target.address, self.site.allow)

    @property
    def secret_files(self) -> frozenset[str]:
        """Return the files with the keys of configured webhooks."""
        configs = (self.site, *self.projects.values())
        return frozenset(config.secret_file for config in configs if config.webhooks and config.secret_file)

    def secret_file(self, target: Target) -> str:
        """Return the file with the key that signs for a webhook; empty for a webhook without a signature.

        A run's own webhook has none: its receiver has no key, and a user could collect signatures.
        """
        if target.scope == SITE:
            return self.site.secret_file
        project = self.projects.get(target.scope.removeprefix(PROJECT))
        return "" if project is None or target.is_of_run else project.secret_file


def routes_of(site: PoolNotifyConfig, projects: Mapping[str, ProjectNotifyConfig | None]) -> Routes:
    """Return the routes of a configuration; projects without settings have none."""
    return Routes(site, {name: project for name, project in projects.items() if project is not None})


def _all_of(scope: str, config: ReceiversConfig) -> list[Target]:
    webhooks = [Target(scope, Way.WEBHOOK, url) for url in config.webhooks]
    return webhooks + [Target(scope, Way.MAIL, address) for address in config.mail]


def _of(scope: str, config: ReceiversConfig, kind: NotificationKind) -> list[Target]:
    mailed = kind in config.mail_events
    return [
        target
        for target in _all_of(scope, config)
        if (mailed if target.way is Way.MAIL else _concerns(config, kind))
    ]


def _concerns(config: ReceiversConfig, kind: NotificationKind) -> bool:
    return not config.events or kind in config.events
