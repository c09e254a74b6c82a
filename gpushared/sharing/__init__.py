"""Make leases real on GPUs: NVIDIA MPS on shared GPUs, and the settings of containers."""
