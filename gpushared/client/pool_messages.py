"""Define the answers to administrators as typed objects: of a pool, of the policy, of the audit."""

from __future__ import annotations

from gpushared.client.messages import Message, Time


class JoinToken(Message):
    """Let one machine become a node. ``token`` is told once, when it is made."""

    token: str = ""
    id: str = ""
    expires_at: float = 0.0
    node: str = ""
    used_by: str = ""
    realms: tuple[str, ...] = ()
    created_at: float = 0.0
    used_at: Time = None
    revoked: bool = False
    made_by: str = ""


class ApiToken(Message):
    """Speak for a person. ``token`` is told once, when it is made."""

    token: str = ""
    id: str = ""
    person: str = ""
    scopes: tuple[str, ...] = ()
    expires_at: float = 0.0
    created_at: float = 0.0
    used_at: Time = None
    description: str = ""
    revoked: bool = False
    made_by: str = ""


class ListJoinTokensResponse(Message):
    """Hold the answer of ``PoolAdmin.ListJoinTokens``."""

    tokens: tuple[JoinToken, ...] = ()


class ListApiTokensResponse(Message):
    """Hold the answer of ``PoolAdmin.ListApiTokens``."""

    tokens: tuple[ApiToken, ...] = ()


class Trust(Message):
    """Hold the answer of ``PoolAdmin.Anchors``; ``anchors`` is base64 of certificates in PEM."""

    pool: str = ""
    anchors: str = ""
    generation: int = 0
    now: float = 0.0


class RotateCaAnswer(Message):
    """Tell what was done, and what is next."""

    sentences: tuple[str, ...] = ()


class NodeAnswer(Message):
    """Tell people what was done about a node."""

    sentences: tuple[str, ...] = ()


class PoolStatus(Message):
    """Describe the coordinator. ``phase``: ``normal``, ``settling`` or ``recovering``."""

    pool: str = ""
    version: str = ""
    epoch: int = 0
    revision: int = 0
    phase: str = ""
    awaited_nodes: tuple[str, ...] = ()
    troubles: tuple[str, ...] = ()
    nodes: int = 0
    queued: int = 0
    running: int = 0
    started_at: Time = None


class AuditLine(Message):
    """Hold one request; ``code`` is empty if the daemon did not refuse it."""

    number: int = 0
    at: float = 0.0
    uid: int = 0
    user: str = ""
    pid: int = 0
    executable: str = ""
    method: str = ""
    endpoint: str = ""
    container: str = ""
    name: str = ""
    digest: str = ""
    status: int = 0
    code: str = ""
    text: str = ""
    more: int = 0


class AuditPage(Message):
    """The answer of ``Audit.List``, oldest line first."""

    lines: tuple[AuditLine, ...] = ()
    newest: int = 0
    trouble: str = ""
    simulated: bool = False


class PolicyFinding(Message):
    """Judge one field of a create body; ``asked`` and ``given`` are JSON, empty for none."""

    field: str = ""
    option: str = ""
    verdict: str = ""
    asked: str = ""
    given: str = ""
    why: str = ""
    hint: str = ""
    may_change: bool = False


class PolicyExplanation(Message):
    """Hold the answer of ``Policy.Explain``."""

    passes: bool = False
    findings: tuple[PolicyFinding, ...] = ()
    judged: bool = False
    preset: str = ""


class PolicyRule(Message):
    """Describe one key below ``[gate]``; ``value`` is TOML."""

    name: str = ""
    value: str = ""
    origin: str = ""
    meaning: str = ""


class PolicyRules(Message):
    """Hold the answer of ``Policy.Show``."""

    preset: str = ""
    rules: tuple[PolicyRule, ...] = ()
    judged: bool = False
