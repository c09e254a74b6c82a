"""Share GPUs among containers on plain Linux machines: a node-local GPU sharing daemon for Docker."""

__version__ = "0.1.0"
