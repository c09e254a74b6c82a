"""Words to try for each option of `docker create` and `docker run`, and the options that have none.

Each entry is tried by itself. Both what the engine takes and what it refuses has to be the same on both ways.
``{own}`` is a folder of this side's, ``{shared}`` one of both, ``{mark}`` the beginning of all names.
"""

from __future__ import annotations

from tests.parity.creates import Words

PEER = "{mark}-peer"
"""A container with a volume, a bind mount and a network namespace to share."""
NETWORK = "{mark}-network"

CREATE: dict[str, tuple[Words, ...]] = {
    "add-host": (("--add-host", "here:10.1.2.3", "--add-host", "there:host-gateway"), ("--add-host", "bad")),
    "annotation": (("--annotation", "example.org/a=b", "--annotation", "c"),),
    "attach": (("-a", "stdout", "-a", "stderr"), ("--attach", "stdin"), ("-a", "nonsense")),
    "blkio-weight": (("--blkio-weight", "300"), ("--blkio-weight", "5")),
    "blkio-weight-device": (("--blkio-weight-device", "/dev/null:200"),),
    "cap-add": (
        ("--cap-add", "NET_ADMIN", "--cap-add", "cap_sys_ptrace"),
        ("--cap-add", "ALL"),
        ("--cap-add", "NO"),
    ),
    "cap-drop": (("--cap-drop", "CHOWN"), ("--cap-drop", "ALL", "--cap-add", "CHOWN")),
    "cgroup-parent": (("--cgroup-parent", "/parity"), ("--cgroup-parent", "parity.slice")),
    "cgroupns": (("--cgroupns", "host"), ("--cgroupns", "private"), ("--cgroupns", "nonsense")),
    "cidfile": (("--cidfile", "{own}/cidfile"),),
    "cpu-period": (("--cpu-period", "50000"),),
    "cpu-quota": (("--cpu-quota", "25000"), ("--cpu-quota", "1")),
    "cpu-rt-period": (("--cpu-rt-period", "1000000"),),
    "cpu-rt-runtime": (("--cpu-rt-runtime", "10000"),),
    "cpu-shares": (("--cpu-shares", "512"), ("-c", "2")),
    "cpus": (("--cpus", "0.5"), ("--cpus", "1000")),
    "cpuset-cpus": (("--cpuset-cpus", "0"), ("--cpuset-cpus", "0-900")),
    "cpuset-mems": (("--cpuset-mems", "0"), ("--cpuset-mems", "77")),
    "device": (
        ("--device", "/dev/null"),
        ("--device", "/dev/zero:/dev/other:r"),
        ("--device", "/dev/no-such-device"),
        ("--device", "example.org/kind=one"),
    ),
    "device-cgroup-rule": (("--device-cgroup-rule", "c 1:3 rwm"), ("--device-cgroup-rule", "nonsense")),
    "device-read-bps": (("--device-read-bps", "/dev/null:1mb"),),
    "device-read-iops": (("--device-read-iops", "/dev/null:1000"),),
    "device-write-bps": (("--device-write-bps", "/dev/null:1mb"),),
    "device-write-iops": (("--device-write-iops", "/dev/null:1000"),),
    "disable-content-trust": (("--disable-content-trust=true",),),
    "dns": (("--dns", "10.1.2.3", "--dns", "2001:db8::1"), ("--dns", "nonsense")),
    "dns-option": (("--dns-option", "ndots:2"),),
    "dns-search": (("--dns-search", "example.org"), ("--dns-search", ".")),
    "domainname": (("--domainname", "example.org", "--hostname", "here"),),
    "entrypoint": (("--entrypoint", "/bin/echo"), ("--entrypoint", "")),
    "env": (
        ("-e", "A=b", "--env", "EMPTY=", "-e", "PARITY_FROM_OUTSIDE", "-e", "NOT_SET_ANYWHERE"),
        ("-e", "NVIDIA_VISIBLE_DEVICES=void", "-e", "CUDA_VISIBLE_DEVICES=0"),
        ("-e", 'SPECIAL=ä <>&   "quoted" \\ \t tab=x'),
    ),
    "env-file": (("--env-file", "{shared}/env"), ("--env-file", "{shared}/no-such-file")),
    "expose": (("--expose", "80", "--expose", "81/udp", "--expose", "90-92"),),
    "group-add": (("--group-add", "1234", "--group-add", "root"), ("--group-add", "no-such-group")),
    "health-cmd": (("--health-cmd", "true"),),
    "health-interval": (("--health-cmd", "true", "--health-interval", "3s"), ("--health-interval", "1us")),
    "health-retries": (("--health-cmd", "true", "--health-retries", "2"),),
    "health-start-interval": (("--health-cmd", "true", "--health-start-interval", "2s"),),
    "health-start-period": (("--health-cmd", "true", "--health-start-period", "4s"),),
    "health-timeout": (("--health-cmd", "true", "--health-timeout", "1500ms"),),
    "help": (("--help",),),
    "hostname": (("--hostname", "here"), ("-h", "h.example.org"), ("-h", "no such")),
    "init": (("--init",), ("--init=false",)),
    "interactive": (("-i",), ("--interactive", "-t")),
    "ip": (("--network", NETWORK, "--ip", "10.213.7.9"), ("--ip", "10.1.2.3")),
    "ip6": (("--network", NETWORK, "--ip6", "2001:db8::33"),),
    "ipc": (
        ("--ipc", "host"),
        ("--ipc", "private"),
        ("--ipc", "shareable"),
        ("--ipc", "none"),
        ("--ipc", f"container:{PEER}"),
        ("--ipc", "container:no-such-container"),
        ("--ipc", "nonsense"),
    ),
    "isolation": (("--isolation", "default"), ("--isolation", "hyperv")),
    "kernel-memory": (("--kernel-memory", "64m"),),
    "label": (("-l", "a=b", "--label", "c", "--label", "d=e=f"),),
    "label-file": (("--label-file", "{shared}/labels"),),
    "link": (
        ("--network", "bridge", "--link", f"{PEER}:peer"),
        ("--network", "bridge", "--link", "no-such-container"),
    ),
    "link-local-ip": (("--network", NETWORK, "--link-local-ip", "169.254.7.9"),),
    "log-driver": (("--log-driver", "none"), ("--log-driver", "local"), ("--log-driver", "nonsense")),
    "log-opt": (("--log-opt", "max-size=1m", "--log-opt", "max-file=2"), ("--log-opt", "nonsense=1")),
    "mac-address": (
        ("--network", "bridge", "--mac-address", "92:d0:c6:0a:29:33"),
        ("--mac-address", "nonsense"),
    ),
    "memory": (("--memory", "64m"), ("-m", "1")),
    "memory-reservation": (("--memory-reservation", "32m"),),
    "memory-swap": (("-m", "64m", "--memory-swap", "128m"), ("-m", "64m", "--memory-swap", "-1")),
    "memory-swappiness": (("--memory-swappiness", "10"), ("--memory-swappiness", "300")),
    "mount": (
        ("--mount", "type=bind,source={shared},target=/x,readonly,bind-propagation=rslave"),
        ("--mount", "type=bind,source={shared},target=/x,bind-nonrecursive,consistency=delegated"),
        ("--mount", "type=bind,source={shared},target=/x,readonly,bind-recursive=writable"),
        ("--mount", "type=bind,source=/no/such/directory,target=/x"),
        (
            "--mount",
            "type=volume,source={name}-v,target=/x,volume-nocopy,volume-driver=local,volume-label=a=b",
        ),
        ("--mount", "type=volume,source={name}-v,target=/x,volume-opt=type=tmpfs,volume-opt=device=tmpfs"),
        ("--mount", "type=volume,target=/x"),
        ("--mount", "type=tmpfs,target=/x,tmpfs-size=1m,tmpfs-mode=1770"),
        ("--mount", "type=volume,source={name}-v,target=/x,volume-subpath=none"),
        ("--mount", "type=image,source={image},target=/x"),
        ("--mount", "type=image,source={image},target=/x,image-subpath=bin"),
        ("--mount", "type=npipe,source=a,target=b"),
    ),
    "name": (("--name", "two words"),),
    "network": (
        ("--network", "host"),
        ("--network", "bridge"),
        ("--network", "default"),
        ("--network", NETWORK),
        ("--network", f"name={NETWORK},alias=one,alias=two,ip=10.213.7.8"),
        ("--network", f"name={NETWORK},driver-opt=a=b,mac-address=92:d0:c6:0a:29:34"),
        ("--network", f"name={NETWORK},gw-priority=5", "--network", "name=bridge,gw-priority=-1"),
        ("--network", NETWORK, "--network", "bridge"),
        ("--network", f"container:{PEER}"),
        ("--network", "no-such-network"),
        ("--net", "none"),
    ),
    "network-alias": (("--network", NETWORK, "--network-alias", "one", "--network-alias", "two"),),
    "no-healthcheck": (("--no-healthcheck",),),
    "oom-kill-disable": (("--oom-kill-disable", "-m", "64m"),),
    "oom-score-adj": (("--oom-score-adj", "100"), ("--oom-score-adj", "2000")),
    "pid": (("--pid", "host"), ("--pid", f"container:{PEER}"), ("--pid", "nonsense")),
    "pids-limit": (("--pids-limit", "10"), ("--pids-limit", "-1")),
    "platform": (("--platform", "linux/amd64"), ("--platform", "linux/s390x", "--pull", "never")),
    "privileged": (("--privileged",),),
    "publish": (
        ("-p", "127.0.0.1::80", "-p", "18080:80/udp"),
        ("--publish", "18000-18002:8000-8002"),
        ("-p", "published=18081,target=81,protocol=tcp,mode=host"),
        ("-p", "[::1]:18082:82"),
        ("-p", "nonsense"),
    ),
    "publish-all": (("-P", "--expose", "80"),),
    "pull": (("--pull", "never"), ("--pull", "missing"), ("--pull", "nonsense")),
    "quiet": (("--quiet",),),
    "read-only": (("--read-only",),),
    "restart": (
        ("--restart", "no"),
        ("--restart", "always"),
        ("--restart", "unless-stopped"),
        ("--restart", "on-failure:3"),
        ("--restart", "always:3"),
        ("--restart", "always", "--rm"),
    ),
    "rm": (("--rm",),),
    "runtime": (("--runtime", "runc"), ("--runtime", "no-such-runtime")),
    "security-opt": (
        ("--security-opt", "no-new-privileges"),
        ("--security-opt", "seccomp=unconfined", "--security-opt", "apparmor=unconfined"),
        ("--security-opt", "seccomp={shared}/seccomp.json"),
        ("--security-opt", "systempaths=unconfined"),
        ("--security-opt", "label=disable"),
        ("--security-opt", "nonsense=1"),
    ),
    "shm-size": (("--shm-size", "1m"), ("--shm-size", "8g")),
    "stop-signal": (("--stop-signal", "SIGUSR1"), ("--stop-signal", "NONSENSE")),
    "stop-timeout": (("--stop-timeout", "3"),),
    "storage-opt": (("--storage-opt", "size=1G"),),
    "sysctl": (("--sysctl", "net.ipv4.ip_forward=1"), ("--sysctl", "kernel.nonsense=1")),
    "tmpfs": (("--tmpfs", "/x", "--tmpfs", "/y:rw,size=1m,mode=1770"),),
    "tty": (("-t",),),
    "ulimit": (("--ulimit", "nofile=100:200", "--ulimit", "memlock=-1"), ("--ulimit", "nofile=200:100")),
    "user": (("-u", "1000"), ("--user", "1000:1000"), ("-u", "root:no-such-group")),
    "userns": (("--userns", "host"), ("--userns", "nonsense")),
    "uts": (("--uts", "host"), ("--uts", "nonsense")),
    "volume": (
        ("-v", "{shared}:/x:ro,rslave"),
        ("-v", "{own}/made-by-the-engine:/x"),
        ("-v", "{name}-v:/x:nocopy"),
        ("--volume", "/anonymous"),
        ("-v", "{shared}:relative"),
        ("-v", "{shared}:/x:nonsense"),
    ),
    "volume-driver": (
        ("--volume-driver", "local", "-v", "{name}-v:/x"),
        ("--volume-driver", "no-such", "-v", "/x"),
    ),
    "volumes-from": (
        ("--volumes-from", PEER),
        ("--volumes-from", f"{PEER}:ro"),
        ("--volumes-from", "no-such-container"),
    ),
    "workdir": (("-w", "/tmp"), ("--workdir", "relative")),
}
"""For `docker create`; `docker run` sends the same body for them."""

RUN: dict[str, tuple[Words, ...]] = {
    "detach": (("-d",), ("-d", "-i", "-t"), ("-d", "--rm", "-a", "stdout")),
    "detach-keys": (("-d", "--detach-keys", "ctrl-x,x"), ("--detach-keys", "ctrl-@,q")),
    "sig-proxy": (("--sig-proxy=false",), ("--sig-proxy=true",)),
}
"""For `docker run` alone."""

LEASED: dict[str, tuple[Words, ...]] = {
    "gpus": (("--gpus", "1"), ("--gpus", "all"), ("--gpus", "device=no-comma,count"))
}
"""Options that become a lease: what the container gets by it differs, and nothing else."""

NOT_APPLICABLE: dict[str, str] = {
    "use-api-socket": "mounts the socket that the client itself is pointed at, another on each way",
}
"""Options that have nothing to compare, and why."""
