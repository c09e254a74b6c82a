"""Pool several nodes: the coordinator, the node's side of the pool, their trust and their tunnels."""
