# shellcheck shell=bash
# etcd and etcdctl of the machine's own Debian, unpacked and not installed: the package would start a service.

ETCD=$CACHE/etcd

part_etcd() {
  [ -x "$ETCD/usr/bin/etcd" ] && [ -x "$ETCD/usr/bin/etcdctl" ] || unpack_etcd
  say "etcd: $("$ETCD/usr/bin/etcd" --version | sed -n '1s/.*: //p')"
}

unpack_etcd() (
  mkdir -p "$CACHE/apt/deb"
  exec 8>"$RUN/lock.apt"
  flock 8
  cd "$CACHE/apt/deb"
  rm -f etcd-server_*.deb etcd-client_*.deb
  if ! apt-get download -q etcd-server etcd-client >"$CACHE/log/download-etcd.log" 2>&1; then
    apt_update
    quietly download-etcd.log "downloading etcd" apt-get download -q etcd-server etcd-client
  fi
  rm -rf "$ETCD.part"
  for package in etcd-server_*.deb etcd-client_*.deb; do dpkg -x "$package" "$ETCD.part"; done
  rm -rf "$ETCD" etcd-server_*.deb etcd-client_*.deb
  mv "$ETCD.part" "$ETCD"
)
