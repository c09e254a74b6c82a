"""Run a node's state: its loop, its executor, and its observers of containers and GPUs."""
