# shellcheck shell=bash
# The docker CLI and compose v2 of Debian 13: static enough to run on Debian 12 as they are.

part_cli() {
  local plugins=$CACHE/docker-config/cli-plugins
  if [ ! -x "$DOCKER" ] || [ ! -x "$plugins/docker-compose" ]; then
    say "cli: fetching the docker CLI and compose"
    unpack docker-cli "$CACHE/docker-cli"
    unpack docker-compose "$CACHE/docker-compose"
    mkdir -p "$CACHE/bin" "$plugins"
    ln -sfn "$CACHE/docker-compose/usr/libexec/docker/cli-plugins/docker-compose" "$plugins/docker-compose"
    ln -sfn "$CACHE/docker-cli/usr/bin/docker" "$DOCKER"
  fi
  say "cli: $("$DOCKER" --version), $(DOCKER_CONFIG=$CACHE/docker-config "$DOCKER" compose version)"
}
