"""Serve ``gpushare pool``: begin a pool and administer it, on the machine of its coordinator."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import click

from gpushared.api.v1.admin_messages import ApiToken, JoinToken, PoolStatus
from gpushared.cli import complete, table, text
from gpushared.cli.errors import UsageError, wrong_values
from gpushared.cli.listing import write_items
from gpushared.cli.options import output_option
from gpushared.cli.table import Column, Row
from gpushared.client.pool_calls import PoolClient
from gpushared.domain.model.units import parse_duration

_COLUMNS = (
    Column("id"),
    Column("kind"),
    Column("for"),
    Column("scopes"),
    Column("state"),
    Column("last used"),
    Column("description"),
)
_PHASES = {
    "normal": "places jobs",
    "settling": "has just started: jobs from before wait until all nodes have reported",
    "recovering": "recovers from a loss of memory: jobs from before wait until all nodes have reported",
}


@click.group("pool")
def pool() -> None:
    """Begin a pool of nodes and administer it, on the machine of its coordinator. This is for root.

    Members of the groups in coordinator.trusted_groups may administer it too; `init` works without a
    coordinator.

    \b
    Examples:
      gpushare pool init lab
      gpushare pool token --node ws3
      gpushare pool api-token --person ada --scope submit,read
    """


# --- init ----------------------------------------------------------------------------------------------


@pool.command("init", short_help="Begin a pool: its coordinator's files and keys.")
@click.option(
    "-c", "--config", type=click.Path(path_type=Path), metavar="PATH", help="The coordinator's configuration."
)
@click.option(
    "--state-dir", metavar="DIR", help="The directory for its files, instead of the configured one."
)
@click.option(
    "--user", metavar="USER", default="", help="The user who owns them, and as whom the coordinator runs."
)
@click.argument("name")
def init(name: str, config: Path | None, state_dir: str | None, user: str) -> int:
    """Begin a pool: make the state directory of its coordinator, with a certificate authority in it.

    NAME is up to 32 small letters, digits and dashes, and stays. The key of the authority never leaves the
    directory; back it up where nobody else reads it.

    \b
    Examples:
      sudo gpushare pool init lab
    """
    from gpushared.config.pool_settings import POOL, load_pool
    from gpushared.pool.trust.pool_init import found_pool

    settings = load_pool(config or POOL.path, environ=os.environ, must_exist=config is not None)
    folder = Path(state_dir or settings.coordinator.state_dir)
    pool_files = found_pool(folder, name, time.time(), user)
    click.echo(f"pool {name} begins in {folder}, owned by {pool_files.user}")
    click.echo(f"its authority is {pool_files.digest}")
    click.echo("next:")
    click.echo("  systemctl enable --now gpushared-pool    start the coordinator")
    click.echo("  gpushare pool token --node NAME          let a machine join; it prints what to do there")
    return 0


# --- tokens --------------------------------------------------------------------------------------------


def _seconds(valid: str) -> int:
    with wrong_values("--valid"):
        return parse_duration(valid) if valid else 0


@pool.command("token", short_help="Make a token with which one machine may join.")
@click.option("--node", metavar="NAME", default="", help="Only for a node of this name.")
@click.option("--valid", metavar="TIME", default="1h", help="How long it may be used.", show_default=True)
@click.option(
    "--realm",
    "realms",
    metavar="REALM",
    multiple=True,
    help="A further realm for whose users the node may speak.",
)
@click.option("-q", "--quiet", is_flag=True, help="Print the token alone.")
def token(node: str, valid: str, realms: tuple[str, ...], quiet: bool) -> int:
    """Make a token with which one machine may join the pool, once. It is shown only now.

    Keep it in a file that only root reads. It also tells the machine which coordinator to trust. A node
    speaks for the users of the realm of its own name; several that have the same accounts share a realm. With
    --node of a member the machine takes that member's place.

    \b
    Examples:
      gpushare pool token --node ws3
      gpushare pool token --node ws3 --realm cluster --valid 1d -q > token
    """
    new_token = PoolClient().create_join_token(node=node, realms=realms, valid_seconds=_seconds(valid))
    click.echo(new_token.token)
    if not quiet:
        name = f" --name {new_token.node}" if new_token.node else ""
        click.echo(
            f"it is good for one machine, until {text.clock(new_token.expires_at, time.time())}; there, with the "
            f"line above in a file:\n  gpushare node join {os.uname().nodename} --token-file FILE{name}",
            err=True,
        )
    return 0


@pool.command("api-token", short_help="Make a token with which a pipeline works.")
@click.option(
    "--person", metavar="PERSON", required=True, help="The person that it speaks for: ada, or ada@ws3."
)
@click.option(
    "--scope",
    "scopes",
    metavar="SCOPE,...",
    multiple=True,
    help="submit, read, cancel, logs, admin  [default: all but admin]",
)
@click.option(
    "--valid", metavar="TIME", default="12h", help="How long it is valid, at most 366d.", show_default=True
)
@click.option("--description", metavar="TEXT", default="", help="One line that says what it is for.")
@click.option("-q", "--quiet", is_flag=True, help="Print the token alone.")
def api_token(person: str, scopes: tuple[str, ...], valid: str, description: str, quiet: bool) -> int:
    """Make a token with which a program works in the pool for a person. It is shown only now.

    Only its hash is kept. The scope admin is for the admins of the coordinator's configuration.

    \b
    Examples:
      gpushare pool api-token --person ada --scope submit,read --valid 12h
      gpushare pool api-token --person ci --valid 30d --description "nightly tests" -q > token
    """
    scope_names = [name.strip() for scope in scopes for name in scope.split(",") if name.strip()]
    new_token = PoolClient().create_api_token(
        person=person, scopes=scope_names, valid_seconds=_seconds(valid), description=description
    )
    click.echo(new_token.token)
    if not quiet:
        until = time.strftime("%Y-%m-%d %H:%M", time.localtime(new_token.expires_at))
        click.echo(
            f"it speaks for {new_token.person} ({', '.join(new_token.scopes)}) until {until}; to end it before: "
            f"gpushare pool revoke {new_token.id}",
            err=True,
        )
    return 0


@pool.command("tokens", short_help="List the tokens, without their secrets.")
@output_option("table", "json")
def tokens(output: str) -> int:
    """List the tokens, without their secrets: those that count, and those that ended within a week.

    \b
    Examples:
      gpushare pool tokens
      gpushare pool tokens -o json
    """
    client, now = PoolClient(), time.time()
    join_tokens, api_tokens = client.join_tokens(), client.api_tokens()
    items = [{"kind": "join", **token.to_json()} for token in join_tokens]
    items += [{"kind": "api", **token.to_json()} for token in api_tokens]
    rows = [_join_row(token, now) for token in join_tokens] + [_api_row(token, now) for token in api_tokens]
    lines = table.lines(_COLUMNS, rows, headers=True, colour=False)
    write_items(output, "gpushare.tokens/1", items, lines)
    return 0


def _join_row(token: JoinToken, now: float) -> Row:
    state = f"used by {token.used_by}" if token.used_at else _state(token.revoked, token.expires_at, now)
    return {
        "id": token.id,
        "kind": "join",
        "for": token.node or "any node",
        "state": state,
        "last used": _ago(token.used_at, now),
        "description": f"realms {','.join(token.realms)}" if token.realms else "",
    }


def _api_row(token: ApiToken, now: float) -> Row:
    return {
        "id": token.id,
        "kind": "api",
        "for": token.person,
        "scopes": ",".join(token.scopes),
        "state": _state(token.revoked, token.expires_at, now),
        "last used": _ago(token.used_at, now),
        "description": token.description,
    }


def _state(revoked: bool, expires_at: float, now: float) -> str:
    if revoked:
        return "revoked"
    return f"{text.span(expires_at - now)} left" if now < expires_at else "expired"


def _ago(moment: float | None, now: float) -> str:
    return "" if moment is None else f"{text.span(now - moment)} ago"


@pool.command("revoke", short_help="Revoke a token, or a node's certificates.")
@click.option(
    "--node",
    shell_complete=complete.nodes,
    metavar="NAME",
    default="",
    help="Revoke this node's certificates instead of a token.",
)
@click.argument("token_id", metavar="ID", required=False, default="")
def revoke(token_id: str, node: str) -> int:
    """Revoke a token of either kind. `gpushare pool tokens` shows the ids.

    A node that has joined needs its token no more: --node revokes its certificates, and cuts it off at once.
    It may join again with a token for its name.

    \b
    Examples:
      gpushare pool revoke k3f7q2aa
      gpushare pool revoke --node ws3
    """
    if bool(token_id) == bool(node):
        raise UsageError("name a token, or a node with --node", hint="`gpushare pool tokens` shows the ids")
    client = PoolClient()
    click.echo(text.printable(client.revoke_node(node) if node else client.revoke_token(token_id)))
    return 0


@pool.command("forget", short_help="Take a retired coordinator out of the list.")
@click.argument("coordinator", metavar="COORDINATOR")
def forget(coordinator: str) -> int:
    """Take a coordinator that will not run any more out of the list that nodes and programs have.

    Only the coordinator that leads does it. A node is forgotten with `gpushare node forget`.

    \b
    Examples:
      gpushare pool forget h3
    """
    click.echo(text.printable(PoolClient().forget_coordinator(coordinator)))
    return 0


# --- the authority and the coordinator -----------------------------------------------------------------


@pool.command("anchors", short_help="Print the certificates that programs trust.")
def anchors() -> int:
    """Print the certificates by which programs with API tokens know the coordinator.

    They are not secret, but must reach the program unchanged. They change when the authority is replaced.

    \b
    Examples:
      gpushare pool anchors > lab.pem
    """
    click.echo(PoolClient().anchors().decode(), nl=False)
    return 0


@pool.command("rotate-ca", short_help="Replace the pool's authority in two steps.")
@click.option("--finish", is_flag=True, help="Take the second step: drop the old authority.")
def rotate_ca(finish: bool) -> int:
    """Replace the pool's certificate authority, without a restart of anything.

    First all nodes trust a new one beside the old one, and get certificates of it. With --finish, which is
    refused while a node has none yet, the old one is dropped.

    \b
    Examples:
      gpushare pool rotate-ca
      gpushare pool rotate-ca --finish
    """
    for sentence in PoolClient().rotate_ca(finish=finish):
        click.echo(text.printable(sentence))
    return 0


@pool.command("status", short_help="Show the coordinator's state.")
@output_option("text", "json")
def status(output: str) -> int:
    """Show the coordinator's state, and what it waits for; on its machine, or to admins on any node.

    \b
    Examples:
      gpushare pool status
      gpushare pool status -o json
    """
    answer = PoolClient().status()
    write_items(output, "gpushare.pool/1", [answer.to_json()], list(_status_lines(answer)))
    return 0


def _status_lines(status: PoolStatus) -> Iterator[str]:
    stands_by = status.role == "standby"
    yield from (
        f"pool {status.pool}: "
        + ("this coordinator stands by" if stands_by else _PHASES.get(status.phase, status.phase)),
        f"  nodes    {status.nodes}",
        f"  jobs     {status.running} running, {status.queued} queued",
        f"  since    {text.span(time.time() - (status.started_at or time.time()))}, epoch {status.epoch}",
    )
    if stands_by:
        yield f"  age      {status.age_seconds:.1f} s: how old what this one knows is"
    for coordinator in status.coordinators:
        role = "leads" if coordinator.leads else "standby" if coordinator.runs else "away"
        yield f"  {role:8} {coordinator.name} ({coordinator.address}), gpushared {coordinator.version}"
    if status.store_members:
        healthy = sum(member.healthy for member in status.store_members)
        yield f"  store    etcd, {healthy} of {len(status.store_members)} members healthy"
    for member in status.store_members:
        leads = ", leads" if member.leads else ""
        size = f"{member.version}, {member.size_bytes / 2**20:.0f} MiB{leads}" if member.version else ""
        facts = "; ".join(filter(None, [size, member.problem])) or "serves; its version is not told"
        yield f"  etcd     {member.endpoint}: {facts}"
    yield from (f"  waits    for node {node}" for node in status.awaited_nodes)
    yield from (f"  trouble  {trouble}" for trouble in status.troubles)
