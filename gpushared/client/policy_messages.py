"""What the daemon says of its policy."""

from __future__ import annotations

from gpushared.client.messages import Message


class PolicyFinding(Message):
    """One field of a create body; ``asked`` and ``given`` are JSON, empty where nothing was."""

    field: str = ""
    option: str = ""
    verdict: str = ""
    asked: str = ""
    given: str = ""
    why: str = ""
    hint: str = ""
    may_change: bool = False


class PolicyExplanation(Message):
    """The answer of ``Policy.Explain``."""

    passes: bool = False
    findings: tuple[PolicyFinding, ...] = ()
    judged: bool = False
    preset: str = ""


class PolicyRule(Message):
    """One key below ``[gate]``; ``value`` is TOML."""

    name: str = ""
    value: str = ""
    origin: str = ""
    meaning: str = ""


class PolicyRules(Message):
    """The answer of ``Policy.Show``."""

    preset: str = ""
    rules: tuple[PolicyRule, ...] = ()
    judged: bool = False
