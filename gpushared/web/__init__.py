"""Serve the page to browsers: its files, its logins, its stream, and the ways by which browsers come in."""
