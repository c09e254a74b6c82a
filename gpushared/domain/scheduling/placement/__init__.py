"""Decide where a request runs: the free capacity of hosts, the fitting GPUs, the cost of each choice."""
