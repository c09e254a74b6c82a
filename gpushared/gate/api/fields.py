"""List the fields of the Engine API's bodies from its published descriptions, from 1.24 to 1.56.

https://docs.docker.com/reference/api/engine/ has one description for each version. A version after the kind
is the first that has the field; a version with a dash is the last. The tables also list fields that no
description names, but that engines decode or clients send. After ``=`` is the rule by which a confined
caller's value is judged (``gpushared.gate.policy.admission``), with its hint after a semicolon; a field
without a rule is refused.
"""

from __future__ import annotations

from gpushared.gate.api.field_kinds import Table, table

NEWEST = (1, 56)
"""The newest version whose fields the tables list."""

HEALTH = table("""
    Test words
    Interval whole
    Timeout whole
    Retries whole
    StartPeriod whole 1.29
    StartInterval whole 1.44
    """)

CONFIG_TABLE = table(
    """
    Hostname text = allowed
    Domainname text = allowed
    User text --user = user
    AttachStdin flag = allowed
    AttachStdout flag = allowed
    AttachStderr flag = allowed
    ExposedPorts names = allowed
    Tty flag = allowed
    OpenStdin flag = allowed
    StdinOnce flag = allowed
    Env texts --env = env
    Cmd words = allowed
    Healthcheck record health = allowed
    ArgsEscaped flag = allowed
    Image text IMAGE = image
    Volumes names = allowed
    WorkingDir text = allowed
    Entrypoint words = allowed
    NetworkDisabled flag = allowed
    MacAddress text -1.51 --mac-address = unset; leave it out: the engine gives addresses that nobody else has
    OnBuild texts = unset
    Labels pairs --label = allowed
    StopSignal text = allowed
    StopTimeout whole 1.25 --stop-timeout = stop_timeout
    Shell words = allowed
    """,
    health=HEALTH,
)

DEVICE_TABLE = table("""
    PathOnHost text
    PathInContainer text
    CgroupPermissions text
    """)
DEVICE_REQUEST_TABLE = table("""
    Driver text
    Count whole
    DeviceIDs texts
    Capabilities text-lists
    Options pairs
    """)
WEIGHT = table("""
    Path text
    Weight whole
    """)
THROTTLE = table("""
    Path text
    Rate whole
    """)
ULIMIT = table("""
    Name text
    Soft whole
    Hard whole
    """)

RESOURCES_TABLE = table(
    """
    CpuShares whole --cpu-shares = at-most 1024; --cpus 4 bounds CPUs; weights above others' take from them
    Memory whole --memory = memory
    NanoCpus whole 1.25 --cpus = allowed
    CgroupParent text --cgroup-parent = unset; --memory and --cpus bound a container
    BlkioWeight whole --blkio-weight = at-most 500; leave it out; weights above others' take from them
    BlkioWeightDevice records weight = unset
    BlkioDeviceReadBps records throttle = unset
    BlkioDeviceWriteBps records throttle = unset
    BlkioDeviceReadIOps records throttle = unset
    BlkioDeviceWriteIOps records throttle = unset
    CpuPeriod whole = allowed
    CpuQuota whole = allowed
    CpuRealtimePeriod whole 1.25 = unset; --cpus bounds CPUs
    CpuRealtimeRuntime whole 1.25 = unset; --cpus bounds CPUs
    CpusetCpus text = allowed
    CpusetMems text = allowed
    Devices records device --device = devices
    DeviceCgroupRules texts 1.28 --device-cgroup-rule = unset; --device gives an allowed device; GPUs come by a lease
    DeviceRequests records request 1.40 --gpus = unset; GPUs come by a lease: --gpus 1
    DiskQuota whole -1.39 = unset
    KernelMemory whole -1.41 = allowed
    KernelMemoryTCP whole 1.40 -1.51 = allowed
    MemoryReservation whole = allowed
    MemorySwap whole --memory-swap = memory_swap
    MemorySwappiness whole = allowed
    OomKillDisable flag --oom-kill-disable = unset; --memory bounds a container; without the killer it hangs the machine
    PidsLimit whole --pids-limit = elsewhere
    Ulimits records ulimit --ulimit = ulimits
    CpuCount whole 1.25 = unset
    CpuPercent whole = unset
    IOMaximumIOps whole = unset
    IOMaximumBandwidth whole = unset
    """,
    weight=WEIGHT,
    throttle=THROTTLE,
    device=DEVICE_TABLE,
    request=DEVICE_REQUEST_TABLE,
    ulimit=ULIMIT,
)

DRIVER_CONFIG = table("""
    Name text
    Options pairs
    """)
BIND_TABLE = table("""
    Propagation text
    NonRecursive flag 1.40
    CreateMountpoint flag 1.42
    ReadOnlyNonRecursive flag 1.44
    ReadOnlyForceRecursive flag 1.44
    """)
VOLUME_TABLE = table(
    """
    NoCopy flag
    Labels pairs
    DriverConfig record driver
    Subpath text 1.45
    """,
    driver=DRIVER_CONFIG,
)
TMPFS_TABLE = table("""
    SizeBytes whole
    Mode whole
    Options text-lists 1.46
    """)
IMAGE_TABLE = table("Subpath text")
MOUNT_TABLE = table(
    """
    Type text
    Source text
    Target text
    ReadOnly flag
    Consistency text 1.28
    BindOptions record bind
    VolumeOptions record volume
    TmpfsOptions record tmpfs
    ClusterOptions opaque 1.42
    ImageOptions record image 1.48
    """,
    bind=BIND_TABLE,
    volume=VOLUME_TABLE,
    tmpfs=TMPFS_TABLE,
    image=IMAGE_TABLE,
)
LOG_TABLE = table("""
    Type text
    Config pairs
    """)
PORT_TABLE = table("""
    HostIp text
    HostPort text
    """)
RESTART_TABLE = table("""
    Name text
    MaximumRetryCount whole
    """)

_HOST_ONLY = table(
    """
    Binds texts --volume = elsewhere
    ContainerIDFile text = elsewhere
    LogConfig record log --log-driver = log
    NetworkMode text --network = network_mode
    PortBindings records-by-name port --publish = ports
    RestartPolicy record restart --restart = restart
    AutoRemove flag 1.25 = allowed
    VolumeDriver text --volume-driver = one-of local; mount a directory of yours
    VolumesFrom texts --volumes-from = unset; name the volumes themselves
    ConsoleSize size = allowed
    Annotations pairs 1.43 --annotation = unset; --label carries words of yours; annotations steer the runtime
    CapAdd words --cap-add = cap_add
    CapDrop words --cap-drop = elsewhere
    Capabilities texts 1.40 -1.40 = unset; leave it out
    CgroupnsMode text 1.41 --cgroupns = one-of private; leave it out
    Dns texts = allowed
    DnsOptions texts = allowed
    DnsSearch texts = allowed
    ExtraHosts texts = allowed
    GroupAdd texts --group-add = groups
    IpcMode text --ipc = ipc
    Cgroup text = unset; leave it out
    Links texts --link = unset; put the containers on one network
    OomScoreAdj whole --oom-score-adj = oom_score
    PidMode text --pid = unset; docker top shows a container's processes, gpushare ps what uses GPUs
    Privileged flag --privileged = unset; GPUs need no privileges here: ask for --gpus 1
    PublishAllPorts flag --publish-all = publish_all
    ReadonlyRootfs flag --read-only = allowed
    SecurityOpt texts --security-opt = security
    StorageOpt pairs --storage-opt = unset; leave it out: a container's own files share the engine's disk
    Tmpfs pairs --tmpfs = tmpfs
    UTSMode text --uts = unset; --hostname gives a name of the container's own
    UsernsMode text --userns = unset; leave it out
    ShmSize whole --shm-size = allowed
    Sysctls pairs --sysctl = sysctls
    Runtime text --runtime = one-of runc; leave it out: GPUs come by a lease, --gpus 1
    Isolation text --isolation = one-of default; leave it out
    Mounts records mount 1.25 --mount = elsewhere
    MaskedPaths texts 1.38 = null
    ReadonlyPaths texts 1.38 = null
    Init flag 1.25 --init = allowed
    Umask whole 1.56 --umask = allowed
    """,
    log=LOG_TABLE,
    port=PORT_TABLE,
    restart=RESTART_TABLE,
    mount=MOUNT_TABLE,
)
HOST_TABLE: Table = {**RESOURCES_TABLE, **_HOST_ONLY}

ADDRESSES = table("""
    IPv4Address text
    IPv6Address text
    LinkLocalIPs texts
    """)
ENDPOINT_TABLE = table(
    """
    IPAMConfig record addresses = allowed
    Links texts = unset
    Aliases texts = allowed
    MacAddress text = unset
    DriverOpts pairs 1.32 = unset
    GwPriority whole 1.48 = allowed
    NetworkID text = unset
    DNSNames texts 1.44 = unset
    EndpointID text = unset
    Gateway text = unset
    IPAddress text = unset
    IPPrefixLen whole = unset
    IPv6Gateway text = unset
    GlobalIPv6Address text = unset
    GlobalIPv6PrefixLen whole = unset
    """,
    addresses=ADDRESSES,
)
NETWORKING_TABLE = table("EndpointsConfig record-by-name endpoint = endpoints", endpoint=ENDPOINT_TABLE)

CREATE_TABLE: Table = {
    **CONFIG_TABLE,
    **table(
        """
        HostConfig record host = elsewhere
        NetworkingConfig record networking --network = nested
        """,
        host=HOST_TABLE,
        networking=NETWORKING_TABLE,
    ),
}
UPDATE_TABLE: Table = {**RESOURCES_TABLE, "RestartPolicy": _HOST_ONLY["RestartPolicy"]}

EXEC_SPELLINGS = {"detachKeys": "DetachKeys"}
"""aiodocker uses this spelling; engines read both spellings."""
EXEC_TABLE = table("""
    AttachStdin flag = allowed
    AttachStdout flag = allowed
    AttachStderr flag = allowed
    DetachKeys text = allowed
    Tty flag = allowed
    Env texts 1.25 = allowed
    Cmd words = allowed
    Privileged flag = unset; a program joins with what its container has
    User text = exec_user
    WorkingDir text 1.35 = allowed
    ConsoleSize size 1.42 = allowed
    Detach flag = allowed
    Container text = elsewhere
    """)
EXEC_START_TABLE = table("""
    Detach flag
    Tty flag
    ConsoleSize size 1.42
    """)

POOL = table("""
    Subnet text
    IPRange text
    Gateway text
    AuxiliaryAddresses pairs
    """)
IPAM_TABLE = table(
    """
    Driver text
    Config records pool
    Options pairs
    """,
    pool=POOL,
)
NETWORK_TABLE = table(
    """
    Name text = allowed
    CheckDuplicate flag = allowed
    Driver text = one-of bridge default; create a plain network
    Scope text = one-of local; create a plain network
    Internal flag = allowed
    Attachable flag 1.25 = allowed
    Ingress flag 1.29 = unset; create a plain network
    ConfigOnly flag 1.30 = unset; create a plain network
    ConfigFrom record from 1.30 = config_from
    IPAM record ipam = ipam
    EnableIPv4 flag 1.48 = allowed
    EnableIPv6 flag = allowed
    Options pairs = unset; create a plain network
    Labels pairs = allowed
    """,
    ipam=IPAM_TABLE,
    **{"from": table("Network text")},
)
CONNECT_TABLE = table(
    """
    Container text = allowed
    EndpointConfig record endpoint = nested
    Force flag = allowed
    """,
    endpoint=ENDPOINT_TABLE,
)
VOLUME_CREATE_TABLE = table("""
    Name text = allowed
    Driver text = one-of local; a bind mount of your own directory does the same
    DriverOpts pairs = unset; a bind mount of your own directory does the same
    Labels pairs = allowed
    ClusterVolumeSpec opaque 1.42 = unset; a bind mount of your own directory does the same
    """)

AUTH_TABLE = table("""
    username text
    password text
    email text
    serveraddress text
    auth text
    identitytoken text
    registrytoken text
    """)
