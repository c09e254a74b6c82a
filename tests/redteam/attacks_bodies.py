"""Create bodies in which the engine would see something else than who reads them strictly."""

from __future__ import annotations

import gzip
import json

from tests.redteam.attack import (
    BOTH,
    Attack,
    Response,
    Threat,
    asks,
    creates,
    creates_text,
    plain_body,
    sends,
)
from tests.redteam.attacked_machine import AttackedMachine

SPELLED = "is not a field"


def start_with_host_config(machine: AttackedMachine) -> Response:
    """Under API versions before 1.24 the engine took a HostConfig at the start."""
    own = machine.made(plain_body())
    return machine.ask(
        "POST", f"/v1.23/containers/{own}/start", b'{"Privileged": true, "Binds": ["/:/host"]}'
    )


def start_with_host_config_now(machine: AttackedMachine) -> Response:
    own = machine.made(plain_body())
    return machine.ask("POST", f"/containers/{own}/start", b'{"Binds": ["/:/host"]}')


def deep(machine: AttackedMachine) -> Response:
    return machine.run_body(b'{"Image":' + b"[" * 50_000 + b"]" * 50_000 + b"}")


def huge(machine: AttackedMachine) -> Response:
    return machine.run_body(b'{"Image":"x","Cmd":["' + b"a" * (5 << 20) + b'"]}')


def many_values(machine: AttackedMachine) -> Response:
    return machine.run_body(b'{"Image":"x","Cmd":[' + b"[],".rjust(3) * 300_000 + b"[]]}")


def compressed(machine: AttackedMachine) -> Response:
    body = gzip.compress(json.dumps(plain_body(HostConfig={"Privileged": True})).encode())
    return machine.ask("POST", "/containers/create", body, headers={"Content-Encoding": "gzip"})


def updated_devices(machine: AttackedMachine) -> Response:
    own = machine.made(plain_body())
    body = {"deviceCgroupRules": ["a *:* rwm"]}
    return machine.ask("POST", f"/containers/{own}/update", json.dumps(body).encode())


ATTACKS = [
    Attack(
        "body-host-config-in-small-letters",
        Threat.ROOT,
        creates_text('{"Image":"@","Cmd":["id"],"hostconfig":{"Privileged":true}}'),
        refused=SPELLED,
        on=BOTH,
    ),
    Attack(
        "body-privileged-in-capitals",
        Threat.ROOT,
        creates_text('{"Image":"@","Cmd":["id"],"HostConfig":{"PRIVILEGED":true}}'),
        refused=SPELLED,
    ),
    Attack(
        "body-letter-that-folds-to-an-s",
        Threat.ROOT,
        creates_text('{"Image":"@","Cmd":["id"],"HostConfig":{"Bind\u017f":["/:/host"]}}'),
        refused=SPELLED,
        on=BOTH,
    ),
    Attack(
        "body-letter-that-folds-to-a-k",
        Threat.ROOT,
        creates_text('{"Image":"@","Cmd":["id"],"Networ\u212aingConfig":{}}'),
        refused=SPELLED,
    ),
    Attack(
        "body-same-key-twice",
        Threat.ROOT,
        creates_text('{"Image":"@","HostConfig":{"Privileged":false,"Privileged":true}}'),
        refused="stands twice",
        on=BOTH,
    ),
    Attack(
        "body-host-config-twice",
        Threat.ROOT,
        creates_text('{"Image":"@","HostConfig":{},"HostConfig":{"Privileged":true}}'),
        refused="stands twice",
    ),
    Attack(
        "body-key-written-by-escapes",
        Threat.ROOT,
        creates_text('{"Image":"@","HostConfig":{"Privile\\u0067ed":true}}'),
        refused="Privileged may not be set",
    ),
    Attack(
        "body-host-field-at-the-top",
        Threat.ROOT,
        creates_text('{"Image":"@","Cmd":["id"],"Privileged":true}'),
        refused="stands at the top level",
        on=BOTH,
    ),
    Attack(
        "body-binds-at-the-top",
        Threat.FILES,
        creates_text('{"Image":"@","Cmd":["id"],"Binds":["/:/host"]}'),
        refused="stands at the top level",
    ),
    Attack(
        "body-second-document",
        Threat.ROOT,
        creates_text('{"Image":"@"}{"Image":"@","HostConfig":{"Privileged":true}}'),
        refused="is not the JSON",
        on=BOTH,
    ),
    Attack(
        "body-host-config-at-the-start",
        Threat.ROOT,
        start_with_host_config_now,
        refused="takes no body",
        on=BOTH,
    ),
    Attack(
        "body-host-config-at-an-old-start",
        Threat.ROOT,
        start_with_host_config,
        refused="takes no body",
    ),
    Attack(
        "body-of-an-old-api",
        Threat.ROOT,
        creates(version="/v1.20"),
        refused="is too old",
    ),
    Attack(
        "body-of-the-oldest-api-served",
        Threat.ROOT,
        creates(version="/v1.24", command="cat /proc/self/status"),
        harmless="the container is confined as by today's API",
        on=BOTH,
    ),
    Attack(
        "body-of-an-api-to-come",
        Threat.ROOT,
        creates(version="/v1.999"),
        refused="too new",
    ),
    Attack(
        "body-field-nobody-knows",
        Threat.ROOT,
        creates({"PrivilegedToo": True, "Devices": [], "Brand": {"Privileged": True}}),
        harmless="the engine gets nothing of it",
        on=BOTH,
    ),
    Attack(
        "body-truth-as-a-word",
        Threat.ROOT,
        creates({"Privileged": "true"}),
        refused="is not true or false",
    ),
    Attack(
        "body-host-config-as-a-list",
        Threat.ROOT,
        creates_text('{"Image":"@","HostConfig":[{"Privileged":true}]}'),
        refused="HostConfig is not an object",
    ),
    Attack(
        "body-binds-as-text",
        Threat.FILES,
        creates({"Binds": "/:/host"}),
        refused="is not a list of strings",
    ),
    Attack(
        "body-mount-type-as-a-list",
        Threat.FILES,
        creates({"Mounts": [{"Type": ["bind"], "Source": "/", "Target": "/host"}]}),
        refused="is not a string",
    ),
    Attack(
        "body-number-beyond-all-numbers",
        Threat.AVAILABILITY,
        creates_text('{"Image":"@","HostConfig":{"Memory":1e999}}'),
        refused="is not the JSON",
    ),
    Attack("body-nested-without-end", Threat.AVAILABILITY, deep, refused="values"),
    Attack("body-of-many-megabytes", Threat.AVAILABILITY, huge, refused="longer than"),
    Attack("body-of-a-million-values", Threat.AVAILABILITY, many_values, refused="values"),
    Attack("body-compressed", Threat.ROOT, compressed, refused="is not the JSON"),
    Attack(
        "body-in-another-encoding",
        Threat.ROOT,
        asks("POST", "/containers/create", '{"Image":"x"}'.encode("utf-16")),
        refused="is not the JSON",
    ),
    Attack(
        "body-where-none-belongs",
        Threat.ROOT,
        asks("GET", "/containers/json", {"filters": {}}),
        harmless="the engine gets nothing of it",
    ),
    Attack(
        "body-that-is-a-form",
        Threat.LEAK,
        sends(
            b"POST /containers/prune HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
            b"Content-Type: application/x-www-form-urlencoded\r\nContent-Length: 10\r\n\r\nfilters={}"
        ),
        refused="a form is not read here",
        on=BOTH,
    ),
    Attack(
        "body-in-the-query",
        Threat.ROOT,
        creates(query={"HostConfig": '{"Privileged": true}', "Privileged": "true", "User": "0"}),
        harmless="the engine gets nothing of it",
        on=BOTH,
    ),
    Attack("body-update-of-device-rules", Threat.GPU, updated_devices, refused=SPELLED),
    Attack(
        "body-half-a-surrogate",
        Threat.ROOT,
        sends(
            b"POST /containers/create HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 22\r\n\r\n",
            b'{"Image":"\\ud800abcdef"}'[:22],
        ),
        refused="is not the JSON",
    ),
]
