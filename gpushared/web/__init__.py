"""Serve the web page: its assets, browsers' logins, and the daemon's calls for browsers."""
