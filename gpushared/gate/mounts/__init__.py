"""Hold mount sources in place for containers, and copy files of containers."""
