"""Connect a node's daemon with its pool."""
