"""Set projects while the node runs; an administrator's settings win over the configuration."""

from __future__ import annotations

import difflib
import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace

from gpushared.domain.leases.events import ProjectSet
from gpushared.domain.leases.node_state import Draft
from gpushared.domain.model.errors import (
    NotFound,
    PermissionRefused,
    RequestError,
    StateConflict,
)
from gpushared.domain.model.gpu import (
    WHOLE_PERMILLE,
    Gpu,
    GpuId,
    check_any,
)
from gpushared.domain.model.units import shown
from gpushared.domain.scheduling.projects import (
    Policy,
    Project,
    Quota,
    problems,
)

MAX_USERS = 1000
MIN_WEIGHT, MAX_WEIGHT = 0.001, 1000.0
MAX_PROJECTS = 1000

_PROJECT = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,31}", re.ASCII)
_USER = re.compile(r"[^\s:,/?=]{1,64}")
"""``=?`` begins an encoded word in the headers of mails."""
PROJECT_NAME_HINT = "use up to 32 letters, digits and _ . -"


def is_project_name(text: str) -> bool:
    return _PROJECT.fullmatch(text) is not None


def is_user_name(text: str) -> bool:
    """Return True if the text may be a user's name; the machine decides which users exist."""
    return _USER.fullmatch(text) is not None and text.isprintable()


def capacity_of(gpus: Mapping[GpuId, Gpu]) -> dict[str, int]:
    """Return each model's GPUs in permille, those out of order too; a split GPU counts by its instances."""
    permille_by_model: dict[str, int] = defaultdict(int)
    for gpu in gpus.values():
        if gpu.mig is not None:
            permille_by_model[gpu.name] += max(gpu.mig.memory_permille, gpu.mig.compute_permille)
        elif not gpu.split:
            permille_by_model[gpu.name] += WHOLE_PERMILLE
    return dict(permille_by_model)


def set_project(event: ProjectSet, draft: Draft) -> None:
    """Set a project as the administrator says.

    Raises PermissionRefused, RequestError, NotFound, or StateConflict for a promise that could not be kept.
    """
    if not event.caller.trusted:
        raise PermissionRefused(
            "only administrators may set projects", hint="be root, or in the docker group"
        )
    if not is_project_name(event.project):
        raise RequestError(f"{shown(event.project)} cannot be a project's name", hint=PROJECT_NAME_HINT)
    policy = draft.view().policy
    before = policy.projects.get(event.project)
    if event.unset and not event.model:
        _unset(event.project, draft)
        return
    project = _changed(event, before or Project(event.project), draft)
    if before is None and len(policy.projects) >= MAX_PROJECTS:
        raise RequestError(f"there are {MAX_PROJECTS} projects already", hint="unset one that is not used")
    _check(project, before, policy, draft)
    draft.projects = dict(sorted({**draft.projects, event.project: project}.items()))


def _unset(name: str, draft: Draft) -> None:
    """Return a project to the configuration's settings, or remove it if the configuration has none."""
    if name not in draft.view().policy.projects:
        raise NotFound(f"there is no project {shown(name)}", hint="`gpushare project ls` lists them")
    if name not in draft.projects:
        raise StateConflict(
            f"project {name} is as the configuration has it", hint="change the daemon's configuration"
        )
    draft.projects = {project: value for project, value in draft.projects.items() if project != name}


def _changed(event: ProjectSet, project: Project, draft: Draft) -> Project:
    """Return the project with the event's fields; other fields stay as they are."""
    if event.weight is not None:
        _check_weight(event.weight)
        project = replace(project, weight=event.weight)
    if event.users is not None:
        project = replace(project, users=_users(event.users))
    if event.unset:
        quotas = {model: quota for model, quota in project.models.items() if model != event.model}
        return replace(project, models=quotas)
    quota = _quota(event, project.quota_of(event.model))
    if not event.model:
        return replace(project, quota=quota)
    if event.model not in project.models:
        _check_model(event.model, draft)
        quota = _quota(event, Quota())
    return replace(project, models={**project.models, event.model: quota})


def _check_weight(weight: float) -> None:
    if not MIN_WEIGHT <= weight <= MAX_WEIGHT:
        raise RequestError(
            f"{weight:g} is not possible as a weight", hint=f"give {MIN_WEIGHT:g} to {MAX_WEIGHT:g}"
        )


def _users(names: tuple[str, ...]) -> frozenset[str]:
    wrong = next((name for name in names if not is_user_name(name)), None)
    if wrong is not None:
        raise RequestError(
            f"{shown(wrong)} is not the name of a user", hint="give names as `id -un` says them"
        )
    if len(names) > MAX_USERS:
        raise RequestError(f"{len(names)} users are too many for a project", hint=f"name at most {MAX_USERS}")
    return frozenset(names)


def _quota(event: ProjectSet, quota: Quota) -> Quota:
    limit = quota.limit if event.limit is None else event.limit
    return Quota(
        quota.guaranteed if event.guaranteed is None else event.guaranteed,
        None if event.no_limit else limit,
        quota.fixed if event.fixed is None else event.fixed,
    )


def _check_model(model: str, draft: Draft) -> None:
    """Raise NotFound for a model that no GPU of this node has, which is most likely a slip of the pen."""
    models = capacity_of(draft.gpus)
    if model in models:
        return
    check_any(draft.gpus)
    near = difflib.get_close_matches(model[:96], models, n=1)
    names = ", ".join(sorted(models)) or "none is seen"
    hint = f"did you mean {near[0]!r}?" if near else f"models: {names}"
    raise NotFound(f"this node has no GPU of model {shown(model)}", hint=hint)


def _check(project: Project, before: Project | None, policy: Policy, draft: Draft) -> None:
    """Raise StateConflict for a project that promises more than there is.

    A project that promises no more than before may stay impossible, since GPUs get lost as well.
    """
    more = _promised(project) > _promised(before) if before is not None else True
    after = replace(policy, projects={**policy.projects, project.name: project})
    broken_promises = problems(after, capacity_of(draft.gpus) if more else {})
    if broken_promises:
        raise StateConflict("; ".join(broken_promises), hint="`gpushare project ls` shows what is promised")


def _promised(project: Project) -> int:
    return sum(quota.guaranteed + quota.fixed for _, quota in project.quotas())
