"""Keep durable records: SQLite files with the journal, the audit and the jobs on them, and a pool's store in etcd."""
