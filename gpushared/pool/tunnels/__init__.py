"""Carry connections between the users of a pool and the containers of their jobs."""
