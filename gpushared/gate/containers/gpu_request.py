"""Read the request for GPUs, CPUs and memory in a create body, in the many ways of Docker's clients.

A GPU request is removed from the body: the container gets its lease instead. In order of precedence: the
label of a lease to claim, the ``gpushare.*`` labels, a CDI name ``gpushare.io/gpu=0.25``, and whole GPUs by
``--gpus N``, a device request or NVIDIA's CDI names. A request for a GPU without a size is refused.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace

from gpushared.config.gate_settings import ALL_GPUS, COMMON_DRIVER_CAPABILITIES, DRIVER_CAPABILITIES
from gpushared.domain.model.errors import RequestError
from gpushared.domain.model.lease import LeaseId
from gpushared.domain.model.ranges import parse_gpu_range
from gpushared.domain.model.request_spec import RequestSpec, option_of
from gpushared.gate.api.body import (
    CAPABILITIES,
    CPU_PERIOD_US,
    Body,
    check_keys,
    objects,
    section,
    strings,
    text,
)
from gpushared.gate.api.fields import DEVICE_REQUEST_TABLE, DEVICE_TABLE
from gpushared.gate.containers.inject import VISIBLE_DEVICES, merge_env, user_targets
from gpushared.ports import LABEL_ATTEMPT, LABEL_DEVICE, LABEL_GATE, LABEL_JOB, LABEL_LEASE, LABEL_OWNER

LABEL_MAX_WAIT = "gpushare.max-wait"
LABEL_PREFIX = "gpushare."
REQUEST_LABELS = {LABEL_PREFIX + option_of(field.name): field.name for field in fields(RequestSpec)}
SIZE_FIELDS = ("gpu", "gpu_memory", "gpu_compute", "preset")
"""One of these fields makes a GPU request; a class or a time alone does not."""
NAMES = "|".join(label.removeprefix(LABEL_PREFIX) for label in REQUEST_LABELS)
OPTION = re.compile(rf"--(?P<name>{NAMES}) (?P<value>\d([\w.]*\w)?|[A-Z]+|mig)")
"""This matches an option of ``gpushare run`` in a hint, with its value."""
DEV_CONTAINER_PREFIX = "devcontainer."
MAX_COUNT = 1024
SIZE_HINT = "ask for a size: --gpus 1, or --label gpushare.gpu=0.25"
CDI_NAME = re.compile(r"(?P<vendor>[A-Za-z][A-Za-z0-9_.-]*)/(?P<kind>[A-Za-z][A-Za-z0-9_-]*)=(?P<name>.+)")
OURS = "gpushare.io"
NVIDIA = "nvidia.com"
NVIDIA_CAPABILITIES = frozenset({"gpu", "nvidia", *COMMON_DRIVER_CAPABILITIES, *DRIVER_CAPABILITIES})
"""The engine assumes that NVIDIA's driver has these capabilities."""
NVIDIA_RUNTIMES = re.compile(r"nvidia([-.].*)?")
DEVICES_BY_MOUNT = re.compile(r"/(var/)?run/nvidia-container-devices(/.*)?")
"""NVIDIA's runtime reads mounts at these paths as names of GPUs."""
CDI_ANNOTATION = "cdi.k8s.io/"
WITHOUT_GPU = frozenset({"void", "none", ""})
NANO_PER_MILLI = 1_000_000


@dataclass(frozen=True, slots=True)
class LeaseClaim:
    """Name the lease that the container is to get, and that the caller already has."""

    lease: LeaseId


GpuRequest = LeaseClaim | RequestSpec


def take_gpu_request(body: Body) -> GpuRequest | None:
    """Return the GPU request in a create body, or None. All of its forms are removed from the body.

    ``gpu`` may be ``ALL_GPUS`` in the result. Raises ``RequestError`` for a request for GPUs that names no
    size, or that names particular GPUs.
    """
    host = section(body, "HostConfig")
    labels = dict(section(body, "Labels"))
    lease = labels.pop(LABEL_LEASE, None)
    labelled = _take_labels(labels)
    if "Labels" in body:
        body["Labels"] = labels
    sizes = _take_requests(host, body) + _take_devices(host)
    gpu_request = _decide(lease, labelled, sizes)
    _take_runtime(host, gpu_request)
    _check_annotations_and_mounts(body, host)
    if gpu_request is None:
        _check_env(body)
    return replace(gpu_request, **host_needs(host)) if isinstance(gpu_request, RequestSpec) else gpu_request


def gpu_request_of(labels: Mapping[str, str]) -> RequestSpec | None:
    """Return the GPU request that a container carries in its labels, or None."""
    options = {name: labels[label] for label, name in REQUEST_LABELS.items() if labels.get(label)}
    return RequestSpec(**options) if any(options.get(name) for name in SIZE_FIELDS) else None


def labels_of(gpu_request: RequestSpec) -> dict[str, str]:
    """Return the labels that carry a GPU request; ``gpu_request_of`` reads them back."""
    names = {name: label for label, name in REQUEST_LABELS.items()}
    return {
        names[f.name]: getattr(gpu_request, f.name)
        for f in fields(gpu_request)
        if getattr(gpu_request, f.name)
    }


def is_dev_container(labels: Mapping[str, object]) -> bool:
    """Return True for the labels of a container that a tool for dev containers makes (containers.dev)."""
    return any(label.startswith(DEV_CONTAINER_PREFIX) for label in labels)


def with_dev_meaning(
    gpu_request: GpuRequest | None, labels: Mapping[str, object], meaning: str
) -> GpuRequest | None:
    """Return the GPU request with "all" replaced by the site's value if it is a dev container's."""
    if (
        not isinstance(gpu_request, RequestSpec)
        or gpu_request.gpu != ALL_GPUS
        or not is_dev_container(labels)
    ):
        return gpu_request
    try:
        if meaning != ALL_GPUS:
            parse_gpu_range(meaning)
    except RequestError:
        return replace(gpu_request, gpu="", preset=meaning)
    return replace(gpu_request, gpu=meaning)


def with_count(gpu_request: RequestSpec, gpu_count: int) -> RequestSpec:
    """Return the GPU request with "all" replaced by a number."""
    return replace(gpu_request, gpu=str(gpu_count)) if gpu_request.gpu == ALL_GPUS else gpu_request


@contextmanager
def hints_for_docker() -> Iterator[None]:
    """Let the refusals of a GPU request name labels, which Docker clients can write.

    Without this they name options of ``gpushare run``.
    """
    try:
        yield
    except RequestError as error:
        hint = OPTION.sub(_as_docker_option, error.hint)
        if "--gpus" in hint:
            hint += "; --label gpushare.gpu=0.25 asks for a part of one"
        raise type(error)(error.message, hint=hint) from error


def _as_docker_option(option: re.Match[str]) -> str:
    if option["name"] == "gpu" and option["value"].isdecimal():
        return f"--gpus {option['value']}"
    return f"--label {LABEL_PREFIX}{option['name']}={option['value']}"


def _take_labels(labels: Body) -> RequestSpec:
    options: dict[str, str] = {}
    for label in [name for name in labels if name.startswith(LABEL_PREFIX)]:
        value = labels.pop(label)
        if label in {LABEL_DEVICE, LABEL_OWNER, LABEL_JOB, LABEL_ATTEMPT, LABEL_GATE}:
            continue  # only the gate sets these labels
        if label not in REQUEST_LABELS:
            own_labels = ", ".join([LABEL_LEASE, *REQUEST_LABELS])
            raise RequestError(f"{label} is not a label of gpushare's", hint=f"there are {own_labels}")
        if not isinstance(value, str):
            raise RequestError(f"the label {label} is not a string", hint="write the value in quotes")
        options[REQUEST_LABELS[label]] = value.strip()
    return RequestSpec(**options)


def _decide(lease: object, labelled: RequestSpec, sizes: list[str]) -> GpuRequest | None:
    if lease is not None:
        if not isinstance(lease, str) or not lease:
            raise RequestError(f"the label {LABEL_LEASE} names no lease", hint="`gpushare ps` lists yours")
        return LeaseClaim(LeaseId(lease))
    if any(getattr(labelled, name) for name in SIZE_FIELDS):
        return labelled
    if len(set(sizes)) > 1:
        raise RequestError(
            f"GPUs are asked for twice, with different sizes: {', '.join(sizes)}", hint=SIZE_HINT
        )
    return replace(labelled, gpu=sizes[0]) if sizes else None


def _take_requests(host: Body, body: Body) -> list[str]:
    """Return the sizes that device requests ask for; requests for other vendors' devices stay.

    The driver's capabilities that the requests name become a variable, as in the engine itself.
    """
    sizes: list[str] = []
    other_requests: list[Body] = []
    for request in objects(host, "DeviceRequests"):
        check_keys(request, DEVICE_REQUEST_TABLE, "DeviceRequests.")
        request_sizes = _sizes_of(request)
        if request_sizes is None:
            other_requests.append(request)
        else:
            sizes += request_sizes
            if named := _driver_capabilities(request):
                body["Env"] = merge_env(strings(body, "Env"), {CAPABILITIES: ",".join(named)})
    if host.get("DeviceRequests") is not None:
        host["DeviceRequests"] = other_requests
    return sizes


def _sizes_of(request: Body) -> list[str] | None:
    """Return the sizes that one device request asks for, None if it asks for other devices."""
    ids = strings(request, "DeviceIDs")
    driver = text(request, "Driver")
    if driver == "cdi":
        sizes = [size for name in ids if (size := _size_of_cdi(name)) is not None]
        if sizes and len(sizes) != len(ids):
            raise RequestError("one device request names GPUs and other devices", hint="use one for each")
        return _only_size(sizes) if sizes else None
    if driver not in {"", "nvidia"} or not (driver or _fits_nvidia(request)):
        return None
    if ids:
        raise _particular(", ".join(ids))
    count = request.get("Count")
    if count == -1:
        return [ALL_GPUS]
    if not isinstance(count, int) or isinstance(count, bool) or not 0 < count <= MAX_COUNT:
        raise RequestError(f"{count} is no number of GPUs", hint=SIZE_HINT)
    return [str(count)]


def _fits_nvidia(request: Body) -> bool:
    """Return True if an engine that chooses a driver would choose NVIDIA's.

    That is so if one list has only NVIDIA's capabilities. An empty list fits every driver.
    """
    options = request.get("Capabilities") or []
    if not isinstance(options, list) or not all(isinstance(option, list) for option in options):
        raise RequestError("Capabilities is not a list of lists")
    return any(
        {name for name in option if isinstance(name, str)} <= NVIDIA_CAPABILITIES for option in options
    )


def _driver_capabilities(request: Body) -> list[str]:
    """Return the capabilities in the first of the request's lists that NVIDIA's driver fits."""
    options: list[list[str]] = request.get("Capabilities") or []
    names = next((option for option in options if set(option) <= NVIDIA_CAPABILITIES), [])
    return [name for name in names if name in {*COMMON_DRIVER_CAPABILITIES, *DRIVER_CAPABILITIES}]


def _size_of_cdi(name: str) -> str | None:
    match = CDI_NAME.fullmatch(name)
    vendor = match["vendor"].lower() if match else ""
    if match is None or not (vendor in {OURS, NVIDIA} or vendor.endswith("." + NVIDIA)):
        return None
    if (vendor, match["kind"]) == (OURS, "gpu"):
        return match["name"]
    if vendor == OURS:
        raise RequestError(
            f"{name} cannot be asked for by name", hint=f"claim a lease by the label {LABEL_LEASE}"
        )
    if match["kind"] == "gpu" and match["name"] == ALL_GPUS:
        return ALL_GPUS
    raise _particular(name)


def _only_size(sizes: list[str]) -> list[str]:
    """Return the list; raise ``RequestError`` if it has several sizes, which would be several parts of GPUs."""
    if len(sizes) > 1:
        raise RequestError(
            f"several GPU devices are named: {', '.join(sizes)}", hint="2x0.5 asks for two halves"
        )
    return sizes


def _particular(names: str) -> RequestError:
    return RequestError(
        f"GPUs cannot be chosen by name here ({names}); the lease decides which", hint=SIZE_HINT
    )


def _take_devices(host: Body) -> list[str]:
    """Return the sizes of CDI names given as plain devices; NVIDIA's device nodes are refused."""
    sizes: list[str] = []
    other_devices: list[Body] = []
    for device in objects(host, "Devices"):
        check_keys(device, DEVICE_TABLE, "Devices.")
        path = device.get("PathOnHost")
        if not isinstance(path, str):
            raise RequestError("a device has no PathOnHost", hint="write --device /dev/NAME")
        if posixpath.normpath(path).startswith(("/dev/nvidia", "//dev/nvidia")):
            raise RequestError(f"{path} would be a GPU without a lease", hint=SIZE_HINT)
        size = _size_of_cdi(path)
        sizes += [size] if size is not None else []
        other_devices += [device] if size is None else []
    if host.get("Devices") is not None:
        host["Devices"] = other_devices
    return sizes


def _take_runtime(host: Body, gpu_request: GpuRequest | None) -> None:
    runtime = host.get("Runtime")
    if not isinstance(runtime, str) or not NVIDIA_RUNTIMES.fullmatch(runtime):
        return
    if gpu_request is None:
        raise RequestError(f"the runtime {runtime} would give GPUs without a lease", hint=SIZE_HINT)
    host["Runtime"] = ""


def _check_annotations_and_mounts(body: Body, host: Body) -> None:
    """Raise ``RequestError`` if annotations or mounts would name GPUs to NVIDIA's runtime.

    This holds for containers with a lease and without.
    """
    for name in section(host, "Annotations"):
        if name.startswith(CDI_ANNOTATION):
            raise RequestError(f"the annotation {name} would give devices past the lease", hint=SIZE_HINT)
    for target in user_targets(body):
        if DEVICES_BY_MOUNT.fullmatch(posixpath.normpath("/" + target.lstrip("/"))):
            raise RequestError(f"the mount at {target} would give GPUs past the lease", hint=SIZE_HINT)


def _check_env(body: Body) -> None:
    for entry in strings(body, "Env"):
        name, _, value = entry.partition("=")
        if name == VISIBLE_DEVICES and value not in WITHOUT_GPU:
            raise RequestError(f"{entry} would give GPUs without a lease", hint=SIZE_HINT)


def host_needs(host: Body) -> dict[str, str]:
    """Return the host's part of a ``RequestSpec``: only the values that the body gives."""
    needs = {"host_cpu_milli": _cpu_milli(host), "host_memory_bytes": _number(host, "Memory")}
    return {name: str(value) for name, value in needs.items() if value > 0}


def _cpu_milli(host: Body) -> int:
    nano = _number(host, "NanoCpus")
    if nano > 0:
        return -(-nano // NANO_PER_MILLI)
    period = _number(host, "CpuPeriod") or CPU_PERIOD_US
    return -(-_number(host, "CpuQuota") * 1000 // period) if period > 0 else 0


def _number(host: Body, key: str) -> int:
    value = host.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) else 0
