# shellcheck shell=bash
# A pool that outlives its coordinator: each of the first three machines has a member of one etcd, and a coordinator. They
# speak TLS, with certificates of an authority of their own. Needs pool.sh, and bed.d/etcd.sh for etcd itself.

HA_NODES=(a b c)
ETCD_KEYS=$POOL_STATE/etcd-keys

require_ha_tools() {
  [ ${#NODES[@]} -ge 3 ] || die "--ha takes three machines or more: two give nothing, because etcd serves with more than half of its members"
  [ -x "$ETCD/usr/bin/etcd" ] || command -v apt-get >/dev/null || die "--ha takes etcd from this machine's apt, which is missing here"
  mkdir -p "$RUN"
  command -v openssl >/dev/null || apt_install openssl
  part_etcd
}

# list_of FORMAT: what printf makes of the format for each machine's name and address, with commas between.
list_of() {
  local node list=
  # shellcheck disable=SC2059 # the format is the caller's
  for node in "${HA_NODES[@]}"; do list+=,$(printf "$1" "$node" "$(address_of "$node")"); done
  printf '%s' "${list#,}"
}

# --- etcd

# make_key NAME OPTION...: a key, and a certificate for it.
make_key() {
  local name=$1
  shift
  [ -e "$ETCD_KEYS/$name.pem" ] || quietly "openssl-$name.log" "making the certificate of $name" \
    openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 3650 -subj "/CN=$name" \
    -keyout "$ETCD_KEYS/$name.key" -out "$ETCD_KEYS/$name.pem" "$@"
}

make_etcd_keys() {
  local node signed=(-CA "$ETCD_KEYS/ca.pem" -CAkey "$ETCD_KEYS/ca.key" -addext basicConstraints=critical,CA:FALSE)
  mkdir -p "$ETCD_KEYS"
  make_key ca
  make_key coordinators "${signed[@]}" -addext extendedKeyUsage=clientAuth
  for node in "${HA_NODES[@]}"; do
    make_key "$node" "${signed[@]}" -addext extendedKeyUsage=serverAuth,clientAuth \
      -addext "subjectAltName=IP:$(address_of "$node")"
  done
  chown -R "$NAME:" "$ETCD_KEYS"
}

start_etcd() {
  local node=$1 address state=$POOL_STATE/$1/etcd files=()
  is_ours "$POOL_RUN/$node/etcd.pid" "$state" && return
  address=$(address_of "$node")
  files=(--cert-file "$ETCD_KEYS/$node.pem" --key-file "$ETCD_KEYS/$node.key" --trusted-ca-file "$ETCD_KEYS/ca.pem"
    --peer-cert-file "$ETCD_KEYS/$node.pem" --peer-key-file "$ETCD_KEYS/$node.key"
    --peer-trusted-ca-file "$ETCD_KEYS/ca.pem")
  become "$ETCD/usr/bin/etcd" "etcd on $node"
  mkdir -p -m 700 "$state"
  chown -R "$OWNER:" "$state"
  detach "$POOL_STATE/$node/etcd.log" nsenter "--net=/run/netns/$POOL-$node" "${BECOME[@]}" "$ETCD/usr/bin/etcd" \
    --name "$node" --data-dir "$state" --auto-compaction-retention 1h --pre-vote \
    --listen-client-urls "https://$address:2379" --advertise-client-urls "https://$address:2379" \
    --listen-peer-urls "https://$address:2380" --initial-advertise-peer-urls "https://$address:2380" \
    --initial-cluster "$(list_of '%s=https://%s:2380')" --initial-cluster-token "$POOL" \
    --client-cert-auth --peer-client-cert-auth "${files[@]}"
  echo "$PID" >"$POOL_RUN/$node/etcd.pid"
}

wait_for_etcd() {
  wait_until_serving "$POOL_STATE/$1/etcd.log" "$(cat "$POOL_RUN/$1/etcd.pid")" \
    env ETCDCTL_API=3 "$ETCD/usr/bin/etcdctl" --endpoints "https://$(address_of "$1"):2379" --cacert "$ETCD_KEYS/ca.pem" \
    --cert "$ETCD_KEYS/coordinators.pem" --key "$ETCD_KEYS/coordinators.key" endpoint health
}

# --- the coordinators

ha_config() {
  coordinator_config "$(address_of "$1")" "/$1"
  cat <<END

[store]
url = "etcd://$(list_of '%.0s%s:2379')"
ca_file = "$ETCD_KEYS/ca.pem"
cert_file = "$ETCD_KEYS/coordinators.pem"
key_file = "$ETCD_KEYS/coordinators.key"
END
}

start_coordinators() {
  local node first=$POOL_STATE/${HA_NODES[0]}
  make_etcd_keys
  for node in "${HA_NODES[@]}"; do start_etcd "$node"; done
  for node in "${HA_NODES[@]}"; do
    wait_for_etcd "$node"
    ha_config "$node" >"$POOL_STATE/$node/pool.toml"
  done
  if [ ! -e "$first/coordinator/ca" ]; then
    begin_pool "$first/pool.toml" "$first/coordinator"
    say "the coordinators on ${HA_NODES[*]:1} get copies of the pool's keys"
  fi
  for node in "${HA_NODES[@]}"; do
    # Every coordinator has the pool's keys, as an administrator copies them from the first.
    mkdir -p -m 700 "$POOL_STATE/$node/coordinator"
    [ -e "$POOL_STATE/$node/coordinator/ca" ] || cp -a "$first/coordinator/ca" "$POOL_STATE/$node/coordinator/"
    start_coordinator "/$node" "$POOL-$node"
  done
  find_leader
}

# find_leader: sets LEADER to its machine, which is the one that administrators' commands ask.
find_leader() {
  local deadline=$((SECONDS + 60)) node
  until [ "$SECONDS" -ge "$deadline" ]; do
    for LEADER in "${HA_NODES[@]}"; do
      export GPUSHARE_POOL_SOCKET=$POOL_RUN/$LEADER/coordinator/gpushared-pool.sock
      case $(timeout 10 "$VENV/bin/gpushare" pool status -o json 2>/dev/null) in *'"role": "leader"'*) return ;; esac
    done
    sleep 0.3
  done
  for node in "${HA_NODES[@]}"; do tail -n 5 "$POOL_STATE/$node/coordinator.log" >&2; done
  die "no coordinator leads; the logs are $POOL_STATE/*/coordinator.log"
}

explain_ha() {
  cat <<END

Each of ${HA_NODES[*]} has a coordinator, and that of $LEADER leads. Kill it while jobs run: it is started again, and it or another
one leads within 15 s.

  sudo kill -9 \$(cat $POOL_RUN/$LEADER/coordinator.pid)
  gpushare nodes                                                # answers as before
  sudo GPUSHARE_POOL_SOCKET=$GPUSHARE_POOL_SOCKET $VENV/bin/gpushare pool status
END
}

stop_coordinators() {
  local node waited=()
  for node in "${HA_NODES[@]}"; do
    stop_coordinator "/$node" &
    waited+=($!)
  done
  wait "${waited[@]}" || true
  for node in "${HA_NODES[@]}"; do end_process "$POOL_RUN/$node/etcd.pid" "$POOL_STATE/$node/etcd" 10 & done
  wait
}
