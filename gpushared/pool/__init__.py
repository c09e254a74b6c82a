"""The pool: the coordinator's daemon, and in ``member`` the node's side of it."""
