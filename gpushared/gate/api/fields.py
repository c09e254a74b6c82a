"""List the fields of the Engine API's bodies from its published descriptions, from 1.24 to 1.56.

https://docs.docker.com/reference/api/engine/ has one description a version. A version after the kind is the
first that has the field, one with a dash the last. Fields that no description names, but that engines decode
or clients send, stand here too.
"""

from __future__ import annotations

from gpushared.gate.api.field_kinds import Table, table

NEWEST = (1, 56)
"""The newest version whose fields stand here."""

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
    Hostname text
    Domainname text
    User text
    AttachStdin flag
    AttachStdout flag
    AttachStderr flag
    ExposedPorts names
    Tty flag
    OpenStdin flag
    StdinOnce flag
    Env texts
    Cmd words
    Healthcheck record health
    ArgsEscaped flag
    Image text
    Volumes names
    WorkingDir text
    Entrypoint words
    NetworkDisabled flag
    MacAddress text -1.51
    OnBuild texts
    Labels pairs
    StopSignal text
    StopTimeout whole 1.25
    Shell words
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
    CpuShares whole
    Memory whole
    NanoCpus whole 1.25
    CgroupParent text
    BlkioWeight whole
    BlkioWeightDevice records weight
    BlkioDeviceReadBps records throttle
    BlkioDeviceWriteBps records throttle
    BlkioDeviceReadIOps records throttle
    BlkioDeviceWriteIOps records throttle
    CpuPeriod whole
    CpuQuota whole
    CpuRealtimePeriod whole 1.25
    CpuRealtimeRuntime whole 1.25
    CpusetCpus text
    CpusetMems text
    Devices records device
    DeviceCgroupRules texts 1.28
    DeviceRequests records request 1.40
    DiskQuota whole -1.39
    KernelMemory whole -1.41
    KernelMemoryTCP whole 1.40 -1.51
    MemoryReservation whole
    MemorySwap whole
    MemorySwappiness whole
    OomKillDisable flag
    PidsLimit whole
    Ulimits records ulimit
    CpuCount whole 1.25
    CpuPercent whole
    IOMaximumIOps whole
    IOMaximumBandwidth whole
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
    Binds texts
    ContainerIDFile text
    LogConfig record log
    NetworkMode text
    PortBindings records-by-name port
    RestartPolicy record restart
    AutoRemove flag 1.25
    VolumeDriver text
    VolumesFrom texts
    ConsoleSize size
    Annotations pairs 1.43
    CapAdd words
    CapDrop words
    Capabilities texts 1.40 -1.40
    CgroupnsMode text 1.41
    Dns texts
    DnsOptions texts
    DnsSearch texts
    ExtraHosts texts
    GroupAdd texts
    IpcMode text
    Cgroup text
    Links texts
    OomScoreAdj whole
    PidMode text
    Privileged flag
    PublishAllPorts flag
    ReadonlyRootfs flag
    SecurityOpt texts
    StorageOpt pairs
    Tmpfs pairs
    UTSMode text
    UsernsMode text
    ShmSize whole
    Sysctls pairs
    Runtime text
    Isolation text
    Mounts records mount 1.25
    MaskedPaths texts 1.38
    ReadonlyPaths texts 1.38
    Init flag 1.25
    Umask whole 1.56
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
    IPAMConfig record addresses
    Links texts
    Aliases texts
    MacAddress text
    DriverOpts pairs 1.32
    GwPriority whole 1.48
    NetworkID text
    DNSNames texts 1.44
    EndpointID text
    Gateway text
    IPAddress text
    IPPrefixLen whole
    IPv6Gateway text
    GlobalIPv6Address text
    GlobalIPv6PrefixLen whole
    """,
    addresses=ADDRESSES,
)
NETWORKING_TABLE = table("EndpointsConfig record-by-name endpoint", endpoint=ENDPOINT_TABLE)

CREATE_TABLE: Table = {
    **CONFIG_TABLE,
    **table(
        """
        HostConfig record host
        NetworkingConfig record networking
        """,
        host=HOST_TABLE,
        networking=NETWORKING_TABLE,
    ),
}
UPDATE_TABLE: Table = {**RESOURCES_TABLE, **table("RestartPolicy record restart", restart=RESTART_TABLE)}

EXEC_SPELLINGS = {"detachKeys": "DetachKeys"}
"""aiodocker writes the field so; engines read both spellings."""
EXEC_TABLE = table("""
    AttachStdin flag
    AttachStdout flag
    AttachStderr flag
    DetachKeys text
    Tty flag
    Env texts 1.25
    Cmd words
    Privileged flag
    User text
    WorkingDir text 1.35
    ConsoleSize size 1.42
    Detach flag
    Container text
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
    Name text
    CheckDuplicate flag
    Driver text
    Scope text
    Internal flag
    Attachable flag 1.25
    Ingress flag 1.29
    ConfigOnly flag 1.30
    ConfigFrom record from 1.30
    IPAM record ipam
    EnableIPv4 flag 1.48
    EnableIPv6 flag
    Options pairs
    Labels pairs
    """,
    ipam=IPAM_TABLE,
    **{"from": table("Network text")},
)
CONNECT_TABLE = table(
    """
    Container text
    EndpointConfig record endpoint
    Force flag
    """,
    endpoint=ENDPOINT_TABLE,
)
VOLUME_CREATE_TABLE = table("""
    Name text
    Driver text
    DriverOpts pairs
    Labels pairs
    ClusterVolumeSpec opaque 1.42
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

# The names alone.
CONFIG = frozenset(CONFIG_TABLE)
RESOURCES = frozenset(RESOURCES_TABLE)
HOST_CONFIG = frozenset(HOST_TABLE)
ENDPOINT = frozenset(ENDPOINT_TABLE)
MOUNT = frozenset(MOUNT_TABLE)
BIND_OPTIONS = frozenset(BIND_TABLE)
VOLUME_OPTIONS = frozenset(VOLUME_TABLE)
TMPFS_OPTIONS = frozenset(TMPFS_TABLE)
DEVICE = frozenset(DEVICE_TABLE)
DEVICE_REQUEST = frozenset(DEVICE_REQUEST_TABLE)
