"""Serve ``gpushare policy``: show what containers may have here, and what would become of one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import click

from gpushared.api.v1.admin_messages import PolicyExplanation, PolicyFinding, PolicyRules
from gpushared.cli import complete, docker_args, docker_cli
from gpushared.cli.capture import CreateRequest, capture
from gpushared.cli.docker_args import RUN_ALONE, RunArguments, split
from gpushared.cli.errors import UsageError
from gpushared.cli.listing import write_items
from gpushared.cli.options import output_option
from gpushared.client import Client

_WORDS = {"ignore_unknown_options": True, "allow_interspersed_args": False}
_JSON = click.option("--json", "as_json", is_flag=True, help="Write JSON, as -o json does.")
REFUSED = 1
_ORDER = ("refused", "set", "dropped", "allowed")
_SHOWN = 48
_LABELLED = ("gpu", "gpu-memory", "gpu-compute", "preset", "isolation", "class", "time", "project", "model")
"""Options of ``gpushare run`` that a label can say as well."""


@click.group("policy")
def policy() -> None:
    """Explain what would become of a container by this node's policy, or show the policy.

    \b
    Examples:
      gpushare policy explain -- --ipc=host -v ~/.cache:/root/.cache nvcr.io/nvidia/pytorch
      gpushare policy show
    """


@policy.command("explain", context_settings=_WORDS, short_help="Say what would become of a docker run.")
@click.option("--as", "user", default="", metavar="USER", help="Judge it as this user's; for trusted users.")
@output_option("text", "json")
@_JSON
@click.argument(
    "argv",
    shell_complete=complete.files,
    nargs=-1,
    required=True,
    type=click.UNPROCESSED,
    metavar="DOCKER-RUN-ARGUMENTS...",
)
def explain(*, user: str, output: str, as_json: bool, argv: tuple[str, ...]) -> int:
    """Say of each option of a docker run whether it is allowed, set, dropped or refused here, and why.

    Docker itself reads the words; nothing is created. The exit code is 1 where it would be refused.

    \b
    Examples:
      gpushare policy explain -- --gpus 1 --ipc=host IMAGE
      gpushare policy explain --as alice -- --user root IMAGE
      gpushare policy explain -o json -- -p 80:80 IMAGE
    """
    client = Client()
    create_request = _capture(client, argv)
    answer = client.explain_policy(create_request.body, create_request.version, user=user)
    write_items(
        "json" if as_json else output,
        "gpushare.policy-explanation/1",
        [answer.to_json()],
        _explanation_lines(answer),
        simulated=False,
    )
    return 0 if answer.passes else REFUSED


@policy.command("show", short_help="Show the rules in force.")
@output_option("text", "json")
@_JSON
def show(*, output: str, as_json: bool) -> int:
    """Show the rules in force for callers who are not trusted, and where each comes from.

    \b
    Examples:
      gpushare policy show
      gpushare policy show -o json
    """
    answer = Client().policy()
    form = "json" if as_json else output
    write_items(form, "gpushare.policy/1", [answer.to_json()], _shown_rules(answer), simulated=False)
    return 0


# --- what docker would send ----------------------------------------------------------------------------


def _capture(client: Client, argv: Sequence[str]) -> CreateRequest:
    args = split(argv, docker_args.RUN._replace(command="policy explain"))
    if not args.image:
        raise UsageError("no image was named", hint="gpushare policy explain -- --gpus 1 IMAGE")
    return capture(docker_cli.find_docker(), _create_argv(args), docker_cli.api_version_of(client))


def _create_argv(args: RunArguments) -> list[str]:
    options = args.own_options
    labels = [f"--label=gpushare.{name}={options[name]}" for name in _LABELLED if options.get(name)]
    return [*labels, *args.docker_without(*RUN_ALONE)]


# --- for people ----------------------------------------------------------------------------------------


def _explanation_lines(answer: PolicyExplanation) -> Iterator[str]:
    for finding in sorted(answer.findings, key=lambda finding: _ORDER.index(finding.verdict)):
        yield from _lines(finding)
    refused = sum(finding.verdict == "refused" for finding in answer.findings)
    if not answer.judged:
        yield "You are trusted here: only your ways to GPUs are judged. --as USER judges all."
    if answer.passes:
        yield f"It would be created, by the policy {answer.preset}."
    else:
        yield f"It would be refused, by the policy {answer.preset}: {refused} of the above."


def _lines(finding: PolicyFinding) -> Iterator[str]:
    name = finding.option or finding.field or "the request"
    values = " -> ".join(_short(value) for value in dict.fromkeys((finding.asked, finding.given)) if value)
    yield f"{finding.verdict:8}  {name:18}  {values}".rstrip()
    for more in (finding.why, finding.hint):
        if more:
            yield f"{'':8}  {'':18}  {more}"


def _short(value: str) -> str:
    return value if len(value) <= _SHOWN else f"{value[: _SHOWN - 3]}..."


def _shown_rules(answer: PolicyRules) -> Iterator[str]:
    if not answer.judged:
        yield "You are trusted here: these rules are for the others."
    names = max((len(rule.name) for rule in answer.rules), default=0)
    origins = max((len(rule.origin) for rule in answer.rules), default=0)
    for rule in answer.rules:
        yield f"{rule.name:{names}}  {rule.origin:{origins}}  {rule.value}"
