"""Serve the calls ``Policy.Explain`` and ``Policy.Show``."""

from __future__ import annotations

import asyncio
import json
import pwd

from gpushared.api.v1 import policy_pb2
from gpushared.domain.model.errors import NotFound, PermissionRefused, RequestError, TimedOut
from gpushared.domain.model.request import Caller
from gpushared.domain.model.units import shown
from gpushared.gate.api.field_kinds import Json, Version, version_of
from gpushared.gate.docker_gate import Gate
from gpushared.gate.policy.field_findings import FieldDecision, FieldFinding
from gpushared.gate.policy.site_presets import rules_in_force
from gpushared.net.identity import LOOKUP_SECONDS, ask_names
from gpushared.net.unary_json import Unary

UID_DIGITS = 10
MAX_CREATE_BYTES = 190 * 1024
"""A call in JSON has room for this much. gRPC has the same limit, so that a long body delays no other
call."""


class PolicyApi:
    """Explain the policy to any caller, for the caller's own containers."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate

    def calls(self) -> dict[str, Unary]:
        return {
            "gpushare.v1.Policy/Explain": Unary(policy_pb2.ExplainPolicyRequest, self.explain),
            "gpushare.v1.Policy/Show": Unary(policy_pb2.ShowPolicyRequest, self.show),
        }

    async def explain(
        self, message: policy_pb2.ExplainPolicyRequest, caller: Caller
    ) -> policy_pb2.PolicyExplanation:
        """Judge a create's body field by field; nothing is created."""
        if len(message.create_body) > MAX_CREATE_BYTES:
            raise RequestError(f"the create body is longer than {MAX_CREATE_BYTES} bytes")
        version = _version(message.api_version)
        caller = await _account_of(message.user, caller) if message.user else caller
        findings = await self._gate.explainer.explain(message.create_body, version, caller)
        return policy_pb2.PolicyExplanation(
            passes=all(finding.decision is not FieldDecision.REFUSED for finding in findings),
            findings=map(_view, findings),
            judged=self._gate.judges(caller),
            preset=self._gate.policy.preset,
        )

    async def show(self, _: policy_pb2.ShowPolicyRequest, caller: Caller) -> policy_pb2.PolicyRules:
        """Return the rules in force now."""
        policy = self._gate.policy
        return policy_pb2.PolicyRules(
            preset=policy.preset,
            rules=[
                policy_pb2.PolicyRule(name=r.name, value=r.value, origin=r.origin, meaning=r.meaning)
                for r in rules_in_force(policy)
            ],
            judged=self._gate.judges(caller),
        )


async def _account_of(user: str, caller: Caller) -> Caller:
    """Return the user as an untrusted caller.

    Raises ``PermissionRefused``, ``NotFound``, ``TimedOut``.
    """
    if not caller.trusted and user not in {caller.name, str(caller.uid)}:
        raise PermissionRefused(
            "you may ask for yourself only", hint="leave --as out; trusted users may ask for everybody"
        )
    try:
        async with asyncio.timeout(LOOKUP_SECONDS):
            entry = await ask_names(_entry, user)
    except TimeoutError:
        raise TimedOut("the user database does not answer", hint="try again later") from None
    except KeyError:
        raise NotFound(f"there is no user {shown(user)}", hint="name one of this machine") from None
    return Caller(entry.pw_uid, entry.pw_gid, entry.pw_name)


def _entry(user: str) -> pwd.struct_passwd:
    return pwd.getpwuid(int(user)) if user.isdecimal() and len(user) <= UID_DIGITS else pwd.getpwnam(user)


def _version(text: str) -> Version | None:
    if not text:
        return None
    try:
        return version_of(text)
    except ValueError:
        raise RequestError(
            f"{shown(text)} is no version of the Engine API", hint="write it like 1.41"
        ) from None


def _view(finding: FieldFinding) -> policy_pb2.PolicyFinding:
    return policy_pb2.PolicyFinding(
        field=finding.field,
        option=finding.option,
        verdict=finding.decision,
        asked=_text(finding.requested),
        given=_text(finding.effective),
        why=finding.why,
        hint=finding.hint,
        may_change=finding.may_change,
    )


def _text(value: Json) -> str:
    return "" if value is None else json.dumps(value)
