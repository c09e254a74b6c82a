"""Keep a pool's store in etcd, by stubs of etcd's own API."""
