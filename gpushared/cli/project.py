"""Serve ``gpushare project``: show who shares which quota, what they hold and used, and set it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import click

from gpushared.cli import complete, text
from gpushared.cli.errors import UsageError, wrong_values
from gpushared.cli.listing import Listing, Options, Screen, write_items
from gpushared.cli.listing_command import listing_command
from gpushared.cli.options import output_option
from gpushared.cli.ps import share
from gpushared.cli.table import Column, Row
from gpushared.client import Client, IdlePolicy, Lease, Project, Quota
from gpushared.domain.model.errors import NotFound
from gpushared.domain.model.units import format_duration, parse_gpus, shown

NO_LIMIT = "none"
HOUR_SECONDS = 3600
_ORIGINS = {
    "set": "set at run time",
    "config": "as configured",
    "user": "a user's own, with nothing guaranteed",
}
_ENDS = {"suspend": "suspended", "stop": "stopped"}


@click.group("project")
def project() -> None:
    """Show or set projects: who shares which quota, what they hold, and what they used lately.

    A user in no project has one of their own, with nothing guaranteed.

    \b
    Examples:
      gpushare project ls
      gpushare project show vision
      gpushare project set vision --guaranteed 2 --limit 4 --user alice --user bob
    """


# --- ls ------------------------------------------------------------------------------------------------


def _rows(project: Project) -> Iterator[Row]:
    """Return a row for the project, and one for each model with a quota of its own."""
    general, *models = project.quotas or (Quota({}),)
    yield {
        "project": project.name,
        "members": ",".join(project.users),
        "weight": f"{project.weight:g}",
        **_quota_cells(general),
        "holds": text.share(project.held_permille),
        "used": f"{project.decayed_gpu_seconds / HOUR_SECONDS:.1f}",
        "share": f"{project.use_ratio:.0%}",
        "waits": str(len(project.waiting)),
        "origin": project.origin,
    }
    for quota in models:
        name = f"  on {quota.model}"
        yield {"project": name, **_quota_cells(quota), "holds": text.share(quota.held_permille)}


def _quota_cells(quota: Quota) -> Row:
    limit = quota.limit_permille
    return {
        "guaranteed": text.share(quota.guaranteed_permille),
        "limit": "" if limit is None else text.share(limit),
        "fixed": text.share(quota.fixed_permille),
    }


def fetch(client: Client, options: Options) -> Screen:  # noqa: ARG001 - a listing's signature
    answer = client.projects()
    return Screen(
        rows=[row for project in answer.projects for row in _rows(project)],
        items=[project.to_json() for project in answer.projects],
        ids=[project.name for project in answer.projects],
        simulated=answer.simulated,
    )


LISTING = Listing(
    name="ls",
    details="""A project gets GUARANTEED GPUs whenever it asks, never exceeds LIMIT, and has FIXED kept free
for its build work. USED is in GPU-hours, and older use counts less; SHARE is its part of all use. A user
in no project is listed while they hold, wait or have used something.

\b
Examples:
  gpushare project ls
  gpushare project ls -o json
""",
    schema="gpushare.projects/1",
    columns=(
        Column("project"),
        Column("members"),
        Column("weight", right=True),
        Column("guaranteed", right=True),
        Column("limit", right=True),
        Column("fixed", right=True),
        Column("holds", right=True),
        Column("used", right=True),
        Column("share", right=True),
        Column("waits", right=True, wide=True),
        Column("origin", wide=True),
    ),
    fetch=fetch,
)


project.add_command(listing_command(LISTING, "Show the projects, what they hold and what they used."))


# --- show ----------------------------------------------------------------------------------------------


@project.command("show", short_help="Show one project, its leases and what waits.")
@output_option("text", "json")
@click.argument("name", shell_complete=complete.projects)
def show(name: str, output: str) -> int:
    """Show one project: its quotas, who of it holds what, and what waits and why.

    IDLE tells what happens to its leases that do nothing on their GPUs, and QUIET tells it for quiet times.

    \b
    Examples:
      gpushare project show vision
      gpushare project show vision -o json
    """
    client = Client()
    answer = client.projects()
    project = next((project for project in answer.projects if project.name == name), None)
    if project is None:
        raise NotFound(f"there is no project {shown(name)}", hint="`gpushare project ls` lists them")
    leases = [lease for lease in client.leases().leases if lease.project == name]
    item = {**project.to_json(), "leases": [lease.to_json() for lease in leases]}
    idle = [*_idle("idle", project.idle), *_idle("quiet", project.quiet_idle)]
    lines = [*_facts(project), *idle, *_leases(leases)]
    write_items(output, "gpushare.project/1", [item], lines, simulated=answer.simulated)
    return 0


def _facts(project: Project) -> Iterator[str]:
    yield f"{project.name}: {_ORIGINS.get(project.origin, project.origin)}"
    yield f"  members  {', '.join(project.users) or text.MISSING}"
    yield f"  weight   {project.weight:g}"
    for quota in project.quotas:
        where = f" on {quota.model}" if quota.model else ""
        yield f"  quota    {quota_text(quota)}{where}; holds {text.share(quota.held_permille)}"
    used = project.decayed_gpu_seconds / HOUR_SECONDS
    yield f"  used     {used:.1f} GPU-hours lately, {project.use_ratio:.0%} of all"


def quota_text(quota: Quota) -> str:
    """Return ``guaranteed 2, limit 4, fixed 1``."""
    parts = [f"guaranteed {text.share(quota.guaranteed_permille)}"]
    limit = quota.limit_permille
    parts.append("no limit" if limit is None else f"limit {text.share(limit)}")
    parts += [f"fixed {text.share(quota.fixed_permille)}"] if quota.fixed_permille else []
    return ", ".join(parts)


def _idle(title: str, policies: Iterable[IdlePolicy]) -> Iterator[str]:
    """Word the idle policies, with classes of the same policy on one line."""
    classes: dict[str, list[str]] = {}
    for policy in policies:
        classes.setdefault(_idle_text(policy), []).append(policy.lease_class)
    for schedule, names in classes.items():
        yield f"  {title:7}  {', '.join(names)}: {schedule}"


def _idle_text(policy: IdlePolicy) -> str:
    """Return ``told after 30m, lowered after 1h, suspended after 2h``."""
    steps = [f"told after {format_duration(policy.warn_seconds)}"] if policy.warn_seconds else []
    steps += [f"lowered after {format_duration(policy.lower_seconds)}"] if policy.lower_seconds else []
    ends = _ENDS.get(policy.action)
    steps += [f"{ends} after {format_duration(policy.action_seconds)}"] if ends else []
    return ", ".join(steps) or "nothing is done"


def _leases(leases: list[Lease]) -> Iterator[str]:
    for lease in leases:
        if lease.grants:
            gpus = ",".join(text.gpu(grant.gpu_label, grant.gpu_index) for grant in lease.grants)
            yield f"  holds    {lease.id} of {lease.owner}: {share(lease)} on GPU {gpus}, {lease.lease_class}"
    for lease in leases:
        if (waits := lease.waiting) is not None:
            why = waits.text or waits.reason
            yield f"  waits    {lease.id} of {lease.owner}: {lease.asks}, {lease.lease_class}: {why}"


# --- set -----------------------------------------------------------------------------------------------


@project.command("set", short_help="Set a project's quota, weight or members.")
@click.option("--guaranteed", metavar="GPUS", default="", help="GPUs that it gets whenever it asks: 2, 1.5.")
@click.option("--limit", metavar="GPUS", default="", help="GPUs that it never exceeds, or none.")
@click.option(
    "--fixed", metavar="GPUS", default="", help="Further GPUs that are kept free for its build work."
)
@click.option("--weight", type=float, metavar="NUMBER", help="Its weight when projects share the rest.")
@click.option(
    "--user", "users", multiple=True, metavar="NAME", help="A member; the given ones replace those before."
)
@click.option("--no-users", is_flag=True, help="Remove all members.")
@click.option("--model", metavar="MODEL", default="", help="Set the quota for the GPUs of this model alone.")
@click.option("--unset", is_flag=True, help="Go back to the configuration; with --model, drop that quota.")
@click.argument("name", shell_complete=complete.projects)
def set_(
    name: str,
    guaranteed: str,
    limit: str,
    fixed: str,
    weight: float | None,
    users: tuple[str, ...],
    no_users: bool,
    model: str,
    unset: bool,
) -> int:
    """Set a project's quota, weight or members. Only for root and trusted groups.

    Options that are left out change nothing. The change holds from now on, through restarts, and wins over
    the configuration. A guarantee that could not be kept is refused. Running leases go on, and give way where
    they are over quota.

    \b
    Examples:
      gpushare project set vision --guaranteed 2 --limit 4 --user alice --user bob
      gpushare project set vision --model "NVIDIA H100 80GB HBM3" --fixed 1
      gpushare project set vision --limit none
      gpushare project set vision --unset
    """
    quota = {"guaranteed": guaranteed, "limit": limit, "fixed": fixed}
    has_values = bool(any(quota.values()) or weight is not None or users or no_users)
    _check_options(has_values=has_values, unset=unset, both=no_users and bool(users))
    for option, amount in quota.items():
        if amount and (option, amount) != ("limit", NO_LIMIT):
            with wrong_values(f"--{option}"):
                parse_gpus(amount)
    members = () if no_users else users or None
    updated = Client().set_project(name, weight=weight, users=members, model=model, unset=unset, **quota)
    for line in _facts(updated):
        click.echo(text.printable(line))
    return 0


def _check_options(*, has_values: bool, unset: bool, both: bool) -> None:
    if both:
        raise UsageError("--user and --no-users exclude each other", hint="leave one of them out")
    if unset and has_values:
        raise UsageError(
            "--unset goes with no option but --model", hint="first --unset, then set anew in a second call"
        )
    if not (has_values or unset):
        raise UsageError("no option says what to set", hint="gpushare project set NAME --guaranteed 2")
