"""Be a member of a pool."""
