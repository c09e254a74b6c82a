"""Looks at the machine and at the daemon's parts, and says what is wrong and what to do about it."""
