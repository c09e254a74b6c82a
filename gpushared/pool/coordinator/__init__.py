"""Run the coordinator of a pool: its services, its links to nodes, its servers."""
