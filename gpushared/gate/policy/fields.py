"""The fields of the Engine API's container create body, as its published description lists them.

Up to API 1.51 (https://docs.docker.com/reference/api/engine/version/v1.51/), with those that older versions
had and dropped.
"""

from __future__ import annotations


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


CONFIG = _words("""
    Hostname Domainname User AttachStdin AttachStdout AttachStderr ExposedPorts Tty OpenStdin
    StdinOnce Env Cmd Healthcheck ArgsEscaped Image Volumes WorkingDir Entrypoint NetworkDisabled
    MacAddress OnBuild Labels StopSignal StopTimeout Shell
    """)

RESOURCES = _words("""
    CpuShares Memory NanoCpus CgroupParent BlkioWeight BlkioWeightDevice BlkioDeviceReadBps
    BlkioDeviceWriteBps BlkioDeviceReadIOps BlkioDeviceWriteIOps CpuPeriod CpuQuota
    CpuRealtimePeriod CpuRealtimeRuntime CpusetCpus CpusetMems Devices DeviceCgroupRules
    DeviceRequests KernelMemory KernelMemoryTCP MemoryReservation MemorySwap MemorySwappiness
    OomKillDisable PidsLimit Ulimits CpuCount CpuPercent IOMaximumIOps IOMaximumBandwidth
    """)

HOST_CONFIG = RESOURCES | _words("""
    Binds ContainerIDFile LogConfig NetworkMode PortBindings RestartPolicy AutoRemove VolumeDriver
    VolumesFrom ConsoleSize Annotations CapAdd CapDrop Capabilities CgroupnsMode Dns DnsOptions
    DnsSearch ExtraHosts GroupAdd IpcMode Cgroup Links OomScoreAdj PidMode Privileged
    PublishAllPorts ReadonlyRootfs SecurityOpt StorageOpt Tmpfs UTSMode UsernsMode ShmSize Sysctls
    Runtime Isolation Mounts MaskedPaths ReadonlyPaths Init
    """)

NETWORKING_CONFIG = frozenset({"EndpointsConfig"})

ENDPOINT = _words("""
    IPAMConfig Links Aliases MacAddress DriverOpts GwPriority NetworkID DNSNames EndpointID Gateway
    IPAddress IPPrefixLen IPv6Gateway GlobalIPv6Address GlobalIPv6PrefixLen
    """)

MOUNT = _words("""
    Type Source Target ReadOnly Consistency BindOptions VolumeOptions TmpfsOptions ClusterOptions ImageOptions
    """)
BIND_OPTIONS = _words("Propagation NonRecursive CreateMountpoint ReadOnlyNonRecursive ReadOnlyForceRecursive")
VOLUME_OPTIONS = _words("NoCopy Labels DriverConfig Subpath")
TMPFS_OPTIONS = _words("SizeBytes Mode Options")
DEVICE = _words("PathOnHost PathInContainer CgroupPermissions")
DEVICE_REQUEST = _words("Driver Count DeviceIDs Capabilities Options")
LOG_CONFIG = _words("Type Config")
PORT_BINDING = _words("HostIp HostPort")
RESTART_POLICY = _words("Name MaximumRetryCount")
