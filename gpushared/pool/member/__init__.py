"""Be a node of a pool: join it, keep the link to its coordinator, and handle what comes over the link."""
