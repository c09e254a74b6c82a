"""Carry out ``gpushare run``: on this node, in the pool, or with a result file."""

from __future__ import annotations

from collections.abc import Sequence

from gpushared.cli import docker_cli
from gpushared.cli.docker_args import split
from gpushared.cli.errors import UsageError
from gpushared.cli.start import PreparedRun
from gpushared.cli.waiting import Interrupted, signals_interrupt
from gpushared.domain.model.errors import NotFound


def run_container(argv: Sequence[str]) -> int:
    """Become ``docker run``; return, with the exit code, only if docker does not start."""
    args = split(argv)
    if not args.image:
        raise UsageError("no image was named", hint="gpushare run --gpu 0.25 IMAGE [COMMAND...]")
    if "pool" in args.own_options or "node" in args.own_options:
        from gpushared.cli.pool_run import run_in_pool

        return run_in_pool(args)
    if path := args.own_options.get("result-file"):
        from gpushared.cli.result import run_with_result

        return run_with_result(args, path)
    prepared = PreparedRun(args)
    try:
        with signals_interrupt():
            if code := prepared.refusal():
                return code
            prepared.fetch_image()
            lease = prepared.acquire()
            environ = prepared.environ_for(lease)
            docker_cli.become(prepared.docker, docker_cli.run_command(args, lease), environ)
    except Interrupted as error:
        prepared.wait.leave()
        return error.exit_code
    except OSError as error:
        prepared.wait.leave()
        raise NotFound(f"docker cannot be started: {error.strerror}", hint=prepared.docker) from error
