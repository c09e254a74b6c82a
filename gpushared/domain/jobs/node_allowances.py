"""Work out what each node may give of the pool's limits by itself, anew before each pass over the queue.

A node's share changes in steps. Each step is durable before it is sent, and the next step begins only when
the node has acknowledged the one before. So the node goes by one of two known shares, however late messages
are. For a silent node the larger share counts, without end: a lease that the node gave lasts, whatever the
node was allowed afterwards. Only an administrator's word that the node is off gives that share back.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import replace

from gpushared.domain.jobs.coordinator_events import TellAllowance
from gpushared.domain.jobs.coordinator_rules import PoolRules, WhenCutOff
from gpushared.domain.jobs.coordinator_state import PoolDraft, PoolState
from gpushared.domain.jobs.job import NodeName
from gpushared.domain.jobs.limit_shares import LimitUse, NodeLimitUse, shared_out
from gpushared.domain.jobs.liveness import beat_seconds
from gpushared.domain.jobs.member import Member, NodeAllowance, SentAllowance
from gpushared.domain.jobs.node_holdings import part_id
from gpushared.domain.jobs.pending_jobs import JobShape
from gpushared.domain.jobs.quota_owners import NOBODYS, payer_of
from gpushared.domain.model.gpu import WHOLE_PERMILLE
from gpushared.domain.model.lease import JobId
from gpushared.domain.model.request import LeaseClass, Request
from gpushared.domain.scheduling.allowance import Share, ShareNeed
from gpushared.domain.scheduling.gpu_amounts import Sizes
from gpushared.domain.scheduling.holder_index import HolderIndex
from gpushared.domain.scheduling.pass_records import RunningLease, WaitReason
from gpushared.domain.scheduling.projects import Policy, Project

Key = tuple[str, str]
"""A project, and the model that the limit is of; empty for all models together."""
Books = Mapping[Key, LimitUse]
Users = Mapping[str, tuple[str, ...]]

VALID_BEATS = 12
"""No node is taken for cut off before so many beats."""


def are_any(policy: Policy, state: PoolState) -> bool:
    """Return True if there is a limit, or if a node still knows of a former limit."""
    return state.lends or any(_limits(project) for project in policy.projects.values())


def share_out(policy: Policy, roll: HolderIndex, pressed: frozenset[str], draft: PoolDraft) -> None:
    """Tell nodes what they may give from now on, and the roll what that takes off the limits.

    ``pressed``: the projects whose jobs wait because of a limit.
    """
    users = _users_by_realm(policy, draft.rules)
    here = {name: _users_of(member, users) for name, member in draft.state.members.items()}
    books = books_of(policy, roll, here, draft.state)
    shares = {key: shared_out(book, pressed=key[0] in pressed) for key, book in books.items()}
    for name, member in draft.state.members.items():
        if _can_be_told(member, draft.state):
            _tell(member, _said(name, shares, here[name], draft), draft)
    draft.state.lends = any(is_lent(member) for member in draft.state.members.values())
    lent = {key: book.lent + book.unseen for key, book in books_of(policy, roll, here, draft.state).items()}
    roll.lent = {key: amount for key, amount in lent.items() if amount}


def pressed_projects(state: PoolState) -> frozenset[str]:
    """The projects whose jobs waited for a limit in the last pass."""
    found = set()
    for lease, verdict in state.verdicts.items():
        if verdict.reason is WaitReason.PROJECT_LIMIT:
            job = None if isinstance(lease, JobShape) else state.jobs.get(JobId(lease))
            found.add(lease.project if isinstance(lease, JobShape) else job.project if job else "")
    return frozenset(found)


def _tell(member: Member, said: NodeAllowance, draft: PoolDraft) -> None:
    known = member.free.allowed.revision if member.free.allowed is not None else 0
    told = member.told or SentAllowance(0, NodeAllowance())
    if told.now == said and known <= told.revision:
        return
    step = SentAllowance(max(known, told.revision) + 1, said, before=told.now.shares)
    draft.put_member(replace(member, told=step))
    draft.do(TellAllowance(member.name))


def is_lent(member: Member) -> bool:
    """Return True if a node may know of a share that it may give by itself."""
    return member.told is not None and (member.told.now != NodeAllowance() or not _knows(member))


def _can_be_told(member: Member, state: PoolState) -> bool:
    """Return True if the node keeps to allowances, is connected, and knows all that it was sent before."""
    return member.connected and member.name in state.reported and _knows(member)


def _knows(member: Member) -> bool:
    allowed, told = member.free.allowed, member.told
    return allowed is not None and (told is None or allowed.revision >= told.revision)


def _said(
    node: NodeName, shares: Mapping[Key, Mapping[NodeName, int]], users: Users, draft: PoolDraft
) -> NodeAllowance:
    mine = tuple(
        Share(project, model, found[node])
        for (project, model), found in sorted(shares.items())
        if node in found
    )
    return NodeAllowance(mine, users, _valid_seconds(draft) if mine else 0.0)


def _valid_seconds(draft: PoolDraft) -> float:
    rules = draft.rules
    if rules.when_cut_off is WhenCutOff.SERVE:
        return 0.0
    return max(rules.cut_off_seconds, VALID_BEATS * beat_seconds(len(draft.state.members), rules))


# --- the books -----------------------------------------------------------------------------------------


def books_of(policy: Policy, roll: HolderIndex, users: Mapping[NodeName, Users], state: PoolState) -> Books:
    """Return, for every limit, what the nodes hold of it and what they may give."""
    books = {
        (one.name, model): LimitUse(limit)
        for one in policy.projects.values()
        for model, limit in _limits(one).items()
    }
    for name, member in state.members.items():
        _enter_node(member, users.get(name, {}), books, state)
    builds: dict[Key, int] = defaultdict(int)
    for holder in roll.holders() if books else ():
        _enter_holder(holder, roll.sizes(holder.lease.id), books, builds)
    _enter_unseen(roll, books, state)
    for (project, model), book in books.items():
        book.kept = _kept(policy.projects[project], model, builds)
    return books


def _limits(project: Project) -> Mapping[str, int]:
    return {model: quota.limit for model, quota in project.quotas() if quota.limit is not None}


def _enter_node(member: Member, users: Users, books: Books, state: PoolState) -> None:
    """A node that has a share, or may have one."""
    allowed, told = member.free.allowed, member.told
    shares = list(told.now.shares) if told is not None else []
    if told is not None and not _knows(member):
        shares += told.before
    projects = {project for names in users.values() for project in names} if allowed is not None else set()
    wants = {(want.project, want.model): want for want in (allowed.wants if allowed is not None else ())}
    for key, book in books.items():
        most = max((one.permille for one in shares if (one.project, one.model) == key), default=None)
        if most is None and key[0] not in projects:
            continue
        want = wants.get(key, ShareNeed(*key, 0, 0))
        book.nodes[member.name] = NodeLimitUse(
            share=most or 0,
            least=want.least_permille,
            wanted=want.all_permille,
            gpus=_gpus(member, key[1]),
            open=key[0] in projects and _can_be_told(member, state),
        )


def _gpus(member: Member, model: str) -> int:
    """Return the permille that the node's GPUs of a model count for; an empty model means all GPUs."""
    gpus = member.inventory.gpus if member.inventory is not None else ()
    return WHOLE_PERMILLE * sum(model in ("", gpu.name) for gpu in gpus)


def _enter_holder(holder: RunningLease, sizes: Sizes, books: Books, builds: dict[Key, int]) -> None:
    for model, size in sizes.items():
        for key in dict.fromkeys(((holder.project, ""), (holder.project, model))):
            if holder.lease.request.lease_class is LeaseClass.BUILD:
                builds[key] += size
            book = books.get(key)
            if book is None:
                continue
            if not holder.stays:
                book.held += size
                continue
            node = NodeName(holder.lease.id.partition("/")[0])
            book.nodes.setdefault(node, NodeLimitUse()).held += size


def _enter_unseen(roll: HolderIndex, books: Books, state: PoolState) -> None:
    """Parts under way of which a coordinator that started anew does not know yet what they hold."""
    limited = {project for project, _ in books}
    seen = {holder.lease.id for holder in roll.holders()} if books else set()
    for node, names in state.by_node.items() if books else ():
        for job in (state.jobs[name] for name in names):
            if payer_of(job) == NOBODYS:
                continue
            part = next(part for part in job.parts if part.node == node)
            if job.project in limited and part_id(job, part) not in seen:
                for key, book in books.items():
                    book.unseen += _most_of(part.request) if key[0] == job.project else 0


def _most_of(request: Request) -> int:
    """Return the most that a request can count for, on whatever GPUs it runs."""
    shares = (request.compute_permille, request.memory_permille)
    known = request.memory_bytes is None and any(share is not None for share in shares)
    each = max(share or 0 for share in shares) if known else WHOLE_PERMILLE
    return (len(request.gpus) or request.gpu_count) * each


def _kept(project: Project, model: str, builds: Mapping[Key, int]) -> int:
    """Return the share that is fixed for build work and that nobody holds: it comes off the limits."""
    models = [model] if model else [name for name, _ in project.quotas()]
    return sum(max(0, project.quota_of(name).fixed - _built(project, name, builds)) for name in models)


def _built(project: Project, model: str, builds: Mapping[Key, int]) -> int:
    if model:
        return builds.get((project.name, model), 0)
    return builds.get((project.name, ""), 0) - sum(
        builds.get((project.name, one), 0) for one in project.models
    )


# --- who is who ----------------------------------------------------------------------------------------


def _users_by_realm(policy: Policy, rules: PoolRules) -> Mapping[str, dict[str, tuple[str, ...]]]:
    """Return, by realm and principal, the projects of each member of a limited project, in order."""
    limited = {one.name for one in policy.projects.values() if _limits(one)}
    projects: dict[str, list[str]] = defaultdict(list)
    for project in policy.projects.values():
        for person in sorted(project.users):
            projects[person].append(project.name)
    found: dict[str, dict[str, tuple[str, ...]]] = defaultdict(dict)
    for person, names in projects.items():
        if limited.isdisjoint(names):
            continue
        for principal in _principals(person, rules):
            found[principal.partition("@")[2]][principal] = tuple(names)
    return found


def _principals(person: str, rules: PoolRules) -> Iterable[str]:
    if "@" in person:
        return (person,)
    taken = {one for name, several in rules.principals.items() if name != person for one in several}
    common = {f"{person}@{realm}" for realm in rules.common_realms} - taken
    return sorted({*rules.principals.get(person, ()), *common})


def _users_of(member: Member, by_realm: Mapping[str, Mapping[str, tuple[str, ...]]]) -> Users:
    """Return the principals for whom a node may speak, each with their projects."""
    found: dict[str, tuple[str, ...]] = {}
    for realm in sorted({member.name, *member.realms}):
        found |= by_realm.get(realm, {})
    return dict(sorted(found.items()))
