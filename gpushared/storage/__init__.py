"""Keep durable records: SQLite files, and the journal, the audit and the jobs on them."""
