"""The Docker Engine API on the daemon's own socket: parsed, judged, and passed on to the engine."""
