"""Makes leases real on GPUs: NVIDIA MPS where GPUs are shared, and what a container is given."""
