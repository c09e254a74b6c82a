"""Show ``gpushare run`` by click; ``docker_args`` reads its arguments, and ``start`` does the work."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import click

from gpushared.cli import complete, docker_args
from gpushared.cli.run_container import run_container


class DockerCommand(click.Command):
    """Declare the options for help and completion, but leave all arguments to our own reader.

    click cannot stop at IMAGE, because it does not know which of docker's options take a value.
    """

    def __init__(
        self,
        name: str,
        *,
        own_options: docker_args.OurOptions,
        work: Callable[[list[str]], int],
        options: Sequence[click.Option],
        metavar: str,
        help: str,  # noqa: A002 - click's name
    ) -> None:
        """Take ``work`` to do with the arguments, and ``options`` to show besides docker's own (``metavar``)."""
        params = [
            *options,
            option("help", None, "Show this message and exit."),
            click.Argument(["image"], metavar="IMAGE", shell_complete=complete.files),
            click.Argument(
                ["command"], shell_complete=complete.files, metavar="[COMMAND]...", nargs=-1, required=False
            ),
        ]
        super().__init__(
            name,
            params=params,
            callback=lambda argv: work(argv),  # noqa: PLW0108 - click names the argument
            add_help_option=False,
            options_metavar=metavar,
            help=help,
        )
        self._own_options = own_options

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if ctx.resilient_parsing:
            return super().parse_args(ctx, args)
        if args in ([], ["-h"]) or docker_args.split(args, self._own_options).is_set("help"):
            click.echo(ctx.get_help())
            ctx.exit(0 if args else 2)
        ctx.params = {"argv": args}
        return []


def option(
    name: str, metavar: str | None, text: str, completer: complete.Completer | None = None
) -> click.Option:
    return click.Option(
        [f"--{name}"], metavar=metavar, is_flag=metavar is None, help=text, shell_complete=completer
    )


RUN_OPTIONS = [
    option(
        "gpu",
        "SIZE",
        "0.25 = a quarter of one GPU's memory and compute, 2 = two whole GPUs, "
        "2x0.5 = half of each of two, 0.25..1 or 1..4 = at least the first, more if it is free. "
        "Without any size or preset: 1.",
    ),
    option("gpu-memory", "SIZE", "GPU memory of each GPU by itself: 8g, 512m, 8GiB, 8g..24g."),
    option(
        "gpu-compute",
        "PERCENT",
        "Share of each GPU's compute by itself: 30%; 25%..100% = 25 %, and what others leave.",
    ),
    option("preset", "NAME", "A request that the admin gave a name; see gpushare presets.", complete.presets),
    option("class", "CLASS", "Kind of work: build, train or infer.  [default: train]", complete.classes),
    option("time", "DURATION", "End after this time: 90s, 30m, 2h, 1d.  [default: that of the class]"),
    option(
        "isolation",
        "KIND",
        "shared (beside others), separate (limits and faults its own), exclusive or mig (an instance).",
        complete.isolations,
    ),
    option("model", "MODEL,...", "Use only GPUs whose names contain one of these: h100,a100."),
    option("near", "LEASE,...", "Use only the machine that has these leases.", complete.lease_list),
    option("away-from", "LEASE,...", "Avoid the GPUs that have these leases.", complete.lease_list),
    option("begin", "TIME", "Start no earlier: 22:00, +2h, 2026-11-22 or 2026-11-22T08:00."),
    option("after", "LEASE,...", "Start when these leases are over, however they end.", complete.lease_list),
    option("hold", None, "Wait until `gpushare unhold` releases it."),
    option("priority", "NUMBER", "-100 to 100: higher goes first in its project.  [default: 0]"),
    option(
        "project",
        "NAME",
        "Count it against this project's quota.  [default: the first that you are in]",
        complete.projects,
    ),
    option(
        "restart-on-fault",
        "N",
        "Start the container again, up to N times, when somebody else's fault on the GPU ended it.",
    ),
    option("requeue", None, "Start it again, from its beginning, after it had to give way."),
    option(
        "no-requeue", None, "Do not start it again then.  [default: with -d and without --rm it is started]"
    ),
    option("notice-signal", "SIGNAL", "Send this to the container before its time is up: USR1, TERM."),
    option("notify", "TARGET,...", "Tell what happens to it: mail, or URLs that the site allows."),
    option("immediate", None, "Fail instead of waiting when there is no room."),
    option("max-wait", "DURATION", "Give up after this time in the queue."),
    option("pool", None, "Run it anywhere in the pool, with the terminal here.  [default: on this node]"),
    option("node", "NODE", "Run it on this node of the pool, with the terminal here.", complete.nodes),
    option(
        "result-file",
        "PATH",
        "Write lease, outcome, exit code and reason to this file, as JSON.",
        complete.files,
    ),
]

run = DockerCommand(
    "run",
    own_options=docker_args.RUN,
    work=run_container,
    options=RUN_OPTIONS,
    metavar="[OPTIONS] [DOCKER RUN OPTIONS]",
    help="""Run a container on a part of a GPU, as `docker run` would on the whole machine.

    The command lets docker read its options, asks the daemon for a lease, waits in the queue while there is
    no room (with position, expected start and reason on stderr), and then becomes `docker run`: terminal,
    signals, exit code and all docker options are docker's own. Our options stand anywhere before IMAGE. The
    image is pulled before the lease is asked for.

    -h is docker's --hostname here; use --help. --gpus and NVIDIA devices are refused: the lease brings them.
    Ctrl-C in the queue leaves the queue.

    \b
    Exit codes:
      the container's own; 125 gpushare or docker failed; 126, 127 as docker run;
      130 Ctrl-C in the queue; 2 the command line is wrong

    \b
    Examples:
      gpushare run --gpu 0.25 --rm -it IMAGE bash
      gpushare run --gpu-memory 8g --gpu-compute 30% -d --restart unless-stopped IMAGE
      gpushare run --gpu 2 --time 12h -v "$PWD:/work" IMAGE python train.py
      gpushare run --preset small --max-wait 10m IMAGE
    """,
)
