"""Run jobs on this node."""
