# shellcheck shell=bash
# Node and npm, for programs that are written for them.

part_node() {
  if ! command -v node >/dev/null || ! command -v npm >/dev/null; then apt_install nodejs npm; fi
  say "node: $(node --version), npm $(npm --version 2>/dev/null)"
}
