# shellcheck shell=bash
# The virtual environment of the checkout, for every script that runs the package. Needs common.sh.

VENV=$ROOT/.venv

# find_python: the first interpreter that is new enough; $PYTHON names one to use.
find_python() {
  local python
  for python in ${PYTHON:-python3 python3.14 python3.13 python3.12 python3.11}; do
    if "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
      command -v "$python"
      return
    fi
  done
  die "Python 3.11 or later is needed; ${PYTHON:-python3} is $("${PYTHON:-python3}" --version 2>&1 || true)"
}

create_venv() {
  local python
  python=$(find_python)
  # Debian keeps the part that creates environments in a package of its own.
  if ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
    [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null ||
      die "$python cannot create virtual environments: install python3-venv, or run this as root on Debian or Ubuntu"
    mkdir -p "$RUN"
    apt_install python3-venv
  fi
  say "creating .venv with $("$python" --version)"
  (umask 022 && quietly venv.log "creating $VENV" "$python" -m venv --clear "$VENV")
}

# make_venv [EXTRA]: an environment with the package, editable, and what it needs. Fast when nothing has changed.
make_venv() {
  local wanted stamp=$VENV/.installed${1:+-$1}
  # An environment that was moved or copied has an interpreter that does not start, or starts for another checkout.
  if [ "$("$VENV/bin/python" -c 'import sys; print(sys.prefix)' 2>/dev/null)" != "$VENV" ]; then create_venv; fi
  wanted=$(sha256sum <"$ROOT/pyproject.toml")
  [ "$(cat "$stamp" 2>/dev/null)" != "$wanted" ] || return 0
  say "installing the package and what it needs into .venv"
  # Other users of the machine may run it, also where root's own files are root's alone.
  (umask 022 && quietly pip.log "pip install" \
    "$VENV/bin/python" -m pip install --disable-pip-version-check --editable "$ROOT${1:+[$1]}")
  printf '%s\n' "$wanted" >"$stamp"
}
