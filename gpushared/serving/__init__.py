"""Serve in both daemons: identify callers, speak the protocols, and live as a service."""
