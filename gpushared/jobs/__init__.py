"""Coordinate jobs: the write-ahead loop of a coordinator, and the calls of ``Jobs`` on it."""
