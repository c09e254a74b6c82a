"""Serve the page: its assets, its stream, and the logins of browsers."""
