"""What all users of a machine share: networks, images, and the engine's other endpoints."""

from __future__ import annotations

import io
import json
import tarfile

from tests.bed import parts
from tests.redteam.attack import (
    BOTH,
    Attack,
    How,
    Response,
    Threat,
    asks,
    creates,
    docker,
    encoded,
    plain_body,
    runs,
)
from tests.redteam.attacked_machine import ATTACKER, VICTIM, AttackedMachine

SHARED, LEAK, ROOT = Threat.SHARED, Threat.LEAK, Threat.ROOT
TRUSTED = "trusted users"
NOT_YOURS = "may not be set by you"


def same_network_name(machine: AttackedMachine) -> Response:
    """Two networks of one name: the engine would find neither for its owner's containers."""
    return machine.ask(
        "POST", "/networks/create", machine.fill_body({"Name": "{network}", "CheckDuplicate": False})
    )


def joins_of(network: str) -> How:
    def how(machine: AttackedMachine) -> Response:
        own = machine.made(plain_body())
        body = json.dumps({"Container": own}).encode()
        return machine.ask("POST", machine.fill(f"/networks/{network}/connect"), body)

    return how


def anothers_container_into_ones_own(machine: AttackedMachine) -> Response:
    machine.ask("POST", "/networks/create", b'{"Name": "mallorys-net"}')
    return machine.ask("POST", "/networks/mallorys-net/connect", machine.fill_body({"Container": "{box}"}))


def networks_of_others(machine: AttackedMachine) -> Response:
    told = machine.ask("GET", "/networks")
    return Response(0, told.message) if machine.network in told.message else told


def volume_of_the_same_name(machine: AttackedMachine) -> Response:
    """The engine answers with the volume that is there, whoever made it."""
    told = machine.ask("POST", "/volumes/create", machine.fill_body({"Name": "{volume}"}))
    return told if told.is_refusal or "Mountpoint" not in told.message else Response(0, told.message)


def image_with(*changes: str) -> How:
    """Run an image into which somebody baked what a body may not say; the attacker would have pulled it."""

    def how(machine: AttackedMachine) -> Response:
        words = [word for change in changes for word in ("--change", machine.fill(change))]
        machine.engine.check("import", *words, str(parts.BUSYBOX_TAR), "evil/image:latest")
        try:
            body = plain_body(Image="evil/image:latest", Cmd=["sh", "-c", "id; env; ls -lR /dev /evil"])
            return machine.run_body(json.dumps(body).encode())
        finally:
            machine.engine.check("rmi", "--force", "evil/image:latest")

    return how


def image_that_names_a_gpu(machine: AttackedMachine) -> Response:
    """The container must be told that it has none, whatever its image says."""
    told = image_with("ENV NVIDIA_VISIBLE_DEVICES=all")(machine)
    return told if "NVIDIA_VISIBLE_DEVICES=void" in told.message else Response(0, told.message)


def image_labelled_as_leased(machine: AttackedMachine) -> Response:
    """No label of the image may say whose the container is, which lease it has, or of which job it is."""
    baked = f"LABEL gpushare.owner={VICTIM} gpushare.device={machine.lease} gpushare.job=j-1"
    machine.engine.check("import", "--change", baked, str(parts.BUSYBOX_TAR), "evil/image:latest")
    try:
        own = machine.made(plain_body(Image="evil/image:latest"))
        labels = machine.as_engine("GET", f"/containers/{own}/json")["Config"]["Labels"]
    finally:
        machine.engine.check("rmi", "--force", "evil/image:latest")
    believed = {labels[f"gpushare.{name}"] for name in ("owner", "device", "job")}
    return Response(200) if believed == {str(ATTACKER), ""} else Response(0, str(labels))


def image_with_paths_that_are_no_json(machine: AttackedMachine) -> Response:
    told = image_with("LABEL gpushare.host-paths=]")(machine)
    return told if told.status else Response(500, "the connection was cut without a word")


def image_moved(machine: AttackedMachine) -> Response:
    """A pull gives its name to what comes; what was made on this machine must keep its own."""
    return machine.docker("pull", "--quiet", parts.BUSYBOX_IMAGE)


def loaded(machine: AttackedMachine) -> Response:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as tar:
        tar.addfile(tarfile.TarInfo("manifest.json"), io.BytesIO())
    return machine.ask("POST", "/images/load", made.getvalue())


def pruned(kind: str) -> How:
    return asks("POST", f"/{kind}/prune")


def log_options(driver: str, **options: str) -> How:
    return creates({"LogConfig": {"Type": driver, "Config": options}})


ATTACKS = [
    Attack(
        "network-of-the-machine",
        Threat.SOCKETS,
        docker("run", "--rm", "--network", "host", "{image}", "id"),
        refused="the host's network is not for you",
        on=BOTH,
    ),
    Attack(
        "network-of-anothers-container",
        Threat.CONTAINERS,
        docker("run", "--rm", "--network", "container:{box}", "{image}"),
        refused="not allowed for you",
        on=BOTH,
    ),
    Attack(
        "network-by-a-namespace",
        ROOT,
        creates({"NetworkMode": "ns:/proc/1/ns/net"}),
        refused="not allowed for you",
    ),
    Attack(
        "network-of-another",
        Threat.CONTAINERS,
        docker("run", "--rm", "--network", "{network}", "{image}"),
        refused="No such network",
        on=BOTH,
    ),
    Attack(
        "network-of-another-joined-later", Threat.CONTAINERS, joins_of("{network}"), refused="No such network"
    ),
    Attack(
        "network-of-the-machine-joined-later", Threat.SOCKETS, joins_of("host"), refused="No such network"
    ),
    Attack(
        "network-of-another-removed", SHARED, asks("DELETE", "/networks/{network}"), refused="o such network"
    ),
    Attack(
        "anothers-container-into-ones-own-network",
        Threat.CONTAINERS,
        anothers_container_into_ones_own,
        refused="No such container",
    ),
    Attack("network-of-the-same-name", Threat.AVAILABILITY, same_network_name, refused="already exists"),
    Attack(
        "network-with-another-driver",
        ROOT,
        docker("network", "create", "-d", "macvlan", "-o", "parent=eth0", "mallorys-net"),
        refused="not allowed for you",
    ),
    Attack(
        "network-with-options",
        ROOT,
        docker("network", "create", "-o", "com.docker.network.bridge.name=docker0", "mallorys-net"),
        refused="Options " + NOT_YOURS,
    ),
    Attack(
        "network-with-addresses-of-its-choice",
        Threat.AVAILABILITY,
        docker("network", "create", "--subnet", "8.8.8.0/24", "mallorys-net"),
        refused="addresses",
    ),
    Attack(
        "network-from-a-configuration",
        ROOT,
        asks("POST", "/networks/create", {"Name": "mallorys-net", "ConfigFrom": {"Network": "host"}}),
        refused="ConfigFrom",
    ),
    Attack("networks-of-others-listed", LEAK, networks_of_others, harmless="one's own and the engine's"),
    Attack(
        "network-of-another-inspected", LEAK, asks("GET", "/networks/{network}"), refused="o such network"
    ),
    Attack("volume-of-the-same-name", Threat.FILES, volume_of_the_same_name, refused="volume"),
    Attack(
        "link-to-anothers-container",
        Threat.CONTAINERS,
        creates({"Links": ["alices-box"]}),
        refused="Links " + NOT_YOURS,
    ),
    Attack(
        "port-of-the-system",
        SHARED,
        creates({"PortBindings": {"80/tcp": [{"HostPort": "80"}]}}),
        refused="is not for you",
    ),
    Attack(
        "port-by-a-range-from-below",
        SHARED,
        creates({"PortBindings": {"80/tcp": [{"HostPort": "0-2000"}]}}),
        refused="is not for you",
    ),
    Attack(
        "log-to-a-socket",
        Threat.SOCKETS,
        creates({"LogConfig": {"Type": "syslog", "Config": {"syslog-address": "unix:///run/x"}}}),
        refused="log driver",
    ),
    Attack(
        "log-tag-that-fills-memory",
        Threat.AVAILABILITY,
        log_options("json-file", tag='{{pad "x" 20000000 0}}'),
        refused="tag",
        on=BOTH,
    ),
    Attack(
        "log-as-a-program-of-the-machine",
        Threat.IDENTITY,
        log_options("journald", tag="sshd"),
        refused="names something else than the container",
        on=BOTH,
    ),
    Attack(
        "log-as-a-program-of-the-machine-by-a-label",
        Threat.IDENTITY,
        log_options("journald", labels="syslog-identifier"),
        refused="under any name",
    ),
    # Images
    Attack(
        "image-that-says-all-gpus",
        Threat.GPU,
        image_that_names_a_gpu,
        harmless="the container is told that it has none",
        on=BOTH,
    ),
    Attack(
        "image-with-labels-of-a-lease",
        Threat.IDENTITY,
        image_labelled_as_leased,
        harmless="labels of gpushare's are emptied or the gate's own",
        on=BOTH,
    ),
    Attack(
        "image-with-paths-that-are-no-json",
        Threat.AVAILABILITY,
        image_with_paths_that_are_no_json,
        harmless="the label is the gate's to set",
    ),
    Attack("image-with-user-root", ROOT, image_with("USER root"), harmless="it runs as the caller", on=BOTH),
    Attack(
        "image-with-a-volume",
        ROOT,
        image_with("VOLUME /evil"),
        harmless="an empty volume that goes with the container",
    ),
    Attack(
        "image-with-a-health-check",
        ROOT,
        image_with("HEALTHCHECK --interval=1s CMD id"),
        harmless="it runs as the caller",
    ),
    Attack(
        "image-with-an-entry-point",
        ROOT,
        image_with('ENTRYPOINT ["/bin/su", "-c"]'),
        harmless="nothing gives it more rights",
    ),
    Attack("image-with-orders-for-builds", ROOT, image_with("ONBUILD RUN id"), harmless="nothing is built"),
    Attack(
        "variables-of-the-users",
        Threat.GPU,
        runs("-e", "NVIDIA_VISIBLE_DEVICES=all"),
        refused="without a lease",
        on=BOTH,
    ),
    Attack(
        "image-imported",
        SHARED,
        docker("import", "-", "{image}", stdin=b"x"),
        refused="trusted users",
    ),
    Attack("image-tagged", SHARED, docker("tag", "{image}", "mine:latest"), refused=TRUSTED),
    Attack("image-removed", SHARED, docker("rmi", "-f", "{image}"), refused=TRUSTED, on=BOTH),
    Attack("images-pruned", SHARED, asks("POST", "/images/prune"), refused=TRUSTED),
    Attack("image-loaded", SHARED, loaded, refused=TRUSTED),
    Attack("image-pushed", SHARED, asks("POST", "/images/{image}/push?tag=latest"), refused=TRUSTED),
    Attack("image-pulled-over-a-local-name", SHARED, image_moved, refused="made on this machine"),
    Attack(
        "image-pulled-with-changes",
        ROOT,
        asks("POST", "/images/create?" + encoded(fromImage="x", tag="1", changes="USER root")),
        refused="changes",
    ),
    # Endpoints
    Attack("build-from-a-url", ROOT, asks("POST", "/build?remote=http://127.0.0.1/"), refused=TRUSTED),
    Attack("build-cache-pruned", SHARED, asks("POST", "/build/prune"), refused=TRUSTED),
    Attack("session-upgrade", ROOT, asks("POST", "/session", Upgrade="h2c"), refused=TRUSTED, on=BOTH),
    Attack("grpc-upgrade", ROOT, asks("POST", "/grpc", Upgrade="h2c"), refused=TRUSTED, on=BOTH),
    Attack(
        "swarm-begun",
        ROOT,
        asks("POST", "/swarm/init", {"ListenAddr": "0.0.0.0"}),
        refused="no swarm",
        on=BOTH,
    ),
    Attack("service-made", ROOT, asks("POST", "/services/create", {"Name": "x"}), refused="no swarm"),
    Attack("secrets-listed", LEAK, asks("GET", "/secrets"), refused="swarm"),
    Attack(
        "plugin-installed",
        ROOT,
        asks("POST", "/plugins/pull?remote=x", [{"Name": "mount", "Value": ["/"]}]),
        refused="plugins of the engine",
        on=BOTH,
    ),
    Attack("plugin-made", ROOT, asks("POST", "/plugins/create?name=x"), refused="plugins of the engine"),
    Attack("containers-of-all-pruned", SHARED, pruned("containers"), harmless="one's own only"),
    Attack("volumes-of-all-pruned", SHARED, pruned("volumes"), harmless="one's own only"),
    Attack("networks-of-all-pruned", SHARED, pruned("networks"), harmless="one's own only"),
    Attack(
        "checkpoint-made",
        ROOT,
        asks("POST", "/containers/{box}/checkpoints", {"CheckpointID": "x"}),
        refused="checkpoints are refused",
    ),
    Attack("engines-profile-read", LEAK, asks("GET", "/debug/pprof/heap"), refused="not shown"),
]
