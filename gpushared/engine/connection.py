"""Open clients of the Docker SDK and translate their errors, in one place.

The SDK mixes three families of exceptions (its own, those of requests, and bare ``OSError`` wrapped in
either); ``translated`` turns each into ``EngineUnavailable`` or ``TimedOut``, with the socket's path in it.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager

import requests
from docker import APIClient
from docker.errors import APIError, DockerException

from gpushared.domain.model.errors import EngineUnavailable, GpushareError, TimedOut

OLDEST_API_VERSION = "1.41"
UNIX_SCHEME = "unix://"
START_HINT = "start the engine, for example with `systemctl start docker`, or configure another socket"
ACCESS_HINT = "run the daemon as root or as a member of the group that owns the socket"
HANG_HINT = "look into the engine's log, for example with `journalctl -u docker`; it is asked again"


class Connector:
    """Open clients for one engine.

    ``generation`` grows whenever the engine was lost: clients of an older generation must not be used any
    more, because the engine that comes back may be another version that speaks another API version.
    """

    def __init__(self, url: str, timeout_seconds: float) -> None:
        self.url = url if "://" in url else UNIX_SCHEME + url
        self.timeout_seconds = timeout_seconds
        self.generation = 0

    @property
    def place(self) -> str:
        """Return the engine's place as people write it: a path, or the URL of anything but a unix socket."""
        return self.url.removeprefix(UNIX_SCHEME)

    def dial(self) -> None:
        """Raise ``OSError`` if nobody listens; the SDK would leave a socket open behind its own error."""
        if self.url.startswith(UNIX_SCHEME):
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
                probe.settimeout(self.timeout_seconds)
                probe.connect(self.place)

    def open(self) -> APIClient:
        """Return a client that speaks the engine's API version.

        This asks the engine, so it may raise as every call may.
        """
        self.dial()
        # The SDK can find the version by itself, but when that fails nobody can close the half-made client.
        with self._client(OLDEST_API_VERSION) as scout:
            answer = scout.version(api_version=False)
        version = answer.get("ApiVersion") if isinstance(answer, dict) else None
        if not isinstance(version, str):
            raise EngineUnavailable(f"what answers on {self.place} is no Docker engine", hint=START_HINT)
        return self._client(version)

    def _client(self, api_version: str) -> APIClient:
        # The stubs want whole seconds; the SDK hands the figure on to the socket, which takes fractions.
        client = APIClient(self.url, version=api_version, timeout=self.timeout_seconds)  # type: ignore[arg-type]
        client.trust_env = False  # else requests looks for proxies and a .netrc before each call
        return client

    @contextmanager
    def translated(self, what: str) -> Iterator[None]:
        """Raise errors of ours only, and start a new generation of clients when the engine was lost."""
        try:
            yield
        except (OSError, DockerException) as error:  # requests derives its own from OSError
            self.generation += 1
            raise self._translation(error, what) from error

    def timed_out(self, what: str, seconds: float) -> TimedOut:
        return TimedOut(
            f"the Docker engine on {self.place} did not {what} within {seconds:g} s", hint=HANG_HINT
        )

    def _translation(self, error: BaseException, what: str) -> GpushareError:
        for cause in _causes(error):
            if isinstance(cause, requests.Timeout | TimeoutError):
                return self.timed_out(what, self.timeout_seconds)
            if isinstance(cause, APIError):
                text = cause.explanation or str(cause)
                return EngineUnavailable(f"the Docker engine on {self.place} could not {what}: {text}")
            if isinstance(cause, OSError) and cause.errno is not None:
                hint = ACCESS_HINT if isinstance(cause, PermissionError) else START_HINT
                reason = cause.strerror or str(cause)
                return EngineUnavailable(f"no Docker engine answers on {self.place}: {reason}", hint=hint)
        *_, deepest = _causes(error)
        return EngineUnavailable(f"lost the Docker engine on {self.place}: {deepest}", hint=START_HINT)


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Yield the error and the errors inside: its cause, its context, or (urllib3's way) its arguments."""
    pending, seen = [error], set[int]()
    while pending:
        current = pending.pop(0)
        if id(current) in seen:
            continue
        seen.add(id(current))
        yield current
        wrapped = (current.__cause__, current.__context__, *current.args)
        pending.extend(inner for inner in wrapped if isinstance(inner, BaseException))
