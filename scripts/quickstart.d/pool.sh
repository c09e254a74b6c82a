# shellcheck shell=bash
# Several machines on one: each has a network of its own (a namespace with a cable to a switch), a Docker engine of its
# own, simulated GPUs, and a daemon. Behind the same switch runs the pool's coordinator, as a user without rights; with
# --ha one runs on each of three machines (ha.sh). Needs common.sh, venv.sh, and the words of quickstart.

NODE_NAMES=(a b c d e f g h)
NODE_GPUS=(h100:2 rtx4090:2 t4:4 a100:2 h100:1 a100:1 rtx4090:1 t4:2)
POOL=$NAME-pool
POOL_RUN=/run/$POOL
POOL_STATE=/var/lib/$POOL
SHARED=$POOL_STATE/shared
# Set aside for documentation (RFC 5737), so that nobody's network has it.
POOL_NET=${GPUSHARED_QUICKSTART_NET:-198.51.100}
COORDINATOR=$POOL_NET.1
# For users and machines that join: one address, or those of three coordinators.
COORDINATORS=$COORDINATOR
HUB=$POOL-hub
HOST_LINK=gpq$(cksum <<<"$POOL" | cut -d' ' -f1)
PERSON=demo
JOBS_RUN_AS=nobody
export GPUSHARE_POOL_SOCKET=$POOL_RUN/coordinator/gpushared-pool.sock

has_ha() { [ -e "$POOL_STATE/ha" ]; }

# on NODE WORDS...: gpushare, as somebody on that node types it.
on() {
  local node=$1
  shift
  GPUSHARE_HOST=unix://$POOL_RUN/$node/gpushared.sock gpushare "$@"
}

engine_of() {
  local node=$1
  shift
  docker -H "unix://$POOL_RUN/$node/docker.sock" "$@"
}

# --- what the machine must have

require_pool_tools() {
  is_root || die "a pool of several machines on this one needs network namespaces: run this with sudo"
  local tool
  for tool in nsenter setpriv useradd; do
    command -v "$tool" >/dev/null || die "$tool is missing here, a part of every usual Linux system"
  done
  if ! command -v ip >/dev/null; then
    command -v apt-get >/dev/null || die "ip is missing here: install iproute2 and run this again"
    mkdir -p "$RUN"
    apt_install iproute2
  fi
  command -v dockerd >/dev/null || die "dockerd is missing here, and each machine of the pool gets one: install Docker Engine"
  DOCKER=$(command -v docker)
}

# --- the network

# make_namespace NAME: unless it is there.
make_namespace() {
  [ -e "/run/netns/$1" ] || ip netns add "$1"
  ip -n "$1" link set dev lo up
}

# The switch, with the coordinator's address, and a cable to this machine, so that its programs reach the coordinator.
make_hub() {
  make_namespace "$HUB"
  if ! ip -n "$HUB" link show dev switch >/dev/null 2>&1; then
    ip -n "$HUB" link add name switch type bridge
    ip -n "$HUB" address add "$COORDINATOR/24" dev switch
    ip -n "$HUB" link set dev switch up
  fi
  if ! ip link show dev "$HOST_LINK" >/dev/null 2>&1; then
    [ -z "$(ip -4 route show "$POOL_NET.0/24")" ] ||
      die "this machine has a network $POOL_NET.0/24 already: name another one, as GPUSHARED_QUICKSTART_NET=192.0.2"
    ip link add name "$HOST_LINK" type veth peer name host netns "$HUB"
    plug host
    ip address add "$POOL_NET.254/24" dev "$HOST_LINK"
    ip link set dev "$HOST_LINK" up
  fi
}

plug() { ip -n "$HUB" link set dev "$1" master switch up; }

# address_of NODE: on the switch.
address_of() {
  local number
  for number in "${!NODE_NAMES[@]}"; do
    [ "${NODE_NAMES[number]}" != "$1" ] || printf '%s' "$POOL_NET.$((11 + number))"
  done
}

make_machine() {
  local node=$1 namespace=$POOL-$1
  make_namespace "$namespace"
  ip -n "$namespace" link show dev eth0 >/dev/null 2>&1 && return
  ip -n "$HUB" link add name "$node" type veth peer name eth0 netns "$namespace"
  plug "$node"
  ip -n "$namespace" address add "$(address_of "$node")/24" dev eth0
  ip -n "$namespace" link set dev eth0 up
}

remove_network() {
  local namespace
  for namespace in /run/netns/"$POOL"-*; do
    [ -e "$namespace" ] || continue
    ip netns del "${namespace##*/}"
  done
  ip link del dev "$HOST_LINK" 2>/dev/null || true
}

# --- the engines

start_node_engine() {
  local node=$1 run=$POOL_RUN/$1 log=$POOL_STATE/$1/dockerd.log
  ! is_ours "$run/dockerd.pid" "$run" || return 0
  rm -f "$run/docker.pid" "$run/docker/containerd/containerd.pid"
  # The machine's own settings must not reach this engine.
  echo '{}' >"$POOL_STATE/$node/docker.json"
  detach "$log" nsenter --net="/run/netns/$POOL-$node" dockerd --host "unix://$run/docker.sock" \
    --data-root "$POOL_STATE/$node/docker" --exec-root "$run/docker" --pidfile "$run/docker.pid" \
    --containerd-namespace "$POOL-$node" --containerd-plugins-namespace "$POOL-$node-plugins" \
    --config-file "$POOL_STATE/$node/docker.json" --bridge none --iptables=false
  echo "$PID" >"$run/dockerd.pid"
}

# These engines have no way to a registry: they get the image from this machine's.
load_image() {
  local node=$1
  wait_for_engine "$POOL_RUN/$node/docker.sock" "$POOL_STATE/$node/dockerd.log" "$(cat "$POOL_RUN/$node/dockerd.pid")"
  if engine_of "$node" image inspect busybox >/dev/null 2>&1; then return; fi
  engine save "$IMAGE" | engine_of "$node" load >/dev/null
  [ "$IMAGE" = busybox ] || engine_of "$node" tag "$IMAGE" busybox
}

# --- the coordinator

make_pool_user() {
  if id "$NAME" >/dev/null 2>&1; then return; fi
  useradd --system --no-create-home --home-dir /nonexistent --shell /usr/sbin/nologin "$NAME"
  touch "$POOL_STATE/made-user"
}

# become PROGRAM WHAT: sets OWNER and BECOME to the user without rights, or to root where that user cannot run it.
become() {
  OWNER=$NAME
  BECOME=(setpriv --reuid "$NAME" --regid "$(id -g "$NAME")" --clear-groups)
  if (cd / && "${BECOME[@]}" "$1" --version >/dev/null 2>&1); then return; fi
  say "$2 runs as root here, because the user $NAME may not read this checkout"
  OWNER=root
  BECOME=()
}

# coordinator_config ADDRESS PLACE
coordinator_config() {
  cat <<END
[coordinator]
listen = "$1:7440"
listen_nodes = "$1:7441"
advertise = "$1"
state_dir = "$POOL_STATE$2/coordinator"
runtime_dir = "$POOL_RUN$2/coordinator"

# Whoever is root on one of the machines, and the token of the example pipeline.
[users.$PERSON]
principals = [$(printf '"root@%s", ' "${NODES[@]}")]
END
}

# begin_pool CONFIG STATE
begin_pool() {
  if [ -e "$2/ca" ]; then return; fi
  show pool init --config "$1" --user "$NAME" lab | sed "/^next:/,\$d"
}

# start_coordinator PLACE NAMESPACE: with the configuration at that place, "" or /MACHINE; started again when it dies.
start_coordinator() {
  local run=$POOL_RUN$1 state=$POOL_STATE$1 namespace=$2 flags=()
  is_ours "$run/restarter.pid" "$state/pool.toml" && return
  become "$VENV/bin/gpushared-pool" "the coordinator"
  [ "$OWNER" != root ] || flags=(--allow-root)
  mkdir -p "$run/coordinator"
  chown -R "$OWNER:" "$run/coordinator" "$state/coordinator"
  detach "$state/coordinator.log" "$HERE/quickstart.d/restarter" "$run/coordinator.pid" nsenter "--net=/run/netns/$namespace" \
    "${BECOME[@]}" "$VENV/bin/gpushared-pool" --config "$state/pool.toml" "${flags[@]}"
  echo "$PID" >"$run/restarter.pid"
}

start_one_coordinator() {
  coordinator_config "$COORDINATOR" "" >"$POOL_STATE/pool.toml"
  begin_pool "$POOL_STATE/pool.toml" "$POOL_STATE/coordinator"
  start_coordinator "" "$HUB"
  wait_until_serving "$POOL_STATE/coordinator.log" "$(cat "$POOL_RUN/restarter.pid")" gpushare pool status
}

# stop_coordinator PLACE
stop_coordinator() {
  end_process "$POOL_RUN$1/restarter.pid" "$POOL_STATE$1/pool.toml" 30
  end_process "$POOL_RUN$1/coordinator.pid" "$POOL_STATE$1/pool.toml" 30
}

# wait_until_serving LOG PID COMMAND...
wait_until_serving() {
  local log=$1 pid=$2 deadline=$((SECONDS + 60))
  shift 2
  until "$@" >/dev/null 2>&1; do
    if ! kill -0 "$pid" 2>/dev/null || [ "$SECONDS" -ge "$deadline" ]; then
      tail -n 15 "$log" >&2
      die "a daemon does not serve; its log is $log"
    fi
    sleep 0.2
  done
}

# --- the nodes

node_config() {
  cat <<END
[node]
name = "$1"

# Root of one machine is nobody special on another.
[pool.accounts]
$PERSON = "$JOBS_RUN_AS"

[gate]
mount_prefixes = ["~", "$SHARED"]
host_network = "gangs"
END
}

# start_node NODE GPUS
start_node() {
  local node=$1 run=$POOL_RUN/$1 state=$POOL_STATE/$1
  is_ours "$run/gpushared.pid" "$state/config.toml" && return
  node_config "$node" >"$state/config.toml"
  detach "$state/gpushared.log" nsenter --net="/run/netns/$POOL-$node" "$VENV/bin/gpushared" \
    --config "$state/config.toml" --simulate "$2" --runtime-dir "$run" --state-dir "$state/state" \
    --engine "$run/docker.sock"
  echo "$PID" >"$run/gpushared.pid"
}

wait_for_node() {
  wait_until_serving "$POOL_STATE/$1/gpushared.log" "$(cat "$POOL_RUN/$1/gpushared.pid")" on "$1" version
}

# join NODE: by the commands that an administrator uses.
join() {
  local node=$1
  [ ! -e "$POOL_STATE/$node/state/pool/membership.json" ] || return 0
  printf '\n$ gpushare pool token --node %s -q | gpushare node join %s --token-file -        # on %s\n' \
    "$node" "$COORDINATORS" "$node"
  gpushare pool token --node "$node" -q | on "$node" node join "$COORDINATORS" --token-file - --name "$node"
}

wait_for_pool() {
  local deadline=$((SECONDS + 60)) ready
  while true; do
    ready=$(on a nodes --no-headers -o columns=node,state 2>/dev/null | grep -c ' ready') || true
    [ "$ready" != "${#NODES[@]}" ] || return 0
    if [ "$SECONDS" -ge "$deadline" ]; then
      on a nodes >&2 || true
      die "not all nodes are connected; see the logs below $POOL_STATE"
    fi
    sleep 0.3
  done
}

# What the example pipeline needs: whom to trust, and a token.
make_credentials() {
  gpushare pool anchors >"$POOL_STATE/pool-ca.pem"
  if [ -e "$POOL_STATE/token" ]; then return; fi
  (umask 077 && gpushare pool api-token --person "$PERSON" --valid 30d --description "the quickstart's pipeline" -q \
    >"$POOL_STATE/token")
}

# --- start, cut, heal, stop

read_nodes() {
  [ -e "$POOL_STATE/nodes" ] || die "there is no pool here; begin one: $AGAIN --pool 3"
  read -ra NODES <"$POOL_STATE/nodes"
}

choose_nodes() {
  case $1 in [2-8]) ;; *) die "--pool takes 2 to 8 machines" ;; esac
  if [ -e "$POOL_STATE/nodes" ]; then
    read_nodes
    [ ${#NODES[@]} = "$1" ] || die "a pool of ${#NODES[@]} machines runs here already; end it first: $AGAIN --stop"
    [ "${2:-}" != --ha ] || has_ha || die "a pool with one coordinator runs here already; end it first: $AGAIN --stop"
  fi
  NODES=("${NODE_NAMES[@]:0:$1}")
}

# start_pool MACHINES [--ha]: a pool with --ha stays one when it is started again without.
start_pool() {
  local node number
  require_pool_tools
  choose_nodes "$1" "${2:-}"
  [ -z "${2:-}" ] || require_ha_tools
  mkdir -p "$POOL_STATE" "$POOL_RUN" "$SHARED"
  chmod 1777 "$SHARED"
  echo "${NODES[*]}" >"$POOL_STATE/nodes"
  [ -z "${2:-}" ] || touch "$POOL_STATE/ha"
  choose_image
  say "${#NODES[@]} machines, each with a network, a Docker engine and GPUs of its own; the GPUs are SIMULATED"
  make_hub
  for node in "${NODES[@]}"; do
    mkdir -p "$POOL_STATE/$node" "$POOL_RUN/$node"
    make_machine "$node"
    start_node_engine "$node"
  done
  make_pool_user
  if has_ha; then
    COORDINATORS=$(list_of '%.0s%s:7440')
    start_coordinators
  else
    start_one_coordinator
  fi
  for node in "${NODES[@]}"; do load_image "$node"; done
  for number in "${!NODES[@]}"; do start_node "${NODES[number]}" "${NODE_GPUS[number]}"; done
  for node in "${NODES[@]}"; do
    wait_for_node "$node"
    join "$node"
  done
  wait_for_pool
  make_credentials
  printf '\n$ gpushare nodes\n'
  on a nodes
  GPUSHARE_HOST=unix://$POOL_RUN/a/gpushared.sock start_page
  tell_page
  explain_pool
}

explain_pool() {
  local parts=0-19 many=twenty
  if has_ha; then parts=0-99 many="a hundred"; fi
  cat <<END

All of it goes on running. To be somebody on machine a:

  export GPUSHARE_HOST=unix://$POOL_RUN/a/gpushared.sock
  export PATH="$VENV/bin:\$PATH"
  shared=$SHARED    # a folder that all machines have

  gpushare nodes                                                # the machines, and what is free on them
  gpushare run --pool --gpu 1 --model 4090 --rm -it busybox sh  # your terminal, a container on b
  jobs=\$(gpushare submit --pool --array $parts --gpu 0.5 -v \$shared:/out busybox \\
    sh -c 'sleep 20; echo part \$GPUSHARE_ARRAY_INDEX | tee -a /out/done')
  gpushare jobs --array \$jobs                                  # $many jobs on ${#NODES[@]} machines
  $AGAIN --pool ${#NODES[@]} --cut b                           # pulls b's cable: what runs there runs on
  $AGAIN --pool ${#NODES[@]} --heal b                          # puts it back
  gpushare wait \$jobs && sort -V \$shared/done | uniq -c       # each of them once
END
  if has_ha; then explain_ha; fi
  explain_programs
  tell_of_others
}

explain_programs() {
  cat <<END

A program in the pool, by TLS and with a token (docs/how-to/pipelines.md):

  export GPUSHARE_POOL=$COORDINATORS GPUSHARE_POOL_CA=$POOL_STATE/pool-ca.pem
  export GPUSHARE_POOL_TOKEN_FILE=$POOL_STATE/token
  .venv/bin/python examples/pipeline.py

Administrators' commands find the coordinator by:

  export GPUSHARE_POOL_SOCKET=$GPUSHARE_POOL_SOCKET

The page of the pool, by a link that the command prints:

  sudo GPUSHARE_POOL_SOCKET=$GPUSHARE_POOL_SOCKET $VENV/bin/gpushare web --pool --no-browser

To end it:  $AGAIN --stop
END
}

# set_cable NODE up|down
set_cable() {
  is_root || die "only root may pull cables: run this with sudo"
  read_nodes
  case " ${NODES[*]} " in *" $1 "*) ;; *) die "there is no machine $1; there are ${NODES[*]}" ;; esac
  ip -n "$HUB" link set dev "$1" "$2" || die "machine $1 is not on; start it: $AGAIN --pool ${#NODES[@]}"
}

cut() {
  set_cable "$1" down
  say "machine $1 is cut off: nothing gets to it or from it, and its daemon and its containers run on"
}

heal() {
  set_cable "$1" up
  say "machine $1 has its network again"
}

# end_process PIDFILE WORD SECONDS
end_process() {
  local pid
  is_ours "$1" "$2" || return 0
  pid=$(cat "$1")
  kill "$pid" 2>/dev/null || true
  wait_for_end "$pid" "$3"
  kill -9 "$pid" 2>/dev/null || true
}

stop_machine() {
  local node=$1 run=$POOL_RUN/$1 containers
  end_process "$run/gpushared.pid" "$run" 30
  mapfile -t containers < <(timeout 10 docker -H "unix://$run/docker.sock" ps -aq 2>/dev/null)
  [ ${#containers[@]} = 0 ] || engine_of "$node" rm -f "${containers[@]}" >/dev/null 2>&1 || true
  end_process "$run/dockerd.pid" "$run" 30
}

remove_pool_files() {
  local mount
  drop_pins "$POOL_STATE"
  awk -v run="$POOL_RUN/" -v state="$POOL_STATE/" 'index($5, run) == 1 || index($5, state) == 1 { print $5 }' \
    /proc/self/mountinfo | sort -r | while read -r mount; do umount --lazy "$mount" || true; done
  [ ! -e "$POOL_STATE/made-user" ] || userdel "$NAME" 2>/dev/null || true
  rm -rf "$POOL_RUN" "$POOL_STATE"
}

stop_pool() {
  [ -e "$POOL_STATE" ] || [ -e "$POOL_RUN" ] || return 0
  is_root || die "the pool was begun by root: run this with sudo"
  local node waited=()
  if [ -e "$POOL_STATE/nodes" ]; then
    read_nodes
    say "ending ${#NODES[@]} machines"
    for node in "${NODES[@]}"; do
      stop_machine "$node" &
      waited+=($!)
    done
    wait "${waited[@]}" || true
  fi
  if has_ha; then stop_coordinators; else stop_coordinator ""; fi
  remove_network
  remove_pool_files
}
