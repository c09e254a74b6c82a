# shellcheck shell=bash
# The CLI for dev containers (containers.dev): what editors start such containers with, as an npm package.

# The newest that runs on the Node of Debian 12.
DEVCONTAINERS_VERSION=0.83.0

part_devcontainers() {
  local folder=$CACHE/devcontainers-$DEVCONTAINERS_VERSION
  need node
  [ -d "$folder" ] || {
    say "devcontainers: fetching @devcontainers/cli $DEVCONTAINERS_VERSION"
    # Made whole beside its place, so that a run that is cut off leaves nothing that looks finished.
    rm -rf "$folder.new"
    quietly devcontainers.log "npm install" \
      npm install --no-fund --no-audit --prefix "$folder.new" "@devcontainers/cli@$DEVCONTAINERS_VERSION"
    mv "$folder.new" "$folder"
  }
  point "$CACHE/bin/devcontainer" "$folder/node_modules/.bin/devcontainer"
  say "devcontainers: $("$CACHE/bin/devcontainer" --version)"
}
