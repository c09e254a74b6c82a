"""Build the labels and variables of a job's container, by which its program knows its job and gang."""

from __future__ import annotations

from collections.abc import Mapping

import psutil

from gpushared.domain.jobs.attempt_log import Attempt
from gpushared.domain.jobs.protocol import Gang
from gpushared.gate.api.body import HOST_NETWORK, parse_object, section
from gpushared.ports import LABEL_ATTEMPT, LABEL_JOB


def labels_of(attempt: Attempt) -> dict[str, str]:
    """Return the labels of an attempt's container."""
    return {LABEL_JOB: attempt.key.job, LABEL_ATTEMPT: str(attempt.key.number)}


def environment_of(attempt: Attempt) -> dict[str, str]:
    """Return the variables of an attempt's container, with the gang's variables if it is part of one."""
    env = {"GPUSHARE_JOB_ID": str(attempt.key.job), "GPUSHARE_ATTEMPT": str(attempt.key.number)}
    spec = attempt.spec
    if spec is not None and spec.index is not None:
        env |= {"GPUSHARE_ARRAY_ID": str(spec.array or ""), "GPUSHARE_ARRAY_INDEX": str(spec.index)}
    return env if attempt.facts is None else {**env, **_of_gang(attempt.facts)}


def _of_gang(gang: Gang) -> Mapping[str, str]:
    """Return the gang's variables by the names that programs look for.

    ``torch.distributed`` takes its rendezvous from the first two. ``WORLD_SIZE`` counts GPUs, for one process
    on each GPU; launchers that count themselves set the variable anew.
    """
    return {
        "MASTER_ADDR": gang.hosts[0],
        "MASTER_PORT": str(gang.port),
        "NODE_RANK": str(gang.rank),
        "WORLD_SIZE": str(sum(gang.gpus)),
        "GPUSHARE_HOSTS": ",".join(gang.hosts),
        "GPUSHARE_NNODES": str(len(gang.hosts)),
        "GPUSHARE_GPUS_BY_NODE": ",".join(map(str, gang.gpus)),
    }


def launcher_defaults(attempt: Attempt) -> dict[str, str]:
    """Return the variables for launchers; a value of the user wins over each.

    ``torchrun`` reads its arguments from ``PET_`` and the argument's name, so that ``torchrun train.py``
    needs no arguments. An argument on its command line wins.
    """
    gang = attempt.facts
    if gang is None:
        return {}
    own = gang.hosts[gang.rank]
    # With one GPU, and so one process, on each node the rank is known: ``init_process_group`` needs no
    # launcher.
    rank = {"RANK": str(gang.rank)} if set(gang.gpus) == {1} else {}
    return {
        **rank,
        "PET_NNODES": str(len(gang.hosts)),
        "PET_NODE_RANK": str(gang.rank),
        "PET_NPROC_PER_NODE": str(gang.gpus[gang.rank]),
        "PET_MASTER_ADDR": gang.hosts[0],
        "PET_MASTER_PORT": str(gang.port),
        "PET_LOCAL_ADDR": own,
        **(_interface(own) if _is_on_host_network(attempt) else {}),
    }


def _interface(address: str) -> Mapping[str, str]:
    """Gloo would take the interface of the machine's own name, which on many systems is the loopback's."""
    for name, addresses in psutil.net_if_addrs().items():
        if any(one.address == address for one in addresses):
            return {"GLOO_SOCKET_IFNAME": name}
    return {}


def _is_on_host_network(attempt: Attempt) -> bool:
    assert attempt.spec is not None, "only tombstones have none"
    host = section(parse_object(attempt.spec.body.encode()), "HostConfig")
    return host.get("NetworkMode") == HOST_NETWORK
