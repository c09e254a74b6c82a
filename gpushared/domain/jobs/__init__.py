"""Run a coordinator's state machine: where each job runs, and how none runs twice.

``coordinator`` decides for many nodes, or for its own node alone; ``attempt_log`` answers on a node. Both are
pure. Messages between them may be lost, doubled, delayed or reordered.
"""
