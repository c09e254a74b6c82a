"""A node's side of its pool: joining it, the link to its coordinator, and what comes over it."""
