"""Files copied into and out of confined callers' containers, by a process with the rights of the caller."""
