# shellcheck shell=bash
# What the page is tested with: Debian's Chromium, axe-core, and TypeScript, which checks the page's JavaScript.

BROWSER=$CACHE/browser
FOR_BROWSER=(axe-core@4.14.1 typescript@7.0.2)

part_browser() {
  local missing=()
  command -v chromium >/dev/null || missing+=(chromium)
  # Without any font of their own, pictures and widths would be another machine's.
  [ -e /usr/share/fonts/truetype/dejavu/DejaVuSans.ttf ] || missing+=(fonts-dejavu-core)
  [ ${#missing[@]} = 0 ] || apt_install "${missing[@]}"
  if [ "$(cat "$BROWSER/installed" 2>/dev/null)" != "${FOR_BROWSER[*]}" ]; then fetch_for_browser; fi
  say "browser: $(chromium --version 2>/dev/null | cut -d ' ' -f 1,2), ${FOR_BROWSER[*]}"
}

fetch_for_browser() {
  need node
  say "browser: fetching ${FOR_BROWSER[*]}"
  rm -rf "$BROWSER"
  mkdir -p "$BROWSER"
  quietly browser-npm.log "npm install" \
    npm install --no-fund --no-audit --ignore-scripts --prefix "$BROWSER" "${FOR_BROWSER[@]}"
  printf '%s\n' "${FOR_BROWSER[*]}" >"$BROWSER/installed"
}
