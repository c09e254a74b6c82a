"""What a program asks for: a part of the pool's GPUs, and the container that is to use it. Pure."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gpushared.api.v1 import jobs_pb2, leases_pb2
from gpushared.domain.errors import RequestError


@dataclass(frozen=True, slots=True)
class Mount:
    """A directory or file of the node that runs the job; it must be there, and its policy must allow it."""

    source: str
    target: str
    read_only: bool = False

    def to_docker(self) -> dict[str, Any]:
        """A mount object: for these the engine makes no missing directories."""
        return {"Type": "bind", "Source": self.source, "Target": self.target, "ReadOnly": self.read_only}


@dataclass(frozen=True, slots=True)
class JobRequest:
    """One job, or each job of an array. Words are those of ``gpushare submit``: gpu="0.25", time="2h".

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
    """Of the container; empty = made from the job's id."""
    body: Mapping[str, Any] | None = None

    gpu_memory: str = ""
    gpu_compute: str = ""
    preset: str = ""
    models: Sequence[str] = ()
    """GPU models that will do, by any part of their names; empty = all."""
    lease_class: str = ""
    time: str = ""
    project: str = ""
    priority: int = 0
    held: bool = False

    node: str = ""
    """Only on this one."""
    nodes: int = 1
    after: Sequence[str] = ()
    """Jobs that must be over first, however they end."""
    after_ok: Sequence[str] = ()
    """Jobs that must have succeeded first; where one does not, this one fails."""
    retries: int = 0
    """So often it is run again when it ends with another code than 0."""
    requeue: bool = True
    """Run it again after its node was lost, or after it had to give way."""
    stop_after_seconds: int = 0
    """Its node stops it when it has not heard from the pool for so long, and it runs elsewhere; 0 = never."""
    pull: str = ""
    """missing (as if empty), always, never."""
    platform: str = ""
    remove: bool = False
    """Remove the container, and its output with it, once its end is known."""

    def create_body(self) -> dict[str, Any]:
        """What Docker's ``POST /containers/create`` is asked. Raises RequestError."""
        if self.body is not None:
            return self._given_body(self.body)
        if not self.image:
            raise RequestError("no image was named", hint='JobRequest("IMAGE", ["program", "word"])')
        body: dict[str, Any] = {"Image": self.image}
        if words := _words(self.command):
            body["Cmd"] = words
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
        """The request as it is sent. Raises RequestError."""
        body = self.create_body()
        return jobs_pb2.SubmitRequest(
            request_id=request_id,
            lease=self._lease(),
            create_body=json.dumps(body).encode(),
            image=str(body["Image"]),
            platform=self.platform,
            name=self.name,
            pull=self.pull,
            pool=True,
            node=self.node,
            nodes=self.nodes,
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
        lease = leases_pb2.LeaseRequest(
            gpu=str(self.gpu),
            gpu_memory=self.gpu_memory,
            gpu_compute=self.gpu_compute,
            preset=self.preset,
            models=self.models,
            time=self.time,
            project=self.project,
            priority=self.priority,
            held=self.held,
        )
        setattr(lease, "class", self.lease_class)
        return lease


def _words(command: Sequence[str] | str) -> list[str]:
    if not isinstance(command, str):
        return list(command)
    try:
        return shlex.split(command)
    except ValueError as error:
        raise RequestError(
            f"the command cannot be divided into words: {error}", hint="give a list"
        ) from error
