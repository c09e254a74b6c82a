"""Build click's tree of commands: help, completion, and the reading of all unusual arguments."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING

import click

from gpushared import __version__
from gpushared.cli.errors import UsageError

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

COMMANDS = {
    "run": "Run a container on a part of a GPU.",
    "submit": "Queue a container as a job that needs no terminal.",
    "jobs": "Show jobs: what was submitted, where it runs, why it waits.",
    "wait": "Wait until jobs are over, and exit with their code.",
    "cancel": "End jobs, whatever their state.",
    "ps": "Show the leases of this node.",
    "gpus": "Show the GPUs of this node, what is used and what is free.",
    "nodes": "Show the machines of the pool, what is known of each, and since when.",
    "top": "Show GPUs, leases and the queue, and keep showing them.",
    "drain": "Give no new leases on a GPU, or no new work to a node.",
    "undrain": "Give leases on a GPU again, or work to a node.",
    "queue": "Show the requests that wait, and why.",
    "why": "Show why a lease or a job waits, and its story.",
    "offer": "Show when and where a request would start.",
    "stop": "End leases, with their containers.",
    "resize": "Give a lease another size.",
    "extend": "Give a lease more time.",
    "hold": "Keep waiting requests and jobs from starting.",
    "unhold": "Release requests and jobs that were held.",
    "priority": "Move a waiting request or job among those of its project.",
    "pause": "Take running leases off their GPUs.",
    "resume": "Bring paused leases back.",
    "preempt": "Let leases give way to others.",
    "logs": "Show the output of the container of a job or a lease.",
    "attach": "Attach to the container of a job or a lease.",
    "docker-host": "Print a DOCKER_HOST that leads to a job's node.",
    "presets": "Show the requests that the admin gave names.",
    "policy": "Explain or show what containers may have here.",
    "project": "Show or set projects and their quotas.",
    "history": "Show leases that are over, and export the history.",
    "report": "Show what a lease or a job used of what it held, and what to ask for next time.",
    "usage": "Show who held how much, and how much of it was used.",
    "waste": "Show what was held and not used, and what waited meanwhile.",
    "waits": "Show how long requests waited.",
    "idle": "Show the leases that hold GPUs now and run no kernel.",
    "audit": "Show who changed what through the daemon, and who was refused what.",
    "node": "Let this machine join a pool, or leave it.",
    "pool": "Begin a pool of nodes and administer it.",
    "config": "Check or show the daemon's configuration.",
    "web": "Open the web page in a browser.",
    "doctor": "Find what is wrong here and on the node.",
    "version": "Show the versions of client, daemon and engine.",
    "completion": "Print a shell's completion script.",
    "simulate": "Play the driver of simulated GPUs.",
}
"""Each command has its short help here, so that `gpushare --help` and a completion import none."""
MODULES = {
    **dict.fromkeys(
        ("extend", "hold", "unhold", "pause", "resume", "preempt", "priority", "resize"), "lease_commands"
    ),
    "cancel": "stop",
    "undrain": "drain",
    **dict.fromkeys(("attach", "docker-host"), "logs"),
    "top": "top.command",
}
"""These commands are in a module with others; each other command is in the module of its name."""
OLD_NAMES = {"door": "docker-host"}
"""The old word for a command works for one release; no list shows it."""
HELP = {"help_option_names": ["-h", "--help"]}
USAGE = 2
_SHOWN = 40


class _Lazy(click.Group):
    """Load a command's module when the command is used, not before."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        name = OLD_NAMES.get(cmd_name, cmd_name)
        if name not in COMMANDS:
            return None
        module = import_module(f"gpushared.cli.{MODULES.get(name, name)}")
        command: click.Command | None = getattr(module, name.replace("-", "_"), None)
        if command is None:
            from gpushared.cli.listing_command import listing_command

            command = listing_command(module.LISTING, COMMANDS[name])
        command.short_help = COMMANDS[name]
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        from click.shell_completion import CompletionItem

        names = [
            CompletionItem(name, help=text) for name, text in COMMANDS.items() if name.startswith(incomplete)
        ]
        return names + click.Command.shell_complete(self, ctx, incomplete)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        is_unknown = (
            args and not args[0].startswith("-") and args[0] not in COMMANDS and args[0] not in OLD_NAMES
        )
        if is_unknown and not ctx.resilient_parsing:
            raise _unknown(args[0][:_SHOWN])
        return super().resolve_command(ctx, args)


def _unknown(name: str) -> UsageError:
    from difflib import get_close_matches

    matches = get_close_matches(name, COMMANDS, n=1)
    hint = f"did you mean {matches[0]}?" if matches else "gpushare --help lists the commands"
    return UsageError(f"there is no command {name!r}", hint=hint)


@click.group(cls=_Lazy, context_settings=HELP, no_args_is_help=True)
@click.version_option(__version__, "-V", "--version", message="gpushare %(version)s")
def cli() -> None:
    """Share the GPUs of this machine: type `gpushare run` where you typed `docker run`.

    \b
    Examples:
      gpushare run --gpu 0.25 -it --rm IMAGE CMD   a quarter of one GPU
      gpushare run --gpu 2 IMAGE CMD               two whole GPUs
      gpushare gpus                                what is free
      gpushare ps                                  the leases on this node
      gpushare why LEASE                           why a lease waits
      gpushare submit --gpu 1 IMAGE CMD            a job that needs no terminal
      gpushare jobs                                the jobs and their states

    The daemon is found through GPUSHARE_HOST=unix:///PATH, else at /run/gpushared/gpushared.sock.
    Documentation of all commands: docs/reference/commands.md.
    """


def _hint(error: click.UsageError) -> str:
    """Return our option in place of one that people know from docker, kubectl or nvidia-smi, or the help."""
    where = error.ctx.command_path if error.ctx else "gpushare"
    if isinstance(error, click.NoSuchOption) and error.ctx is not None:
        has_output = any("--output" in parameter.opts for parameter in error.ctx.command.params)
        if has_output and error.option_name in {"--json", "--format"}:
            return f"{where} -o json"
        if error.option_name in {"-w", "--watch"}:
            return "gpushare top shows GPUs, leases and the queue, and keeps showing them"
    return f"see {where} --help"


def invoke(argv: Sequence[str]) -> int:
    """Run the command line through click; click's errors become ours."""
    try:
        code = cli.main(args=list(argv), prog_name="gpushare", standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)
        return USAGE
    except click.UsageError as error:
        message = " ".join(error.format_message().split()).rstrip(".")  # click lists choices line by line
        raise UsageError(message[:1].lower() + message[1:], hint=_hint(error)) from error
    except click.exceptions.Exit as error:
        return error.exit_code
    except click.exceptions.Abort:  # so click words Ctrl-C
        raise KeyboardInterrupt from None
    except SystemExit as error:  # so click ends a completion
        return int(error.code or 0)
    return code if isinstance(code, int) else 0
