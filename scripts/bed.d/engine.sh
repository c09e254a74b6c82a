# shellcheck shell=bash
# The plain engine: whatever answers on the machine's default socket, else dockerd of the machine's own release.

# drop_stale PIDFILE NAME: a file left by a crash may name a process of another program, or a zombie; either would
# stop the start.
drop_stale() {
  local pid
  pid=$(cat "$1" 2>/dev/null) || return 0
  grep -qs "^$pid ($2) [^Z]" "/proc/$pid/stat" || rm -f "$1"
}

start_engine() {
  local log=$CACHE/log/dockerd.log pid
  drop_stale /var/run/docker.pid dockerd
  drop_stale /var/run/docker/containerd/containerd.pid containerd
  if ! pid=$(cat /var/run/docker.pid 2>/dev/null); then
    say "engine: starting dockerd, log in $log"
    detach "$log" dockerd
    pid=$PID
  fi
  wait_for_engine "$PLAIN_SOCKET" "$log" "$pid"
}

part_engine() {
  need cli
  if ! command -v dockerd >/dev/null || ! command -v iptables >/dev/null; then
    apt_install docker.io iptables
  fi
  if ! answers "$PLAIN_SOCKET"; then start_engine; fi
  say "engine: Docker $(server_version "$PLAIN_SOCKET") on $PLAIN_SOCKET"
}
