"""Examine the machine and the daemon's parts, and say what is wrong and what to do about it."""
