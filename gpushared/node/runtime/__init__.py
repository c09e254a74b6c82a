"""Run a node's state: its loop, its executor, and what it observes of containers and GPUs."""
