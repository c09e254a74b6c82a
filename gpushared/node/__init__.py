"""Run the daemon of a node: wire its parts, and live from its start to its end."""
