"""Serve callers: HTTP, the public unix socket, identities, limits of one user, unary calls."""
