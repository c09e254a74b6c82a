"""Serve a node's API."""
