"""Generated from proto/ by scripts/proto; do not edit."""

from __future__ import annotations

from gpushared.api.message import Message, Time


class AuditLine(Message):
    """An audit line tells of one request."""

    number: int = 0
    # Unix seconds.
    at: float = 0.0
    uid: int = 0
    user: str = ""
    # The process that opened the connection, and its program then; 0 and empty where it was gone already.
    pid: int = 0
    executable: str = ""
    # POST, DELETE...; CALL for the daemon's own API.
    method: str = ""
    # The judged path without version and query, or the call's name.
    endpoint: str = ""
    # The container's full id.
    container: str = ""
    # The request named this.
    name: str = ""
    # SHA-256 of the body as it went on, or as it was read where it was refused.
    digest: str = ""
    # The status of the answer; 0 = there was none.
    status: int = 0
    # A refusal has a code: invalid_argument, permission_denied...; not-http, framing... for what is not a
    # proper request (docs/reference/reasons.md).
    code: str = ""
    # The refusal's sentence.
    text: str = ""
    # The line stands for so many more like it.
    more: int = 0


class AuditPage(Message):
    """Hold the answer of ``Audit.List``."""

    lines: tuple[AuditLine, ...] = ()
    # The newest line that was looked at has this number; it is "after" for the next page.
    newest: int = 0
    # The audit itself has this trouble; empty = none.
    trouble: str = ""
    simulated: bool = False


class PolicyFinding(Message):
    """A finding judges one field of a create body."""

    # The field of the create body, such as "HostConfig.IpcMode"; empty = the body as a whole.
    field: str = ""
    # This option of docker run sets the field; empty = there is none.
    option: str = ""
    # allowed, set, dropped, refused
    verdict: str = ""
    # The value in the request, in JSON; empty = there was none.
    asked: str = ""
    # The value that would be sent to the engine, in JSON; empty = there is none.
    given: str = ""
    why: str = ""
    hint: str = ""
    # The refusal depends on the present state of the engine and the system, such as a missing directory.
    may_change: bool = False


class PolicyExplanation(Message):
    """Hold the answer of ``Policy.Explain``."""

    # The container would be created.
    passes: bool = False
    findings: tuple[PolicyFinding, ...] = ()
    # The caller's containers are judged at all.
    judged: bool = False
    # open, lab, strict
    preset: str = ""


class PolicyRule(Message):
    """A rule is one key below [gate]."""

    # The key below [gate].
    name: str = ""
    # As TOML.
    value: str = ""
    # "preset lab", "configuration", "default"
    origin: str = ""
    meaning: str = ""


class PolicyRules(Message):
    """Hold the answer of ``Policy.Show``."""

    # open, lab, strict
    preset: str = ""
    rules: tuple[PolicyRule, ...] = ()
    # The caller's containers are judged at all.
    judged: bool = False


class JoinToken(Message):
    """A join token lets one machine become a node."""

    # Shown once.
    token: str = ""
    id: str = ""
    expires_at: float = 0.0
    node: str = ""
    used_by: str = ""
    realms: tuple[str, ...] = ()
    created_at: float = 0.0
    # 0 = not yet.
    used_at: Time = None
    revoked: bool = False
    made_by: str = ""


class ListJoinTokensResponse(Message):
    """Hold the answer of ``PoolAdmin.ListJoinTokens``."""

    tokens: tuple[JoinToken, ...] = ()


class ApiToken(Message):
    """An API token speaks for a person."""

    # Shown once.
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


class ListApiTokensResponse(Message):
    """Hold the answer of ``PoolAdmin.ListApiTokens``."""

    tokens: tuple[ApiToken, ...] = ()


class Revoked(Message):
    """A sentence tells people what was revoked."""

    sentence: str = ""


class NodeAnswer(Message):
    """Sentences tell people what was done about a node."""

    sentences: tuple[str, ...] = ()


class CoordinatorForgotten(Message):
    """A sentence tells people what was done."""

    sentence: str = ""


class RotateCaAnswer(Message):
    """Sentences tell people what was done, and what is next."""

    sentences: tuple[str, ...] = ()


class Trust(Message):
    """These certificates are the pool's trust anchors."""

    pool: str = ""
    # Certificates in PEM, all of which are trusted now.
    anchors: str = ""
    generation: int = 0
    # The coordinator's clock.
    now: float = 0.0


class PoolCoordinator(Message):
    """A coordinator of the pool leads it, or stands by."""

    name: str = ""
    # HOST:PORT for users and joining machines.
    address: str = ""
    # HOST:PORT for nodes.
    node_address: str = ""
    leads: bool = False
    version: str = ""
    started_at: Time = None
    # False for one that was there once and does not run now.
    runs: bool = False


class StoreMember(Message):
    """A member of the etcd that keeps the pool's store."""

    endpoint: str = ""
    # The member answers, knows etcd's leader and has no alarm.
    healthy: bool = False
    # It leads etcd.
    leads: bool = False
    version: str = ""
    size_bytes: int = 0
    # What is wrong with it, as a sentence.
    problem: str = ""


class PoolStatus(Message):
    """The coordinator is in this state."""

    pool: str = ""
    version: str = ""
    epoch: int = 0
    revision: int = 0
    # normal, settling, recovering
    phase: str = ""
    awaited_nodes: tuple[str, ...] = ()
    troubles: tuple[str, ...] = ()
    nodes: int = 0
    queued: int = 0
    running: int = 0
    started_at: Time = None
    # leader, standby
    role: str = ""
    # All coordinators that run on the store in etcd; empty with a store in a file.
    coordinators: tuple[PoolCoordinator, ...] = ()
    # file, etcd
    store: str = ""
    store_members: tuple[StoreMember, ...] = ()
    # A standby answers as the pool was so many seconds ago; 0 = a leader answers.
    age_seconds: float = 0.0


class WebLink(Message):
    """Hold the answer of ``Web.Link``."""

    # Follows the # of the link; it works once.
    code: str = ""
    valid_seconds: float = 0.0
    # The path of the page, which begins and ends with "/".
    base_path: str = ""
    # The page's own address on the network, if the request asks for that; it ends with the base path.
    url: str = ""
