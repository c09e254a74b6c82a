"""Copy files into and out of confined callers' containers, with the rights of the caller."""
