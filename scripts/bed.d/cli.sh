# shellcheck shell=bash
# Docker's clients, the newest that Debian has: static enough to run on Debian 12 as they are.

CLI_PLUGINS=(docker-compose docker-buildx)

# point LINK FILE: tests that run may use the link just now, so that it is not made again without need.
point() {
  [ "$(readlink "$1")" = "$2" ] || ln -sfn "$2" "$1"
}

part_cli() {
  local name plugins=$CACHE/docker-config/cli-plugins
  mkdir -p "$CACHE/bin" "$plugins"
  for name in docker-cli "${CLI_PLUGINS[@]}"; do
    [ -d "$CACHE/clients/$name" ] || {
      say "cli: fetching $name"
      unpack_newest "$name" "$CACHE/clients/$name"
    }
  done
  for name in "${CLI_PLUGINS[@]}"; do
    point "$plugins/$name" "$CACHE/clients/$name/usr/libexec/docker/cli-plugins/$name"
  done
  point "$DOCKER" "$CACHE/clients/docker-cli/usr/bin/docker"
  say "cli: $("$DOCKER" --version), $(DOCKER_CONFIG=$CACHE/docker-config "$DOCKER" compose version)"
  say "cli: buildx $(DOCKER_CONFIG=$CACHE/docker-config "$DOCKER" buildx version)"
}
