"""Serve ``gpushare top``: show GPUs, leases and the queue on a terminal for as long as it is left open."""
