"""Look at the machine and at the daemon's parts, and say what is wrong and what to do about it."""
