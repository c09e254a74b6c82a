"""Run the daemon of a node: wire its parts, and run them from its start to its end."""
