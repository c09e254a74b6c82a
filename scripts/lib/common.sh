# shellcheck shell=bash
# Words shared by the scripts: messages, apt, waiting, engines.

ME=$(basename "$0")
ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
CACHE=${GPUSHARED_CACHE:-$ROOT/.cache}
RUN=/run/gpushared-bed # short on purpose: a socket's path may have 107 bytes
DOCKER=$CACHE/bin/docker
PLAIN_SOCKET=/var/run/docker.sock
CDI_SOCKET=$RUN/cdi/docker.sock
STABLE=trixie
NEXT=forky
BUSYBOX_IMAGE=gpushared-test/busybox:latest
SYSTEMD_IMAGE=gpushared-test/systemd:latest
export DEBIAN_FRONTEND=noninteractive LC_ALL=C.UTF-8
# The bed speaks to engines by their sockets only, never to the one a user has chosen.
unset DOCKER_HOST DOCKER_CONTEXT

say() { printf '%s: %s\n' "$ME" "$*"; }
die() {
  printf '%s: error: %s\n' "$ME" "$*" >&2
  exit 1
}

# quietly LOG WHAT COMMAND...: runs the command with its output in a log, shown only when it fails.
quietly() {
  local log=$CACHE/log/$1 what=$2
  shift 2
  mkdir -p "$CACHE/log"
  "$@" >"$log" 2>&1 </dev/null && return
  tail -n 20 "$log" >&2
  die "$what failed; all of it is in $log"
}

apt_update() (
  exec 7>"$RUN/lock.apt-update"
  flock 7
  quietly apt-update.log "apt-get update" apt-get update -qq
)

# apt_install PACKAGE...: installs what is missing from the machine's own sources; the package lists are read anew only
# when they do not do.
apt_install() (
  install=(apt-get install -y -qq --no-install-recommends -o DPkg::Lock::Timeout=300 "$@")
  mkdir -p "$CACHE/log"
  exec 8>"$RUN/lock.apt-install"
  flock 8
  say "installing $*"
  if ! "${install[@]}" >"$CACHE/log/apt-install.log" 2>&1 </dev/null; then
    apt_update
    quietly "apt-install-$1.log" "installing $*" "${install[@]}"
  fi
)

find_mirror() {
  # shellcheck disable=SC2016 # apt's own variables
  apt-get indextargets --format '$(REPO_URI) $(RELEASE) $(COMPONENT)' 'Created-By: Packages' |
    awk -v code="$1" '($2 == code || $2 == "stable") && $3 == "main" && !found { print $1; found = 1 }'
}

# mirror: the archive that this machine's own sources take Debian from.
mirror() {
  local codename uri
  # shellcheck source=/dev/null
  codename=$(. /etc/os-release && printf '%s' "${VERSION_CODENAME:-}")
  uri=$(find_mirror "$codename")
  if [ -z "$uri" ]; then
    # apt tells only of sources whose lists it has; a fresh machine may have none yet.
    apt_update
    uri=$(find_mirror "$codename")
  fi
  [ -n "$uri" ] || die "no apt source of this machine has Debian's $codename main; the recipes need a Debian archive"
  printf '%s' "${uri%/}"
}

# private_apt COMMAND...: apt-get with lists of Debian 13 and its successor kept in the cache, out of the machine's sight.
private_apt() {
  apt-get -q -o Dir::Etc::SourceList="$CACHE/apt/sources.list" -o Dir::Etc::SourceParts=/dev/null \
    -o Dir::Etc::Preferences=/dev/null -o Dir::Etc::PreferencesParts=/dev/null \
    -o Dir::State="$CACHE/apt/state" -o Dir::State::Status=/dev/null -o Dir::Cache="$CACHE/apt/cache" \
    -o Acquire::Languages=none -o APT::Sandbox::User=root -o APT::Update::Post-Invoke-Success::= "$@"
}

keyring() {
  local ring=/usr/share/keyrings/debian-archive-keyring.gpg
  # The trixie keys came with a later point release of bookworm's keyring.
  if [ ! -e /usr/share/keyrings/debian-archive-trixie-stable.gpg ]; then apt_install debian-archive-keyring >&2; fi
  printf '%s' "$ring"
}

# read_package_lists: of the private apt, once a day.
read_package_lists() {
  local ring uri suite wanted
  mkdir -p "$CACHE/apt/state/lists/partial" "$CACHE/apt/cache/archives/partial" "$CACHE/apt/deb"
  ring=$(keyring)
  uri=$(mirror)
  wanted=$(for suite in "$STABLE" "$NEXT"; do printf 'deb [signed-by=%s] %s %s main contrib non-free\n' "$ring" "$uri" "$suite"; done)
  if [ "$(cat "$CACHE/apt/sources.list" 2>/dev/null)" = "$wanted" ] &&
    [ -n "$(find "$CACHE/apt/updated" -mtime -1 2>/dev/null)" ]; then return; fi
  printf '%s\n' "$wanted" >"$CACHE/apt/sources.list"
  quietly private-apt.log "reading the package lists of Debian $STABLE and $NEXT" private_apt update
  touch "$CACHE/apt/updated"
}

# unpack PACKAGE DIR: Debian 13's build of a package, unpacked but not installed.
unpack() { fetch "$1" "$2" -t "$STABLE"; }

# unpack_newest PACKAGE DIR: the newest build that Debian 13 or its successor has.
unpack_newest() { fetch "$1" "$2"; }

# fetch PACKAGE DIR APT-OPTION...: what the options let apt choose.
fetch() (
  package=$1 tree=$2
  shift 2
  exec 8>"$RUN/lock.apt"
  flock 8
  read_package_lists
  cd "$CACHE/apt/deb"
  rm -f "$package"_*.deb
  quietly "download-$package.log" "downloading $package" private_apt download "$package" "$@"
  rm -rf "$tree.part"
  mkdir -p "$(dirname "$tree")"
  dpkg -x "$package"_*.deb "$tree.part"
  rm -rf "$tree" "$package"_*.deb
  mv "$tree.part" "$tree"
)

# has_driver: whether NVIDIA's kernel module is loaded. Nodes in /dev tell nothing: NVIDIA's user library makes them as
# root, also where there is no driver.
has_driver() { [ -e /proc/driver/nvidia/version ]; }

# detach LOG COMMAND...: starts a daemon that outlives this script, and sets PID.
detach() {
  local log=$1 fd
  shift
  (
    cd /
    # A daemon that kept a lock's descriptor would hold the lock for ever.
    for fd in /proc/"$BASHPID"/fd/*; do
      fd=${fd##*/}
      [ "$fd" -le 2 ] || exec {fd}>&-
    done
    exec setsid "$@" >>"$log" 2>&1 </dev/null
  ) &
  PID=$!
}

answers() { timeout 10 "$DOCKER" -H "unix://$1" version -f '{{.Server.Version}}' >/dev/null 2>&1; }
server_version() { timeout 10 "$DOCKER" -H "unix://$1" version -f '{{.Server.Version}}'; }

# wait_for_engine SOCKET LOG PID: until the engine answers, or its process ends, or a minute has passed.
wait_for_engine() {
  local deadline=$((SECONDS + 60))
  until answers "$1"; do
    if ! kill -0 "$3" 2>/dev/null || [ "$SECONDS" -ge "$deadline" ]; then
      tail -n 15 "$2" >&2
      die "the Docker engine on $1 does not answer; its log is $2"
    fi
    sleep 0.2
  done
}

# make_once NAME FILE: lets make_NAME make the file unless it is there; two runs at a time take turns.
make_once() (
  flock 8
  if [ ! -e "$2" ]; then "make_$1"; fi
) 8>"$RUN/lock.make-$1"

# import_image SOCKET NAME RECIPE TAR MAKER: loads a root file system as an image, unless the engine has this recipe of
# it; the tar is made by make_MAKER only when it is needed.
import_image() {
  local docker=("$DOCKER" -H "unix://$1") have
  have=$("${docker[@]}" image inspect -f '{{index .Config.Labels "gpushared-test.recipe"}}' "$2" 2>/dev/null || true)
  [ "$have" != "$3" ] || return 0
  make_once "$5" "$4"
  "${docker[@]}" import --change "LABEL gpushared-test.recipe=$3" --change 'CMD ["/bin/sh"]' "$4" "$2" >/dev/null ||
    die "the engine on $1 refused the image $2"
}
