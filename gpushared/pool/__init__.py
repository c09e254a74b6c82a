"""Pool several nodes: the coordinator's daemon, the node's side of the pool, their trust and their tunnels."""
