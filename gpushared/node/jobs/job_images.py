"""Get the image of a job on this node: find it, or pull it through the gate as the job's owner."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from collections.abc import AsyncIterator
from urllib.parse import quote, urlencode

import h11

from gpushared.domain.jobs.job import JobSpec, Pull
from gpushared.domain.model.errors import (
    EngineUnavailable,
    GpushareError,
    NotFound,
    RequestError,
    TimedOut,
    Unavailable,
)
from gpushared.domain.model.request import Caller
from gpushared.domain.model.units import format_duration, shown
from gpushared.net.http_client import EngineConnection, EngineSocket
from gpushared.net.loopback import LoopbackGate

OK = 200
NOT_FOUND = 404
RETRY_SECONDS = 2.0
MAX_LINE_BYTES = 1024 * 1024
MAX_TEXT = 500

_LASTING = re.compile(
    r"not found|no such image|does not exist|unknown|denied|unauthori[sz]ed|no basic auth|login|invalid"
    r"|no matching manifest|unsupported|not implemented|gave HTTP response to HTTPS",
    re.IGNORECASE,
)
"""With these words an engine means that the next try fails too: there is no such image, or no user may have
it.

Every other error is a trouble of the network, the registry or the disk: a name that is not resolved just now,
a refused connection, "500 Internal Server Error", "toomanyrequests", "unexpected EOF", "no space left on
device".
"""
UNAVAILABLE, GATEWAY_TIMEOUT = 503, 504


class RegistryTrouble(RequestError):
    """Report that the image cannot be pulled just now, or not here."""


class JobImages:
    """Get images ready, at most ``max_pulls`` at a time."""

    def __init__(self, loopback_gate: LoopbackGate, *, max_pulls: int, pull_seconds: float) -> None:
        self._loopback_gate = loopback_gate
        self._pull_seconds = pull_seconds
        self._pulls = asyncio.Semaphore(max_pulls)

    async def prepare(self, spec: JobSpec, account: Caller) -> None:
        """Return when the image is here. Raises NotFound and RequestError if it will never be.

        Raises ``TimedOut`` if the image was not here in time; the time includes the wait for other pulls and
        for the engine.
        """
        gate = self._loopback_gate.gate_as(account)
        try:
            async with asyncio.timeout(self._pull_seconds):
                await self._retry_until_here(spec, gate)
        except TimeoutError:
            patience = format_duration(int(self._pull_seconds))
            raise TimedOut(
                f"image {shown(spec.image)} was not on this node in {patience}",
                hint="is its registry slow? the node's admin can raise jobs.pull_timeout",
            ) from None

    async def _retry_until_here(self, spec: JobSpec, gate: EngineSocket) -> None:
        while True:
            with contextlib.suppress(Unavailable, TimedOut):
                await self._prepare(spec, gate)
                return
            await asyncio.sleep(RETRY_SECONDS)  # the engine is away

    async def _prepare(self, spec: JobSpec, gate: EngineSocket) -> None:
        if spec.pull is not Pull.ALWAYS and await _is_here(spec, gate):
            return
        if spec.pull is Pull.NEVER:
            raise NotFound(
                f"image {shown(spec.image)} is not on this node, and is not to be pulled",
                hint=f"`docker pull {spec.image}` on the node, or submit without --pull never",
            )
        async with self._pulls:
            # The job that pulled before this one may have pulled the same image.
            if spec.pull is Pull.ALWAYS or not await _is_here(spec, gate):
                await _pull(spec, gate)


async def _is_here(spec: JobSpec, gate: EngineSocket) -> bool:
    answer = await gate.call("GET", f"/images/{quote(spec.image, safe='/:@')}/json".encode())
    if answer.status == NOT_FOUND:
        return False
    check_away(answer.status, answer.body)
    image = answer.json()
    if answer.status != OK or not isinstance(image, dict):
        raise _pull_error(spec, message_of(answer.status, answer.body))
    return not spec.platform or _is_of(spec.platform, image)


def _is_of(platform: str, image: dict[str, object]) -> bool:
    """Return True if an image fits ``os[/architecture[/variant]]``; parts that either lacks do not count."""
    image_parts = (str(image.get(name) or "") for name in ("Os", "Architecture", "Variant"))
    parts = platform.lower().split("/")
    if len(parts) == 1 and parts[0] != "linux":
        parts = ["", *parts]  # docker also takes the architecture alone
    return all(
        not part or not image_part or part == image_part.lower()
        for part, image_part in zip(parts, image_parts, strict=False)
    )


async def _pull(spec: JobSpec, gate: EngineSocket) -> None:
    """Pull the image. Raises RequestError with the engine's words if the pull fails."""
    name, tag = name_and_tag(spec.image)
    query = {"fromImage": name, "tag": tag} | ({"platform": spec.platform} if spec.platform else {})
    connection = await gate.connect()
    try:
        await connection.send(
            h11.Request(
                method="POST",
                target=f"/images/create?{urlencode(query)}".encode(),
                headers=[("Host", "docker"), ("Content-Length", "0"), ("Connection", "close")],
            ),
            h11.EndOfMessage(),
        )
        head = await connection.response()
        async for line in _lines(connection):
            if head.status_code != OK and line.strip():
                check_away(head.status_code, line)
                raise _pull_error(spec, message_of(head.status_code, line))
            _check_progress(spec, line)
    except ConnectionError as error:
        raise EngineUnavailable("the Docker engine hung up in the middle of a pull") from error
    finally:
        connection.close()
    if not await _is_here(spec, gate):
        raise _pull_error(spec, "it is not there after the pull")


async def _lines(connection: EngineConnection) -> AsyncIterator[bytes]:
    """Yield the lines of a pull's answer.

    Each line is a JSON object, for the progress or for an error.
    """
    rest = b""
    async for chunk in connection.chunks():
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            yield line
        if len(rest) > MAX_LINE_BYTES:
            raise EngineUnavailable("the Docker engine's answer to a pull has too long a line")
    yield rest


def _check_progress(spec: JobSpec, line: bytes) -> None:
    if b'"error"' not in line:
        return
    try:
        progress = json.loads(line)
    except ValueError:
        return
    if isinstance(progress, dict) and progress.get("error"):
        raise _pull_error(spec, str(progress["error"]))


def name_and_tag(image: str) -> tuple[str, str]:
    """Return an image's name, and its digest or tag; docker's ``latest`` if it has neither.

    Without a tag the engine would pull all tags.
    """
    name, _, digest = image.partition("@")
    head, colon, tag = name.rpartition(":")
    plain, tagged = (head, tag) if colon and "/" not in tag else (name, "latest")
    return plain, digest or tagged


def _pull_error(spec: JobSpec, text: str) -> GpushareError:
    kind = RequestError if _LASTING.search(text) else RegistryTrouble
    return kind(
        f"image {shown(spec.image)} is missing and cannot be pulled: {text.strip()[:MAX_TEXT]}",
        hint="is its name right, and can the node reach its registry without a login? Where it cannot, "
        "`docker load` brings an image to the node",
    )


def message_of(status: int, body: bytes) -> str:
    """Return the message of a refusal by the engine or by the gate."""
    try:
        answer = json.loads(body)
    except ValueError:
        answer = None
    message = answer.get("message") if isinstance(answer, dict) else None
    text = str(message or f"the Docker engine answered {status}").strip()
    return text.encode(errors="replace").decode()  # JSON may have halves of surrogate pairs


def check_away(status: int, body: bytes) -> None:
    """Raise ``Unavailable`` or ``TimedOut`` for an answer that reports that the engine is away."""
    if status == UNAVAILABLE:
        raise Unavailable(message_of(status, body))
    if status == GATEWAY_TIMEOUT:
        raise TimedOut(message_of(status, body))
