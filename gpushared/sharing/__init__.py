"""Put leases into effect on GPUs: NVIDIA MPS on shared GPUs, and the settings of containers."""
