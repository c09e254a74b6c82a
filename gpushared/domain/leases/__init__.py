"""Run a node's state machine: events go in, a new state and instructions come out."""
