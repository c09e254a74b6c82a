# shellcheck shell=bash
# An image that boots a real systemd, to install the package and its units in.

SYSTEMD_RECIPE=1

make_systemd() {
  local tree=$CACHE/systemd
  say "systemd: building its root file system"
  rm -rf "$tree"
  debian bookworm systemd,systemd-sysv,dbus,python3,python3-venv,procps "$tree"
  # An empty file makes systemd give every container a machine id of its own.
  : >"$tree/etc/machine-id"
  tar -C "$tree" --numeric-owner -cf "$CACHE/systemd.tar.part" .
  mv "$CACHE/systemd.tar.part" "$CACHE/systemd.tar"
  rm -rf "$tree"
}

part_systemd() {
  need engine
  need tools
  import_image "$PLAIN_SOCKET" "$SYSTEMD_IMAGE" "$SYSTEMD_RECIPE" "$CACHE/systemd.tar" systemd
  say "systemd: $SYSTEMD_IMAGE"
}
