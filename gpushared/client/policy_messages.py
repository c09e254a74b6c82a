"""Define the daemon's messages about its policy."""

from __future__ import annotations

from gpushared.client.messages import Message


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
