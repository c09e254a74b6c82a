"""What each preset makes of options of ``docker run``: the table of docs/how-to/policy.md."""

from __future__ import annotations

from dataclasses import dataclass

YES, NO, SET, DROPPED = "given", "refused", "set", "dropped"


@dataclass(frozen=True)
class Case:
    """``option`` as people write it, the field that it sets, and what becomes of it by preset.

    ``instead`` is in the hint where it is refused.
    """

    option: str
    field: str
    open: str
    lab: str
    strict: str
    instead: str = ""

    def outcome(self, preset: str) -> str:
        return {"open": self.open, "lab": self.lab, "strict": self.strict}[preset]


def always(option: str, field: str, outcome: str, instead: str = "") -> Case:
    return Case(option, field, outcome, outcome, outcome, instead)


CASES = [
    Case("--ipc=host", "IpcMode", YES, NO, NO, "--shm-size 8g"),
    Case("--net=host", "NetworkMode", YES, NO, NO, "-p"),
    always("--shm-size 8g", "ShmSize", YES),
    always("--ulimit memlock=-1", "Ulimits", YES),
    always("--ulimit rtprio=99", "Ulimits", NO, "memlock, nofile, stack"),
    always("--privileged", "Privileged", NO, "--gpus 1"),
    Case("--restart always", "RestartPolicy", YES, YES, NO, "gpushare submit --retries 3"),
    always("-v /home/alice/.cache:/root/.cache", "Binds", SET),
    always("--pid=host", "PidMode", NO, "docker top"),
    Case("--cap-add SYS_PTRACE", "CapAdd", DROPPED, NO, NO, "debuggers work on your own programs without it"),
    always("--cap-add SYS_ADMIN", "CapAdd", NO, "leave it out"),
    Case("--user root", "User", SET, NO, NO, "leave --user out"),
    Case(
        "--security-opt seccomp=unconfined",
        "SecurityOpt",
        SET,
        NO,
        NO,
        "gdb and strace work on your own programs",
    ),
    always("--security-opt apparmor=unconfined", "SecurityOpt", NO, "leave it out"),
    Case("--device /dev/fuse", "Devices", SET, SET, NO, "--gpus 1"),
    Case("--device /dev/infiniband/uverbs0", "Devices", SET, SET, NO, "--gpus 1"),
    always("--device /dev/sda", "Devices", NO, "--gpus 1"),
    always("--device /dev/nvidia0", "", NO, "--gpus 1"),
    always("--device-cgroup-rule 'c 195:* rw'", "DeviceCgroupRules", NO, "GPUs come by a lease"),
    always("--gpus all", "DeviceRequests", SET),
    always("--runtime nvidia", "", NO, "--gpus 1"),
    always("--init", "Init", YES),
    Case("--sysctl net.core.somaxconn=1024", "Sysctls", YES, YES, NO, "those that are"),
    always("--sysctl net.ipv4.ip_forward=1", "Sysctls", NO, "those that are"),
    always("--oom-score-adj 500", "OomScoreAdj", YES),
    always("--oom-score-adj -500", "OomScoreAdj", NO, "0 is what every container has"),
    always("--cgroup-parent /x", "CgroupParent", NO, "--memory and --cpus"),
    always("--tmpfs /tmp:size=1g", "Tmpfs", YES),
    always("--tmpfs /tmp:suid", "Tmpfs", NO, "size=, mode="),
    Case("-p 8888:8888", "PortBindings", YES, YES, SET),
    Case("-p 0.0.0.0:8888:8888", "PortBindings", YES, YES, NO, "-p 127.0.0.1:8888:8888"),
    Case("-P", "PublishAllPorts", YES, YES, NO, "-p 127.0.0.1::8888"),
    always("-p 80:80", "PortBindings", NO, "1024"),
    Case("--network bridge", "NetworkMode", YES, YES, NO, "docker network create mine"),
    always("--network none", "NetworkMode", YES),
    always("--network container:other", "NetworkMode", NO, "put both containers on one network"),
    always("--memory 8g", "Memory", YES),
    always("--cpus 4", "NanoCpus", YES),
    always("--cpu-shares 2048", "CpuShares", NO, "--cpus 4"),
    always("--cap-drop CHOWN", "CapDrop", SET),
    always("--uts host", "UTSMode", NO, "--hostname"),
    always("--userns host", "UsernsMode", NO, "leave it out"),
    always("--cgroupns host", "CgroupnsMode", NO, "leave it out"),
    always("--volumes-from other", "VolumesFrom", NO, "name the volumes"),
    always("--link other", "Links", NO, "put the containers on one network"),
    always("--security-opt systempaths=unconfined", "MaskedPaths", NO, "/proc stays hidden"),
    always("--storage-opt size=9g", "StorageOpt", NO, "leave it out"),
    always("--log-driver journald --log-opt tag=sshd", "LogConfig", NO, "tag={{.Name}}/{{.ID}}"),
    always("--log-driver journald --log-opt tag={{.Name}}/{{.ID}}", "LogConfig", YES),
    always("--log-driver json-file --log-opt tag=web", "LogConfig", YES),
    always("--log-driver syslog", "LogConfig", NO, "json-file and local"),
    always("--oom-kill-disable", "OomKillDisable", NO, "--memory"),
    always("--read-only", "ReadonlyRootfs", YES),
    always("--group-add 0", "GroupAdd", NO, "your own groups"),
    always("--stop-timeout 60", "StopTimeout", YES),
    always("--stop-timeout -1", "StopTimeout", NO, "--stop-timeout 3600"),
]
