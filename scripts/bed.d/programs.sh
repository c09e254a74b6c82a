# shellcheck shell=bash
# Programs of others that stand on Docker's API, and have limits to how long they wait: JupyterHub with its
# DockerSpawner, dockerode. Each in the version that was tried, which runs on Debian 12, and in no environment
# but this one.

PROGRAMS=$CACHE/programs
FROM_PYPI=(dockerspawner==14.0.0 jupyterhub==6.1.1)
FROM_NPM=(configurable-http-proxy@5.1.0 dockerode@5.0.1)

part_programs() {
  local wanted="${FROM_PYPI[*]} ${FROM_NPM[*]}"
  if [ "$(cat "$PROGRAMS/installed" 2>/dev/null)" != "$wanted" ]; then
    make_programs
    printf '%s\n' "$wanted" >"$PROGRAMS/installed"
  fi
  say "programs: $wanted"
}

make_programs() {
  local missing=() python
  # shellcheck source=scripts/lib/venv.sh
  . "$HERE/lib/venv.sh"
  need node
  python=$(find_python)
  "$python" -c 'import ensurepip, venv' 2>/dev/null || missing+=(python3-venv)
  [ ${#missing[@]} = 0 ] || apt_install "${missing[@]}"
  say "programs: installing ${FROM_PYPI[*]} ${FROM_NPM[*]}"
  rm -rf "$PROGRAMS"
  mkdir -p "$PROGRAMS"
  quietly programs-venv.log "creating $PROGRAMS/venv" "$python" -m venv "$PROGRAMS/venv"
  quietly programs-pip.log "pip install" "$PROGRAMS/venv/bin/python" -m pip install \
    --disable-pip-version-check "${FROM_PYPI[@]}"
  quietly programs-npm.log "npm install" npm install --no-audit --no-fund --prefix "$PROGRAMS" "${FROM_NPM[@]}"
}
