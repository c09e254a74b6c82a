"""Read the GPUs of this machine: the NVIDIA driver's, or simulated ones."""
