# shellcheck shell=bash
# Node and npm, for Docker's clients that are written for them; the tests fetch the clients themselves.

part_node() {
  if ! command -v node >/dev/null || ! command -v npm >/dev/null; then apt_install nodejs npm; fi
  say "node: $(node --version), npm $(npm --version 2>/dev/null)"
}
