"""Run the coordinator of a pool."""
