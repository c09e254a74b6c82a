"""Turn the daemon's errors back into our tree, from JSON in Connect's form."""

from __future__ import annotations

import json

from gpushared.domain.model import errors
from gpushared.domain.model.errors import DaemonUnavailable, GpushareError, kind_of_code


class NotOurDaemon(errors.Unavailable):
    """Another program than gpushared serves the socket; asking again does not help."""


class ConnectionLost(DaemonUnavailable):
    """The daemon was reached, but its answer did not come; the call may or may not have been carried out."""


def from_answer(status: int, body: bytes, path: str) -> GpushareError:
    """Return the error that an answer other than 200 stands for.

    Form: ``{"code", "message", "details": [{"hint"}]}``
    (https://connectrpc.com/docs/protocol#error-end-stream). An answer without a code is not our daemon's.
    """
    data = _json_object(body)
    code, message = data.get("code"), data.get("message")
    if not isinstance(code, str) or not isinstance(message, str):
        return not_our_daemon(path, f"status {status}")
    return kind_of_code(code)(message, hint=_hint(data.get("details")))


def not_our_daemon(path: str, what: str) -> GpushareError:
    """Return the error for a program on the socket that does not speak as gpushared does."""
    return NotOurDaemon(f"what answers on {path} is not gpushared ({what})", hint="check GPUSHARE_HOST")


def unreachable(path: str, error: OSError) -> GpushareError:
    """Return the error that tells why no connection could be made."""
    if isinstance(error, PermissionError):
        return errors.PermissionRefused(
            f"you may not use the socket {path}", hint="ask the admin of this machine, or check GPUSHARE_HOST"
        )
    why = {FileNotFoundError: "there is no socket", ConnectionRefusedError: "nobody listens there"}
    return DaemonUnavailable(
        f"no gpushared daemon answers on {path}: {why.get(type(error), error.strerror or str(error))}",
        hint="see `systemctl status gpushared`; for a daemon elsewhere: export GPUSHARE_HOST=unix:///PATH",
    )


def docker_message(status: int, body: bytes) -> str:
    """Return the error message in an answer of the Docker API."""
    return str(_json_object(body).get("message", f"status {status}"))


def _json_object(body: bytes) -> dict[str, object]:
    try:
        data = json.loads(body)
    except ValueError:
        return {}
    return data if isinstance(data, dict) else {}


def _hint(details: object) -> str:
    for detail in details if isinstance(details, list) else ():
        if isinstance(detail, dict) and isinstance(detail.get("hint"), str):
            return str(detail["hint"])
    return ""
