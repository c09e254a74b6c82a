"""Run jobs on a node: images, containers, a coordinator's orders, and the node's own jobs."""
