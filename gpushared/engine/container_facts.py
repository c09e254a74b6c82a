"""Put the engine's JSON into the words of the port. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gpushared.domain.model.errors import EngineUnavailable
from gpushared.domain.model.host import ContainerMemory
from gpushared.domain.model.lease import ContainerId
from gpushared.ports import DEFAULT_STOP_SECONDS, LABEL_DEVICE, LABEL_OWNER, ContainerFacts, ContainerStatus

DIE = "die"
START_ERROR_CHARACTERS = 1000
"""Engines quote the command that they could not start, which may be as long as its writer likes."""


def ids_of_list(answer: Sequence[Mapping[str, Any]]) -> tuple[ContainerId, ...]:
    """Return the ids of containers with a lease device, from ``GET /containers/json``.

    The label alone does not tell: it is empty on containers of confined users without a lease.
    """
    try:
        return tuple(ContainerId(each["Id"]) for each in answer if each["Labels"].get(LABEL_DEVICE))
    except (KeyError, TypeError, AttributeError) as error:
        raise EngineUnavailable(f"the Docker engine lists containers in unknown words: {error!r}") from error


def facts_of_inspect(answer: Mapping[str, Any]) -> ContainerFacts:
    """Return the facts of ``GET /containers/<id>/json``."""
    try:
        state, config = answer["State"], answer["Config"]
        labels: dict[str, str] = config.get("Labels") or {}
        return ContainerFacts(
            id=ContainerId(answer["Id"]),
            name=answer["Name"].removeprefix("/"),
            image=config.get("Image") or "",
            status=_status(state),
            exit_code=int(state["ExitCode"]),
            pid=int(state["Pid"]),
            device_name=labels.get(LABEL_DEVICE, ""),
            owner_uid=_uid(labels.get(LABEL_OWNER)),
            restart_policy=answer["HostConfig"]["RestartPolicy"]["Name"] or "no",
            labels=labels,
            stop_signal=config.get("StopSignal") or "",
            stop_seconds=DEFAULT_STOP_SECONDS if (own := config.get("StopTimeout")) is None else int(own),
            memory=ContainerMemory(int(answer["HostConfig"].get("Memory") or 0)),
            start_error=str(state.get("Error") or "")[:START_ERROR_CHARACTERS],
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise EngineUnavailable(
            f"the Docker engine describes a container in unknown words: {error!r}"
        ) from error


def facts_of_death(event: Mapping[str, Any]) -> ContainerFacts | None:
    """Return the facts of a ``die`` event, for a container that was removed before it could be inspected.

    Containers run with ``--rm`` usually are: their exit code is in this event or nowhere. The engine puts the
    labels and its own words ``name``, ``image``, ``exitCode`` into one map. The result is None if the event
    is no ``die``.
    """
    if event.get("Action") != DIE:
        return None
    actor = event["Actor"]
    labels = dict(actor["Attributes"])
    name, image, code = (labels.pop(key, "") for key in ("name", "image", "exitCode"))
    if not code.isdecimal():
        return None
    return ContainerFacts(
        id=ContainerId(actor["ID"]),
        name=name,
        image=image,
        status=ContainerStatus.EXITED,
        exit_code=int(code),
        pid=0,
        device_name=labels.get(LABEL_DEVICE, ""),
        owner_uid=_uid(labels.get(LABEL_OWNER)),
        restart_policy="no",
        labels=labels,
    )


def _status(state: Mapping[str, Any]) -> ContainerStatus:
    try:
        return ContainerStatus(state["Status"])
    except ValueError:
        # Engines that only speak Docker's API have more words; all of them say if the container runs.
        return ContainerStatus.RUNNING if state["Running"] else ContainerStatus.EXITED


def _uid(label: str | None) -> int | None:
    return int(label) if label is not None and label.isascii() and label.isdecimal() else None
