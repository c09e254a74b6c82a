"""Define the values that all rules share: units, GPUs, requests, leases, errors."""
