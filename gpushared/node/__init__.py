"""The daemon: the loop around the pure core, the parts it drives, and the socket people reach it by."""
