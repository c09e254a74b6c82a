"""Serve the Docker Engine API on the daemon's socket: judge each request, and pass it on to the engine."""
