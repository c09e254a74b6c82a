"""Show ``gpushare submit`` by click; ``submit_job`` does the work."""

from __future__ import annotations

from gpushared.cli import complete, docker_args
from gpushared.cli.run import RUN_OPTIONS, DockerCommand, option
from gpushared.cli.submit_job import submit_job

_NOT_FOR_JOBS = {
    "--max-wait",
    "--result-file",
    "--after",
    "--pool",
    "--node",
    "--requeue",
    "--no-requeue",
    "--immediate",
}

submit = DockerCommand(
    "submit",
    own_options=docker_args.SUBMIT,
    work=submit_job,
    metavar="[OPTIONS] [DOCKER CREATE OPTIONS]",
    options=[
        *(run_option for run_option in RUN_OPTIONS if run_option.opts[0] not in _NOT_FOR_JOBS),
        option("immediate", None, "Refuse it instead of queueing it when there is no room."),
        option("pool", None, "Run it anywhere in the pool.  [default: on this node]"),
        option("node", "NODE", "Run it on this node of the pool.", complete.nodes),
        option(
            "array",
            "NUMBERS",
            "Submit a job for each number: 0-99, 1,3,5-9; 0-99%4 runs 4 at once. GPUSHARE_ARRAY_INDEX has the number.",
        ),
        option("after", "JOB,...", "Start when these jobs are over, however they end.", complete.job_list),
        option(
            "after-ok",
            "JOB,...",
            "Start when these jobs have succeeded; fail when one of them does not.",
            complete.job_list,
        ),
        option("retries", "N", "Run it again, up to N times, when it ends with another code than 0."),
        option("requeue", None, "Run it again after its node or GPU was lost or it gave way.  [default]"),
        option("no-requeue", None, "Let it fail in these cases."),
        option(
            "stop-after",
            "DURATION",
            "Let its node stop it after so long without the pool; it then runs elsewhere.  "
            "[default: it runs on]",
        ),
        option("nodes", "N", "Run it on so many nodes at once, each with what --gpu says."),
        option("span", None, "Let its GPUs be on several nodes, as few as possible."),
    ],
    help="""Queue a container as a job: it runs when its GPUs are free, and needs no open terminal.

    The command prints only the job's id to stdout, with --array the array's. All options of `docker create`
    are docker's own: docker reads them, here and now, and its request is kept. Paths and images are looked
    for where the job runs.

    With --rm the container is removed once its end is known, and its output with it.

    \b
    Examples:
      gpushare submit --gpu 0.5 -v "$PWD:/work" IMAGE python train.py
      job=$(gpushare submit --gpu 1 IMAGE ./prepare) && gpushare submit --after-ok $job --gpu 2 IMAGE ./train
      gpushare submit --array 0-99 --gpu 0.25 IMAGE sh -c './part $GPUSHARE_ARRAY_INDEX'
      gpushare submit --pool --retries 3 IMAGE ./train
      gpushare wait $(gpushare submit IMAGE ./train)
    """,
)
