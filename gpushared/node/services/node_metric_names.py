"""Define a node's metrics. docs/reference/metrics.md is made of these definitions."""

from __future__ import annotations

from gpushared.net.exposition import Kind, Labels, Metric

_metrics: list[Metric] = []


def _metric(name: str, kind: Kind, text: str, *labels: str) -> Metric:
    metric = Metric(f"gpushare_{name}", kind, text, tuple(labels))
    _metrics.append(metric)
    return metric


def _gauge(name: str, text: str, *labels: str) -> Metric:
    return _metric(name, Kind.GAUGE, text, *labels)


def _counter(name: str, text: str, *labels: str) -> Metric:
    return _metric(name, Kind.COUNTER, text, *labels)


def _histogram(name: str, text: str, *labels: str) -> Metric:
    return _metric(name, Kind.HISTOGRAM, text, *labels)


_LEASE: Labels = ("lease", "gpu")

GPU_INFO = _metric(
    "gpu_info",
    Kind.INFO,
    "A GPU or MIG instance; gpu is the driver's UUID, index the name in gpushare gpus, mode as there.",
    *("gpu", "index", "model", "driver", "mode"),
)
GPU_UP = _gauge("gpu_up", "1 if the GPU can be read and has no trouble, else 0.", "gpu")
GPU_MEMORY = _gauge("gpu_memory_bytes", "Memory of the GPU.", "gpu")
GPU_MEMORY_USED = _gauge("gpu_memory_used_bytes", "Memory in use, by the driver.", "gpu")
GPU_MEMORY_LEASED = _gauge("gpu_memory_leased_bytes", "Memory that leases hold.", "gpu")
GPU_COMPUTE_LEASED = _gauge("gpu_compute_leased_ratio", "Part of the compute that leases hold.", "gpu")
GPU_UTILIZATION = _gauge("gpu_utilization_ratio", "Part of the time in which the GPU computed.", "gpu")
GPU_POWER = _gauge("gpu_power_watts", "Power that the GPU draws.", "gpu")
GPU_ENERGY = _counter("gpu_energy_joules_total", "Energy, by the driver's own counter.", "gpu")
GPU_TEMPERATURE = _gauge("gpu_temperature_celsius", "Temperature of the GPU.", "gpu")
GPU_DRAINED = _gauge("gpu_drained", "1 if the GPU gets no new leases, else 0.", "gpu")
GPU_XIDS = _counter("gpu_xid_total", "Errors of the driver, by NVIDIA's XID number.", "gpu", "xid")
UNMANAGED = _gauge("unmanaged_gpu_processes", "Processes on GPUs that belong to no lease.")

LEASE_INFO = _metric(
    "lease_info",
    Kind.INFO,
    "A lease that is not over; wall is what holds its memory, empty before its settings are made.",
    *("lease", "user", "project", "class", "image", "wall"),
)
LEASE_MEMORY = _gauge("lease_memory_bytes", "Memory that the lease holds.", *_LEASE)
LEASE_COMPUTE = _gauge("lease_compute_ratio", "Part of the GPU's compute that the lease holds.", *_LEASE)
LEASE_MEMORY_USED = _gauge("lease_memory_used_bytes", "Memory that the lease's processes use.", *_LEASE)
LEASE_UTILIZATION = _gauge(
    "lease_utilization_ratio", "Part of the time in which the lease's kernels ran, if known.", *_LEASE
)
LEASE_IDLE = _gauge(
    "lease_idle_seconds", "Time since the lease last computed; absent while it computes.", "lease"
)

LEASES = _gauge("leases", "Leases that are not over.", "state")
QUEUE_LENGTH = _gauge(
    "queue_length",
    "Waiting requests, by the reason for their wait; unknown until the next look at the queue.",
    "class",
    "reason",
)
QUEUE_OLDEST = _gauge("queue_oldest_wait_seconds", "Wait of the oldest waiting request.", "class")
QUEUE_WAIT = _histogram("queue_wait_seconds", "Waits of granted requests.", "class")
LEASE_DURATION = _histogram(
    "lease_duration_seconds", "Time for which ended leases held GPUs.", "class", "outcome"
)
PROJECT_GPU_SECONDS = _counter(
    "project_gpu_seconds_total", "GPU time held, counted in whole GPUs.", "project"
)
PROJECT_QUOTA = _gauge(
    "project_quota_ratio",
    "GPUs of a quota, 1 for a whole one; model is empty for the general quota.",
    *("project", "model", "quota"),
)
PROJECT_HELD = _gauge("project_held_ratio", "GPUs that the project holds, 1 for a whole one.", "project")
USER_GPU_SECONDS = _counter("user_gpu_seconds_total", "GPU time held, counted in whole GPUs.", "user")
USER_IDLE_GPU_SECONDS = _counter(
    "user_idle_gpu_seconds_total", "GPU time held by leases that did not compute.", "user"
)

GRANTS = _counter("grants_total", "Granted requests.", "class")
REFUSALS = _counter("refusals_total", "Refused requests for leases, by the kind of the error.", "reason")
GATE_REFUSALS = _counter("gate_refusals_total", "Requests to the engine that the gate refused.", "code")
PREEMPTIONS = _counter("preemptions_total", "Leases that gave way to others.", "step")
OVER_LIMIT = _counter("over_limit_total", "Leases that the watchdog ended for their use of memory.")

PASS_SECONDS = _histogram("pass_seconds", "Time that the rules took for an event, passes included.")
COMMIT_SECONDS = _histogram("journal_commit_seconds", "Time of a write to the journal.")
LOOP_LAG = _histogram("loop_lag_seconds", "How late the daemon's event loop runs a task.")
ENGINE_UP = _gauge("engine_up", "1 if the container engine answers, else 0.")
NVML_UP = _gauge("nvml_up", "1 if the driver answers, else 0.")
SAMPLE_AGE = _gauge("sample_age_seconds", "Age of the newest look at the GPUs.")
AUDIT_LOST = _counter("audit_lost_total", "Lines that the audit lost.")
TROUBLE = _gauge("trouble", "1 for each part of the daemon with a trouble.", "part")
BUILD_INFO = _metric("build_info", Kind.INFO, "The daemon's version.", "version", "simulated")

NODE_METRICS = tuple(_metrics)
