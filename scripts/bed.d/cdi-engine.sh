# shellcheck shell=bash
# A Docker engine that knows CDI: the newest that Debian has, in a root file system, mount namespace and network namespace
# of its own. The root file system is Debian 13's, which does not change from day to day: the engine alone is put over it.
# A plain chroot does not do (the image import fails to remount /), nor does a shared network namespace (the second
# engine takes docker0 away from the first).

CDI_ROOT=$CACHE/newest-engine
CDI_RUN=$RUN/cdi
CDI_PIDFILE=$CDI_RUN/dockerd.pid

# debian SUITE PACKAGES DIR: a small Debian root file system.
debian() {
  local mirror keyring
  mirror=$(mirror)
  keyring=$(keyring)
  # debootstrap downloads by wget, which does not know apt's proxy.
  [ -n "${http_proxy:-}" ] || eval "$(apt-config shell http_proxy Acquire::http::Proxy)"
  [ -z "${http_proxy:-}" ] || export http_proxy
  rm -rf "$3.part"
  mkdir -p "$(dirname "$3")"
  quietly "debootstrap-$1.log" "building a Debian $1 root file system" \
    debootstrap --variant=minbase --keyring="$keyring" --include="$2" "$1" "$3.part" "$mirror"
  rm -rf "$3.part"/var/cache/apt/archives/*.deb "$3.part"/var/lib/apt/lists/*
  mv "$3.part" "$3"
}

# build_cdi_root: what runc is linked with is newer than Debian 12.
build_cdi_root() {
  local package
  say "cdi-engine: building its root file system"
  rm -rf "$CDI_ROOT.base"
  debian "$STABLE" iptables,libseccomp2,tini "$CDI_ROOT.base"
  for package in docker.io containerd runc; do
    unpack_newest "$package" "$CDI_ROOT.deb"
    cp -a "$CDI_ROOT.deb/." "$CDI_ROOT.base/"
    rm -rf "$CDI_ROOT.deb"
  done
  mv "$CDI_ROOT.base" "$CDI_ROOT"
}

configure_cdi_engine() {
  mkdir -p "$CDI_RUN/specs" /run/gpushared /run/gpushared-test "$CDI_ROOT/etc/docker"
  cat >"$CDI_ROOT/etc/docker/daemon.json" <<JSON
{
  "features": {"cdi": true},
  "cdi-spec-dirs": ["$CDI_RUN/specs"],
  "hosts": ["unix://$CDI_SOCKET"],
  "pidfile": "$CDI_PIDFILE",
  "bridge": "none",
  "iptables": false,
  "ip6tables": false
}
JSON
}

# An engine whose root file system was deleted with an old checkout still answers, but can start nothing.
stop_orphan() {
  local pid
  drop_stale "$CDI_PIDFILE" dockerd
  pid=$(cat "$CDI_PIDFILE" 2>/dev/null) || return 0
  [ ! -x "/proc/$pid/root/usr/sbin/dockerd" ] || return 0
  say "cdi-engine: stopping process $pid, whose files are gone"
  kill "$pid"
  tail --pid="$pid" -f /dev/null
  rm -f "$CDI_PIDFILE"
}

start_cdi_engine() {
  local log=$CACHE/log/cdi-engine.log pid
  if ! pid=$(cat "$CDI_PIDFILE" 2>/dev/null); then
    configure_cdi_engine
    say "cdi-engine: starting dockerd, log in $log"
    detach "$log" unshare --mount --net "$ROOT/scripts/bed.d/enter-root" "$CDI_ROOT" "$RUN" /run/gpushared /run/gpushared-test /tmp \
      -- /usr/sbin/dockerd
    pid=$PID
  fi
  wait_for_engine "$CDI_SOCKET" "$log" "$pid"
}

part_cdi_engine() {
  need cli
  need tools
  stop_orphan
  # Some tests start engines of their own from it, also where the shared one runs from another checkout's.
  [ -d "$CDI_ROOT" ] || build_cdi_root
  if ! answers "$CDI_SOCKET"; then start_cdi_engine; fi
  import_image "$CDI_SOCKET" "$BUSYBOX_IMAGE" "$BUSYBOX_RECIPE" "$CACHE/busybox.tar" busybox
  say "cdi-engine: Docker $(server_version "$CDI_SOCKET") on $CDI_SOCKET, specs in $CDI_RUN/specs"
}
