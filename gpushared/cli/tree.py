"""The tree of commands as click sees it: help, completion, and the reading of everything unusual."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module

import click

from gpushared import __version__
from gpushared.cli.faults import UsageError
from gpushared.cli.listing_command import listing_command

COMMANDS = (
    "run",
    "submit",
    "jobs",
    "wait",
    "cancel",
    "ps",
    "gpus",
    "nodes",
    "drain",
    "undrain",
    "queue",
    "why",
    "offer",
    "stop",
    "resize",
    "extend",
    "hold",
    "unhold",
    "priority",
    "pause",
    "resume",
    "preempt",
    "logs",
    "attach",
    "door",
    "presets",
    "policy",
    "project",
    "audit",
    "node",
    "pool",
    "config",
    "doctor",
    "version",
    "simulate",
)
HELP_OPTIONS = {"help_option_names": ["-h", "--help"]}
USAGE = 2
_SHOWN = 40


class _Lazy(click.Group):
    """Loads a command's module when the command is used, not before."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in COMMANDS:
            return None
        module = import_module(f"gpushared.cli.{cmd_name}")
        command: click.Command = getattr(module, cmd_name, None) or listing_command(module.LISTING)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and not args[0].startswith("-") and args[0] not in COMMANDS:
            raise _unknown(args[0][:_SHOWN])
        return super().resolve_command(ctx, args)


def _unknown(name: str) -> UsageError:
    from difflib import get_close_matches

    near = get_close_matches(name, COMMANDS, n=1)
    hint = f"did you mean {near[0]}?" if near else "gpushare --help lists the commands"
    return UsageError(f"there is no command {name!r}", hint=hint)


@click.group(cls=_Lazy, context_settings=HELP_OPTIONS, no_args_is_help=True)
@click.version_option(__version__, "-V", "--version", message="gpushare %(version)s")
def cli() -> None:
    """Share the GPUs of this machine: type `gpushare run` where you typed `docker run`.

    \b
    Examples:
      gpushare run --gpu 0.25 -it --rm IMAGE CMD   a quarter of one GPU
      gpushare run --gpu 2 IMAGE CMD               two whole GPUs
      gpushare gpus                                what is free
      gpushare ps                                  who has what
      gpushare why LEASE                           why one waits
      gpushare submit --gpu 1 IMAGE CMD            a job that needs no terminal
      gpushare jobs                                what became of it

    The daemon is found through GPUSHARE_HOST=unix:///PATH, else at /run/gpushared/gpushared.sock.
    Documentation of all commands: docs/reference/commands.md.
    """  # noqa: D301 - click's mark for lines it must not join


def invoke(words: Sequence[str]) -> int:
    """Runs the words through click; its complaints become ours."""
    try:
        code = cli.main(args=list(words), prog_name="gpushare", standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)
        return USAGE
    except click.UsageError as error:
        where = error.ctx.command_path if error.ctx else "gpushare"
        message = error.format_message().rstrip(".")
        raise UsageError(message[:1].lower() + message[1:], hint=f"see {where} --help") from error
    except click.exceptions.Exit as error:
        return error.exit_code
    return code if isinstance(code, int) else 0
