"""Explain to people the judge's decision on each field."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from gpushared.domain.model.errors import GpushareError
from gpushared.gate.api.field_kinds import Json
from gpushared.gate.api.fields import CREATE_TABLE, HOST_TABLE

NOT_HEEDED = "it changes nothing here"
WHY_DROPPED: Mapping[str, str] = {
    "HostConfig.CapAdd": "only programs that are root inside have capabilities",
    "HostConfig.ContainerIDFile": "docker writes it by itself",
}
WHY_SET: Mapping[str, str] = {
    "User": "containers run as you",
    "HostConfig.GroupAdd": "your own groups",
    "HostConfig.CapDrop": "no program has a capability that the policy does not give",
    "HostConfig.CapAdd": "what root inside needs to install packages",
    "HostConfig.SecurityOpt": "no program gains privileges",
    "HostConfig.PidsLimit": "a bound on processes and threads",
    "HostConfig.CgroupParent": "where all your containers are bounded together",
    "HostConfig.Memory": "the site's limit",
    "HostConfig.NanoCpus": "the site's limit",
    "HostConfig.CpuQuota": "the site's limit",
    "HostConfig.PortBindings": "published on this machine only",
    "HostConfig.Devices": "read and write, no more",
    "HostConfig.Binds": "checked as you and held in place; the engine makes no missing directories",
    "HostConfig.Mounts": "mount objects, for which the engine makes no missing directories",
    "HostConfig.ContainerIDFile": "the gate's mark on what is root inside",
}
OPTIONS: Mapping[str, str] = {
    f"{where}{name}": field.option
    for where, fields in (("", CREATE_TABLE), ("HostConfig.", HOST_TABLE))
    for name, field in fields.items()
    if field.option
}
"""``docker run`` has these options for the fields."""


class FieldDecision(StrEnum):
    """Name the decision on a field."""

    ALLOWED = "allowed"
    SET = "set"
    DROPPED = "dropped"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class FieldFinding:
    """Hold the decision on one field. ``requested`` and ``effective`` are None for no value.

    ``may_change``: the engine and the system refuse at this moment, not the policy.
    """

    field: str
    decision: FieldDecision
    requested: Json = None
    effective: Json = None
    why: str = ""
    hint: str = ""
    may_change: bool = False

    @property
    def option(self) -> str:
        """Return the option of ``docker run`` that sets the field, empty if there is none."""
        return OPTIONS.get(self.field, "")


@dataclass(slots=True)
class Notes:
    """Collect the judge's decisions; with notes the judge goes on after a refusal."""

    findings: list[FieldFinding] = field(default_factory=list)

    @property
    def passes(self) -> bool:
        """Return True if no field is refused."""
        return all(finding.decision is not FieldDecision.REFUSED for finding in self.findings)

    def refused(self, name: str, requested: Json, error: GpushareError, *, may_change: bool = False) -> None:
        self._put(
            FieldFinding(
                name, FieldDecision.REFUSED, requested, None, error.message, error.hint or "", may_change
            )
        )

    def judged(self, name: str, requested: Json, effective: Json) -> None:
        """Note the decision on a field, unless both values are empty, as in many fields that clients send."""
        if not requested and not effective:
            return
        if requested == effective:
            self._put(FieldFinding(name, FieldDecision.ALLOWED, requested, effective))
        elif effective is None:
            self._put(
                FieldFinding(name, FieldDecision.DROPPED, requested, None, WHY_DROPPED.get(name, NOT_HEEDED))
            )
        else:
            self.set(name, requested or None, effective, WHY_SET.get(name, ""))

    def left_out(self, name: str, version: str) -> None:
        why = f"version {version} of the Engine API, which the client speaks, does not have it"
        self._put(FieldFinding(name, FieldDecision.DROPPED, why=why))

    def unread(self, name: str) -> None:
        self._put(FieldFinding(name, FieldDecision.DROPPED, why="the engine does not read it"))

    def set(self, name: str, requested: Json, effective: Json, why: str) -> None:
        self._put(FieldFinding(name, FieldDecision.SET, requested, effective, why))

    def _put(self, finding: FieldFinding) -> None:
        """Let the last decision on a field stand, but keep a refusal."""
        if finding.decision is not FieldDecision.REFUSED:
            same = [earlier for earlier in self.findings if earlier.field == finding.field]
            if any(earlier.decision is FieldDecision.REFUSED for earlier in same):
                return
            self.findings = [earlier for earlier in self.findings if earlier not in same]
        self.findings.append(finding)
