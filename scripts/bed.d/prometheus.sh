# shellcheck shell=bash
# Prometheus and promtool of the machine's own Debian, unpacked and not installed: the package would start a service.

PROMETHEUS=$CACHE/prometheus

part_prometheus() {
  [ -x "$PROMETHEUS/usr/bin/promtool" ] || unpack_prometheus
  say "prometheus: $("$PROMETHEUS/usr/bin/promtool" --version 2>&1 | sed -n '1s/.*version \([^ ]*\).*/\1/p')"
}

unpack_prometheus() (
  mkdir -p "$CACHE/apt/deb"
  exec 8>"$RUN/lock.apt"
  flock 8
  cd "$CACHE/apt/deb"
  rm -f prometheus_*.deb
  if ! apt-get download -q prometheus >"$CACHE/log/download-prometheus.log" 2>&1; then
    apt_update
    quietly download-prometheus.log "downloading prometheus" apt-get download -q prometheus
  fi
  rm -rf "$PROMETHEUS.part"
  dpkg -x prometheus_*.deb "$PROMETHEUS.part"
  rm -rf "$PROMETHEUS" prometheus_*.deb
  mv "$PROMETHEUS.part" "$PROMETHEUS"
)
