"""Serve a node's API: leases, GPUs, projects, jobs, the policy, the doctor."""
