"""Describe a program's request: a part of the pool's GPUs, and the container that is to use it."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from google.protobuf import json_format

from gpushared.api.v1 import jobs_pb2, leases_pb2
from gpushared.client.moment import read_moment
from gpushared.client.submit_parameters import LEASE_PARAMETERS
from gpushared.domain.model.errors import RequestError


@dataclass(frozen=True, slots=True)
class Mount:
    """Name a directory or file of the job's node.

    It must exist there, and the node's policy must allow it.
    """

    source: str
    target: str
    read_only: bool = False

    def to_docker(self) -> dict[str, Any]:
        """Return a mount object: for these the engine makes no missing directories."""
        return {"Type": "bind", "Source": self.source, "Target": self.target, "ReadOnly": self.read_only}


@dataclass(frozen=True, slots=True)
class JobRequest:
    """Describe one job, or each job of an array, in the words of ``gpushare submit``: gpu="0.25", time="2h".

    ``command`` is the words of the program, or a text that is divided as a shell would. ``body`` is the whole
    JSON of Docker's ``POST /containers/create`` instead of ``command``, ``env``, ``mounts`` and ``workdir``.
    """

    image: str = ""
    command: Sequence[str] | str = ()
    gpu: str | float = ""
    env: Mapping[str, str] = field(default_factory=dict)
    mounts: Sequence[Mount] = ()
    workdir: str = ""
    name: str = ""
    """The name of the container; empty = made from the job's id."""
    body: Mapping[str, Any] | None = None

    gpu_memory: str = ""
    gpu_compute: str = ""
    preset: str = ""
    models: Sequence[str] = ()
    """GPU models that will do, by any part of their names; empty = all."""
    isolation: str = ""
    """shared, separate, exclusive or mig; empty = the one that fits the size."""
    lease_class: str = ""
    time: str = ""
    begin: str | datetime = ""
    """Start no earlier: "22:00", "+2h", "2026-11-22T08:00", or a moment; without a zone it is local time."""
    near: Sequence[str] = ()
    """Run only on the machine of these leases."""
    away_from: Sequence[str] = ()
    """Do not run on the GPUs of these leases."""
    project: str = ""
    priority: int = 0
    held: bool = False
    """Wait until ``hold(job, held=False)`` releases the job."""
    immediate: bool = False
    """Fail instead of waiting when there is no room."""
    notice_signal: str = ""
    """Send this to the container before its time is up: USR1, TERM."""
    notify: Sequence[str] = ()
    """Tell these what happens to the job, where the site allows it: mail, or URLs."""
    restart_on_fault: int = 0
    """Start the container again so often when another lease's fault on the GPU ended it."""

    pool: bool | None = None
    """True: anywhere in the pool. False: on the node that is asked. None: in the pool, or on the node that is
    asked if it is in none."""
    node: str = ""
    """Run only on this node."""
    nodes: int = 1
    """Run on so many nodes at once, each with what ``gpu`` says."""
    span: bool = False
    """The job's GPUs may be on several nodes, as few as possible."""
    after: Sequence[str] = ()
    """These jobs must be over first, however they end."""
    after_ok: Sequence[str] = ()
    """These jobs must have succeeded first; if one does not, this job fails."""
    retries: int = 0
    """Run the job again so often when it ends with another code than 0."""
    requeue: bool = True
    """Run the job again after its node was lost, or after it had to give way."""
    stop_after_seconds: int = 0
    """The node stops the job when it has not heard from the pool for so long, and the job runs elsewhere; 0 =
    never."""
    pull: str = ""
    """missing (as if empty), always, never."""
    platform: str = ""
    remove: bool = False
    """Remove the container, and its output with it, once its end is known."""

    def create_body(self) -> dict[str, Any]:
        """Return the body of Docker's ``POST /containers/create``. Raises RequestError."""
        if self.body is not None:
            return self._given_body(self.body)
        if not self.image:
            raise RequestError("no image was named", hint='JobRequest("IMAGE", ["program", "word"])')
        body: dict[str, Any] = {"Image": self.image}
        if command := _split(self.command):
            body["Cmd"] = command
        if self.env:
            body["Env"] = [f"{name}={value}" for name, value in self.env.items()]
        if self.workdir:
            body["WorkingDir"] = self.workdir
        if self.mounts:
            body["HostConfig"] = {"Mounts": [mount.to_docker() for mount in self.mounts]}
        return body

    def _given_body(self, body: Mapping[str, Any]) -> dict[str, Any]:
        if self.command or self.env or self.mounts or self.workdir:
            raise RequestError(
                "both a body and parts of one were given", hint="put Cmd, Env and Mounts into the body"
            )
        return {**body, "Image": body.get("Image") or self.image}

    def message(self, request_id: str, array: str = "") -> jobs_pb2.SubmitRequest:
        """Return the request as it is sent. Raises RequestError."""
        body = self.create_body()
        return jobs_pb2.SubmitRequest(
            request_id=request_id,
            lease=self._lease(),
            create_body=json.dumps(body).encode(),
            image=str(body["Image"]),
            platform=self.platform,
            name=self.name,
            pull=self.pull,
            pool=self.pool is not False,
            or_here=self.pool is None,
            node=self.node,
            nodes=self.nodes,
            span=self.span,
            retries=self.retries,
            requeue=self.requeue,
            stop_after_seconds=self.stop_after_seconds,
            after=[
                *(jobs_pb2.JobAfter(job_id=job) for job in self.after),
                *(jobs_pb2.JobAfter(job_id=job, ok=True) for job in self.after_ok),
            ],
            array=array,
            remove=self.remove,
        )

    def _lease(self) -> leases_pb2.LeaseRequest:
        values = {parameter.field: getattr(self, parameter.argument) for parameter in LEASE_PARAMETERS}
        values |= {"gpu": str(self.gpu), "begin_at": _seconds(self.begin)}
        values |= {name: list(values[name]) for name in ("models", "near", "away_from", "notify")}
        try:
            return json_format.ParseDict(values, leases_pb2.LeaseRequest())
        except json_format.ParseError as error:
            raise RequestError(f"a word of the request is of another type: {error}") from None


def _seconds(begin: str | datetime) -> float:
    """Return seconds since the epoch; 0 without a moment."""
    if isinstance(begin, datetime):
        return begin.timestamp()
    return read_moment(begin, datetime.now().astimezone()) if begin else 0.0


def _split(command: Sequence[str] | str) -> list[str]:
    if not isinstance(command, str):
        return list(command)
    try:
        return shlex.split(command)
    except ValueError as error:
        raise RequestError(
            f"the command cannot be divided into words: {error}", hint="give a list"
        ) from error
